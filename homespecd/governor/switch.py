"""On or off, by what was measured, with hysteresis; and the time that finding out may cost.

What was spent is the wall time of rounds that really ran, so a wrong expectation of a block is
found out by the time it loses. What its tokens would have cost otherwise is the price of plain
rounds in the same company, as learned from those that ran.
"""

from __future__ import annotations

from collections.abc import Mapping
from math import sqrt
from typing import Any

from homespecd.governor.levels import finite

# A pair is judged after so many speculative rounds, not before: the first requests after a load
# are no fair sample, and until then the expected rate and the stop-loss hold the losses down.
_JUDGED_ROUNDS = 24

# To come back, a pair that was off must win this many rounds (mostly probes), twice as many after
# each relapse. That bounds the switches: 50 requests of a borderline draft see a handful.
_RETURN_ROUNDS = 8
_LONGEST_RETURN = 128  # less than the evidence that is ever kept

# The measured ratio of n rounds is unsure by about 0.4 / sqrt(n) (blocks have 1 … 17 tokens), and
# it is looked at after each round. Within twice that, nothing is switched.
_UNSURE = 0.8

# Evidence is halved when it reaches this many rounds, so that it follows changes.
_EVIDENCE_ROUNDS = 256.0

# After so many rounds without a relapse, a pair counts as stable again.
_STABLE_ROUNDS = 1024


class PairSwitch:
    """Whether a drafter is believed to pay, from plain ÷ speculative time of its own rounds."""

    def __init__(self, min_speedup: float) -> None:
        self._min_speedup = min_speedup
        self.on = True
        self.flips = 0
        self._return_rounds = _RETURN_ROUNDS
        self._fresh()

    def _fresh(self) -> None:
        self._plain_ms = 0.0
        self._spent_ms = 0.0
        self._rounds = 0.0
        self._since_flip = 0

    def see(self, *, plain_ms: float, spent_ms: float) -> None:
        """One round: what its tokens would have cost one by one, and what they did cost."""
        self._plain_ms += plain_ms
        self._spent_ms += spent_ms
        self._rounds += 1.0
        self._since_flip += 1
        ratio = self._plain_ms / self._spent_ms if self._spent_ms > 0 else 1.0
        slack = _UNSURE / sqrt(self._rounds)
        if self.on:
            if self._rounds >= _JUDGED_ROUNDS and ratio < self._min_speedup * (1.0 - slack):
                self._flip()
            elif self._since_flip > _STABLE_ROUNDS:
                self._return_rounds = _RETURN_ROUNDS
        elif self._rounds >= self._return_rounds and ratio > self._min_speedup * (1.0 + slack):
            self._return_rounds = min(self._return_rounds * 2, _LONGEST_RETURN)
            self._flip()
        if self._rounds >= _EVIDENCE_ROUNDS:
            self._forget(0.5)

    def charge(self, ms: float) -> None:
        """What was spent besides the rounds: a text had to be read."""
        self._spent_ms += ms

    def doubt(self) -> None:
        """The machine has changed: keep the verdict, forget most of what it came from."""
        if self._rounds > 4.0:
            self._forget(4.0 / self._rounds)

    def _flip(self) -> None:
        self.on = not self.on
        self.flips += 1
        self._fresh()

    def _forget(self, keep: float) -> None:
        self._plain_ms *= keep
        self._spent_ms *= keep
        self._rounds *= keep

    def to_record(self) -> dict[str, Any]:
        return {
            "on": self.on,
            "flips": self.flips,
            "return_rounds": self._return_rounds,
            "since_flip": self._since_flip,
            "evidence": [self._plain_ms, self._spent_ms, self._rounds],
        }

    def restore(self, record: Mapping[str, Any]) -> None:
        """Take over an earlier verdict. Raises ValueError, KeyError or TypeError."""
        self.on = bool(record["on"])
        self.flips = int(finite(record["flips"], 0, 1e15))
        self._return_rounds = int(finite(record["return_rounds"], 1, _LONGEST_RETURN))
        self._since_flip = int(finite(record["since_flip"], 0, 1e15))
        self._plain_ms, self._spent_ms, self._rounds = (
            finite(one, 0.0, 1e15) for one in record["evidence"]
        )


# Of the budget, this much is spent on purpose. The rest covers what a probe brings in its train: a
# round or two that follow a lucky one, and that a probe may take longer than expected.
_ON_PURPOSE = 0.6

# A budget that was saved up may be spent at once only so far (in plain rounds), lest a long quiet
# time is followed by a burst of probes in one answer.
_SAVED_ROUNDS = 24.0


class TimeBudget:
    """Probes and plain samples together take at most this share of the time."""

    def __init__(self, share: float) -> None:
        self._share = share * _ON_PURPOSE
        self._left_ms = 0.0

    def elapse(self, ms: float, round_ms: float) -> None:
        self._left_ms = min(self._left_ms + ms * self._share, _SAVED_ROUNDS * round_ms)

    def affords(self, ms: float) -> bool:
        return self._left_ms >= ms

    def spend(self, ms: float) -> None:
        self._left_ms -= ms


# Rounds between two looks at the alternative: doubled while the answer stays the same.
_FIRST_GAP_ROUNDS = 24
_LONGEST_GAP_ROUNDS = 8192
_LONG_ROUNDS = 2048
# A new text brings the next look so many times nearer. A draft that failed in every text so far is
# still tried every 512 rounds or so; one that failed once, early in the next answer.
_SOONER = 16


class Backoff:
    """When to look again at something that did not pay the last time."""

    def __init__(self) -> None:
        self._gap = _FIRST_GAP_ROUNDS
        self._wait = _FIRST_GAP_ROUNDS
        self._since = 0

    @property
    def due(self) -> bool:
        return self._wait <= 0

    @property
    def age(self) -> float:
        """How long ago the last look was; from 1 on, one may cost more than usual."""
        return self._since / _LONG_ROUNDS

    def round(self) -> None:
        self._wait -= 1
        self._since += 1

    def nothing_new(self) -> None:
        self._gap = min(self._gap * 2, _LONGEST_GAP_ROUNDS)
        self._wait, self._since = self._gap, 0

    def surprised(self) -> None:
        """Worth another look right away."""
        self._gap = _FIRST_GAP_ROUNDS
        self._wait, self._since = 0, 0

    def looked(self) -> None:
        """It was seen without looking on purpose."""
        self._wait, self._since = self._gap, 0

    def new_request(self) -> None:
        """Another text may be another matter: a look sooner than the back-off says."""
        self._wait = min(self._wait, max(self._gap // _SOONER, _FIRST_GAP_ROUNDS // 2))

    def to_record(self) -> int:
        return self._gap

    def restore(self, record: Any) -> None:
        self._gap = int(finite(record, _FIRST_GAP_ROUNDS, _LONGEST_GAP_ROUNDS))
        self._wait = self._gap
