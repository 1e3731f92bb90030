"""The measured speed-up: plain ÷ speculative wall time per token, from rounds that really ran.

Compared are only rounds in the same circumstances (context bucket, rows that others put into the
step), each with its whole wall time, and what a draft had to read for them. Not here: rounds that
carry the target's prompt, which say nothing of decoding; the caller leaves them out.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from homespecd.governor.costs import context_bucket
from homespecd.governor.levels import finite
from homespecd.governor.protocol import MeasuredSpeedup

Cell = tuple[int, int]

# What counts is the last hundred rounds or so: long enough to average out blocks of 1 and of 17
# tokens, short enough that a new load shows within a request.
_MEMORY_ROUNDS = 128.0

# A sample above so many times the mean is another program's doing and counts as that much.
_SPIKE = 3.0
_SETTLED = 4

# After a change of the machine's pace, what was measured before weighs as this many rounds.
_DOUBTED_ROUNDS = 1.0

_MANY = 1e15


def circumstances(context: int, other_rows: int) -> Cell:
    """Rounds with equal circumstances are compared; others' rows by powers of two."""
    return context_bucket(context), other_rows.bit_length()


class _PerToken:
    """Milliseconds per token: sums that fade, so that a round counts by its length."""

    def __init__(self) -> None:
        self.ms = 0.0
        self.tokens = 0.0
        self.rounds = 0.0
        self.count = 0

    @property
    def mean(self) -> float:
        return self.ms / self.tokens

    def add(self, ms: float, tokens: int) -> None:
        if self.rounds >= _SETTLED:
            ms = min(ms, _SPIKE * max(self.mean * tokens, self.ms / self.rounds))
        self.fade(1.0 - 1.0 / _MEMORY_ROUNDS)
        self.ms += ms
        self.tokens += tokens
        self.rounds += 1.0
        self.count += 1

    def fade(self, factor: float) -> None:
        self.ms *= factor
        self.tokens *= factor
        self.rounds *= factor

    def to_record(self) -> list[float]:
        return [self.ms, self.tokens, self.rounds, self.count]

    def restore(self, record: Any) -> None:
        self.ms, self.tokens, self.rounds, count = (finite(one, 0.0, _MANY) for one in record)
        self.count = int(count)
        if self.count and not (self.tokens > 0.0 and self.rounds > 0.0):
            raise ValueError("time without tokens")


class SpeedupMeter:
    """Both sides, per circumstances; the speculative side per drafter."""

    def __init__(self) -> None:
        self._plain: dict[Cell, _PerToken] = {}
        self._speculative: dict[str, dict[Cell, _PerToken]] = {}

    def add_plain(self, cell: Cell, ms: float) -> None:
        self._plain.setdefault(cell, _PerToken()).add(ms, 1)

    def add_speculative(self, drafter: str, cell: Cell, *, ms: float, tokens: int) -> None:
        """A round with a proposal of this drafter that committed `tokens` ≥ 1 tokens."""
        cells = self._speculative.setdefault(drafter, {})
        cells.setdefault(cell, _PerToken()).add(ms, tokens)

    def add_reading(self, drafter: str, cell: Cell, ms: float) -> None:
        """What a draft had to read before it could propose: time in which nothing came."""
        cells = self._speculative.setdefault(drafter, {})
        cells.setdefault(cell, _PerToken()).ms += ms

    def doubt(self) -> None:
        """The machine has changed its pace: what was measured before hardly counts."""
        every = [*self._plain.values()]
        for cells in self._speculative.values():
            every.extend(cells.values())
        for one in every:
            if one.rounds > _DOUBTED_ROUNDS:
                one.fade(_DOUBTED_ROUNDS / one.rounds)

    def plain_rounds(self, cell: Cell) -> float:
        """Plain rounds that count in these circumstances (faded)."""
        one = self._plain.get(cell)
        return one.rounds if one else 0.0

    def plain_ms(self, cell: Cell) -> float | None:
        one = self._plain.get(cell)
        return one.mean if one else None

    @property
    def plain_ms_per_token(self) -> float | None:
        rounds = sum(one.rounds for one in self._plain.values())
        return sum(one.ms for one in self._plain.values()) / rounds if rounds else None

    @property
    def plain_samples(self) -> int:
        return sum(one.count for one in self._plain.values())

    def speculative_samples(self, drafter: str) -> int:
        return sum(one.count for one in self._speculative.get(drafter, {}).values())

    def measured(self, drafter: str | None) -> MeasuredSpeedup:
        """The speed-up of one drafter, None = of all together."""
        chosen = self._speculative if drafter is None else {drafter: {}}
        if drafter in self._speculative:
            chosen = {drafter: self._speculative[drafter]}
        samples = 0
        spent = tokens = plain_instead = 0.0
        for cells in chosen.values():
            for cell, one in cells.items():
                samples += one.count
                plain = self._plain.get(cell)
                if plain is not None and one.tokens:
                    spent += one.ms
                    tokens += one.tokens
                    plain_instead += plain.mean * one.tokens
        compared = spent > 0.0
        return MeasuredSpeedup(
            measured=plain_instead / spent if compared else None,
            plain_ms_per_token=plain_instead / tokens if compared else self.plain_ms_per_token,
            speculative_ms_per_token=spent / tokens if compared else None,
            plain_samples=self.plain_samples,
            speculative_samples=samples,
        )

    def plain_to_record(self) -> dict[str, Any]:
        return _cells_to_record(self._plain)

    def to_record(self, drafter: str) -> dict[str, Any]:
        return _cells_to_record(self._speculative.get(drafter, {}))

    def restore_plain(self, record: Mapping[str, Any]) -> None:
        """Take over what an earlier run measured. Raises ValueError, AttributeError, TypeError."""
        self._plain = _cells_from_record(record)

    def restore(self, drafter: str, record: Mapping[str, Any]) -> None:
        """The same for one drafter."""
        self._speculative[drafter] = _cells_from_record(record)


def _cells_to_record(cells: Mapping[Cell, _PerToken]) -> dict[str, list[float]]:
    return {f"{context}:{others}": one.to_record() for (context, others), one in cells.items()}


def _cells_from_record(record: Mapping[str, Any]) -> dict[Cell, _PerToken]:
    cells = {}
    for key, one in record.items():
        context, others = key.split(":")
        cell = cells[int(context), int(others)] = _PerToken()
        cell.restore(one)
    return cells
