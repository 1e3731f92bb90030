"""What the comparisons share: how long they may take, how they ask, and paired ratios."""

from __future__ import annotations

import random
import statistics
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bench.drafts import imported
from bench.inprocess import Arm
from homespecd.cli.demo import model_file
from homespecd.decoding.params import SamplingParams
from homespecd.worker.jobs import Run
from homespecd.worker.messages import GenerationRequest
from homespecd.worker.prompt_set import BenchPrompt

CACHE = Path(__file__).resolve().parent.parent / ".cache" / "bench"


@dataclass(frozen=True)
class Limits:
    """tokens: per answer. minutes: for everything. most_turns: of a section."""

    tokens: int
    minutes: float
    most_turns: int
    threads: int

    def turns(self, share: float) -> Iterator[int]:
        """Turn numbers: as many as fit into this share of the time, but one at least."""
        end_s = time.monotonic() + share * self.minutes * 60.0
        longest_s = 0.0
        for turn in range(self.most_turns):
            if turn and time.monotonic() + longest_s > end_s:
                return
            began_s = time.monotonic()
            yield turn
            longest_s = max(longest_s, time.monotonic() - began_s)


# Resamplings for an interval; seeded, so that the same times give the same interval.
_RESAMPLED = 1000


@dataclass(frozen=True)
class Ratio:
    """Of paired measurements: the median, the quartiles, and where the median surely is (95 %)."""

    median: float
    quartiles: tuple[float, float]
    interval: tuple[float, float]
    pairs: int

    @classmethod
    def of(cls, ratios: Sequence[float]) -> Ratio:
        draw = random.Random(1)
        medians = sorted(
            statistics.median(draw.choices(ratios, k=len(ratios))) for _ in range(_RESAMPLED)
        )
        cuts = statistics.quantiles(ratios, n=4, method="inclusive") if len(ratios) > 1 else None
        return cls(
            statistics.median(ratios),
            (cuts[0], cuts[2]) if cuts else (ratios[0], ratios[0]),
            (medians[round(0.025 * _RESAMPLED)], medians[round(0.975 * _RESAMPLED) - 1]),
            len(ratios),
        )

    def __str__(self) -> str:
        return f"{self.median:.3f} ({self.quartiles[0]:.2f}–{self.quartiles[1]:.2f})"

    def verdict(self, least: float) -> str:
        """Against a bar: met, missed, or missed by less than the measurement can tell."""
        if self.median >= least:
            return "met"
        return "within noise" if self.interval[1] >= least else "MISSED"

    def to_json(self) -> dict[str, Any]:
        return {
            "median": round(self.median, 4),
            "quartiles": [round(one, 4) for one in self.quartiles],
            "interval_95": [round(one, 4) for one in self.interval],
            "pairs": self.pairs,
        }


def request_for(prompt: BenchPrompt, arm: Arm, tokens: int) -> GenerationRequest:
    return GenerationRequest(
        messages=prompt.messages,
        sampling=SamplingParams(temperature=0.0),
        max_tokens=tokens,
        ignore_eos=True,
        speculation=arm.speculation,
        drafter=arm.drafter,
    )


def ms_per_token(run: Run) -> float:
    speed = run.account.decode_tok_s
    assert speed is not None, "an answer of one round has no speed: ask for more tokens"
    return 1e3 / speed


def smollm2(precision: str) -> Path:
    return imported(model_file(), CACHE, name="smollm2", precision=precision)
