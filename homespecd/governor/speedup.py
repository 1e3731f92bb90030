"""The measured speed-up: plain ÷ speculative wall time per token, from rounds that really ran.

Compared are only rounds in the same circumstances (context bucket, rows that others put into the
step) while the machine kept its pace, each with its whole wall time, and what a draft had to read
for them. Not here: rounds that carry the target's prompt, which say nothing of decoding; the caller
leaves them out.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

from homespecd.governor.grid import context_bucket
from homespecd.governor.levels import finite
from homespecd.governor.protocol import MeasuredSpeedup

Cell = tuple[int, int]

# What counts is the last hundred rounds or so: long enough to average out blocks of 1 and of 17
# tokens, short enough that a new load shows within a request.
_MEMORY_ROUNDS = 128.0

# A sample above so many times the mean is another program's doing and counts as that much.
_SPIKE = 3.0
_SETTLED = 4

# After a change of the machine's pace, what was compared before weighs as this many rounds: fewer
# than a text has, so that new ones soon have more to say, and more than a probe or two. In the end
# nothing is left of it.
_DOUBTED_ROUNDS = 8.0

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

    @property
    def mean(self) -> float:
        return self.ms / self.tokens

    def add(self, ms: float, tokens: int) -> None:
        if self.rounds >= _SETTLED:
            ms = min(ms, _SPIKE * max(self.mean * tokens, self.ms / self.rounds))
        keep = 1.0 - 1.0 / _MEMORY_ROUNDS
        self.ms = self.ms * keep + ms
        self.tokens = self.tokens * keep + tokens
        self.rounds = self.rounds * keep + 1.0

    def to_record(self) -> list[float]:
        return [self.ms, self.tokens, self.rounds]

    def restore(self, record: Any) -> None:
        self.ms, self.tokens, self.rounds = (finite(one, 0.0, _MANY) for one in record)
        if (self.tokens > 0.0) != (self.rounds > 0.0):
            raise ValueError("rounds without tokens, or tokens without rounds")


@dataclass(frozen=True)
class _Compared:
    """What some speculative rounds took, and what their tokens would have taken one by one."""

    plain_ms: float = 0.0
    spent_ms: float = 0.0
    tokens: float = 0.0
    rounds: float = 0.0

    def __add__(self, other: _Compared) -> _Compared:
        return _Compared(
            self.plain_ms + other.plain_ms,
            self.spent_ms + other.spent_ms,
            self.tokens + other.tokens,
            self.rounds + other.rounds,
        )

    def at_most(self, rounds: float) -> _Compared:
        """The same, weighing no more than so many rounds."""
        keep = min(1.0, rounds / self.rounds) if self.rounds else 1.0
        return _Compared(
            self.plain_ms * keep, self.spent_ms * keep, self.tokens * keep, self.rounds * keep
        )

    def at_pace_of(self, other: _Compared) -> _Compared:
        """The same ratio, from times at which a plain token took what it took the other: else
        rounds at a slow pace would weigh more than as many at a quick one."""
        if not (self.plain_ms and other.plain_ms):
            return self
        pace = other.plain_ms / other.tokens * self.tokens / self.plain_ms
        return replace(self, plain_ms=self.plain_ms * pace, spent_ms=self.spent_ms * pace)

    def to_record(self) -> list[float]:
        return [self.plain_ms, self.spent_ms, self.tokens, self.rounds]

    @classmethod
    def from_record(cls, record: Any) -> _Compared:
        """Raises ValueError or TypeError."""
        plain_ms, spent_ms, tokens, rounds = (finite(number, 0.0, _MANY) for number in record)
        one = cls(plain_ms, spent_ms, tokens, rounds)
        positive = {number > 0.0 for number in (plain_ms, spent_ms, tokens, rounds)}
        if len(positive) > 1:
            raise ValueError("rounds, time or tokens without the others")
        return one


class _Drafter:
    """The speculative side of one drafter.

    before: what was compared at an earlier pace of the machine. Its times say nothing of today, but
    its ratio does: both sides of it ran at that pace.
    """

    def __init__(self) -> None:
        self.cells: dict[Cell, _PerToken] = {}
        self.before = _Compared()
        self.samples = 0

    def cell(self, cell: Cell) -> _PerToken:
        return self.cells.setdefault(cell, _PerToken())

    def compared(self, plain: Mapping[Cell, _PerToken]) -> _Compared:
        since = sum(self._against(plain), _Compared())
        left = max(0.0, 1.0 - since.rounds / _MEMORY_ROUNDS)
        return self.before.at_most(_DOUBTED_ROUNDS * left).at_pace_of(since) + since

    def _against(self, plain: Mapping[Cell, _PerToken]) -> Iterator[_Compared]:
        for cell, one in self.cells.items():
            other = plain.get(cell)
            if other is not None and other.tokens and one.tokens:
                yield _Compared(other.mean * one.tokens, one.ms, one.tokens, one.rounds)

    def start_anew(self, plain: Mapping[Cell, _PerToken]) -> None:
        self.before = self.compared(plain).at_most(_DOUBTED_ROUNDS)
        # A text that was read for rounds still to come is paid for by those.
        self.cells = {cell: one for cell, one in self.cells.items() if not one.tokens}

    def to_record(self) -> dict[str, Any]:
        return {
            "cells": _cells_to_record(self.cells),
            "before": self.before.to_record(),
            "samples": self.samples,
        }

    def restore(self, record: Mapping[str, Any]) -> None:
        self.cells = _cells_from_record(record["cells"])
        self.before = _Compared.from_record(record["before"])
        self.samples = int(finite(record["samples"], 0, _MANY))


class SpeedupMeter:
    """Both sides, per circumstances; the speculative side per drafter."""

    def __init__(self) -> None:
        self._plain: dict[Cell, _PerToken] = {}
        self._plain_before_ms: float | None = None
        self._drafters: dict[str, _Drafter] = {}
        self.plain_samples = 0

    def add_plain(self, cell: Cell, ms: float) -> None:
        self.plain_samples += 1
        self._plain.setdefault(cell, _PerToken()).add(ms, 1)

    def add_speculative(self, drafter: str, cell: Cell, *, ms: float, tokens: int) -> None:
        """A round with a proposal of this drafter that committed `tokens` ≥ 1 tokens."""
        one = self._drafter(drafter)
        one.samples += 1
        one.cell(cell).add(ms, tokens)

    def add_reading(self, drafter: str, cell: Cell, ms: float) -> None:
        """What a draft had to read before it could propose: time in which nothing came."""
        self._drafter(drafter).cell(cell).ms += ms

    def _drafter(self, drafter: str) -> _Drafter:
        return self._drafters.setdefault(drafter, _Drafter())

    def doubt(self) -> None:
        """The machine has changed its pace: a round from now on is not compared with one before,
        or whichever side ran last would win or lose by it."""
        for one in self._drafters.values():
            one.start_anew(self._plain)
        self._plain_before_ms = self.plain_ms_per_token
        self._plain = {}

    def plain_rounds(self, cell: Cell) -> float:
        """Plain rounds that count in these circumstances (faded)."""
        one = self._plain.get(cell)
        return one.rounds if one else 0.0

    @property
    def plain_ms_per_token(self) -> float | None:
        """At today's pace, once a plain round has shown it."""
        rounds = sum(one.rounds for one in self._plain.values())
        if not rounds:
            return self._plain_before_ms
        return sum(one.ms for one in self._plain.values()) / rounds

    def measured(self, drafter: str | None) -> MeasuredSpeedup:
        """The speed-up of one drafter, None = of all together."""
        if drafter is None:
            chosen = list(self._drafters.values())
        else:
            chosen = [self._drafters.get(drafter, _Drafter())]
        all_of = sum((one.compared(self._plain) for one in chosen), _Compared())
        seen = all_of.spent_ms > 0.0
        return MeasuredSpeedup(
            measured=all_of.plain_ms / all_of.spent_ms if seen else None,
            plain_ms_per_token=all_of.plain_ms / all_of.tokens if seen else self.plain_ms_per_token,
            speculative_ms_per_token=all_of.spent_ms / all_of.tokens if seen else None,
            plain_samples=self.plain_samples,
            speculative_samples=sum(one.samples for one in chosen),
        )

    def plain_to_record(self) -> dict[str, Any]:
        return {
            "cells": _cells_to_record(self._plain),
            "before": self._plain_before_ms,
            "samples": self.plain_samples,
        }

    def to_record(self, drafter: str) -> dict[str, Any]:
        return self._drafters.get(drafter, _Drafter()).to_record()

    def restore_plain(self, record: Mapping[str, Any]) -> None:
        """Take over what an earlier run measured. Raises ValueError, KeyError, AttributeError,
        TypeError."""
        before = record["before"]
        self._plain = _cells_from_record(record["cells"])
        self._plain_before_ms = None if before is None else finite(before, 0.0, _MANY)
        self.plain_samples = int(finite(record["samples"], 0, _MANY))

    def restore(self, drafter: str, record: Mapping[str, Any]) -> None:
        """The same for one drafter."""
        self._drafter(drafter).restore(record)


def _cells_to_record(cells: Mapping[Cell, _PerToken]) -> dict[str, list[float]]:
    return {f"{context}:{others}": one.to_record() for (context, others), one in cells.items()}


def _cells_from_record(record: Mapping[str, Any]) -> dict[Cell, _PerToken]:
    cells = {}
    for key, one in record.items():
        context, others = key.split(":")
        cell = cells[int(context), int(others)] = _PerToken()
        cell.restore(one)
    return cells
