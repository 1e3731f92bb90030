"""How long answers take, counted into buckets for whoever watches the service."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import accumulate
from typing import Any

# Seconds. To the first token: from a warm prefix to a long prompt on a small machine.
_FIRST_TOKEN_S = (0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0)
# Per token after the first: from a small model on a fast machine to a large one on a slow one.
_TOKEN_S = (0.001, 0.0025, 0.005, 0.01, 0.02, 0.04, 0.08, 0.16, 0.32, 0.64, 1.28)


class Histogram:
    """Counts by upper bound, as Prometheus has them."""

    def __init__(self, bounds: Sequence[float]) -> None:
        self._bounds = tuple(bounds)
        self._counts = [0] * (len(self._bounds) + 1)
        self._sum = 0.0

    def add(self, value: float) -> None:
        index = sum(value > bound for bound in self._bounds)
        self._counts[index] += 1
        self._sum += value

    def as_dict(self) -> dict[str, Any]:
        """`buckets`: upper bound → how many were not above it; the last is "+Inf"."""
        names = [*(f"{bound:g}" for bound in self._bounds), "+Inf"]
        below = accumulate(self._counts)
        return {"buckets": dict(zip(names, below, strict=True)), "sum": round(self._sum, 6)}


@dataclass
class Timings:
    """One model's answers: seconds to the first token, and per token after the first round."""

    first_token_s: Histogram = field(default_factory=lambda: Histogram(_FIRST_TOKEN_S))
    token_s: Histogram = field(default_factory=lambda: Histogram(_TOKEN_S))

    def add(self, report: Mapping[str, Any]) -> None:
        """The `homespec` object of an answer that is complete."""
        self.first_token_s.add(report["ttft_ms"] / 1e3)
        if report["decode_tok_s"]:
            self.token_s.add(1.0 / report["decode_tok_s"])

    def as_dict(self) -> dict[str, Any]:
        return {"first_token_s": self.first_token_s.as_dict(), "token_s": self.token_s.as_dict()}
