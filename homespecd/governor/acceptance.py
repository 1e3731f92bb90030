"""How many of the next k tokens of a drafter will be accepted.

The chance of the next token depends on how many in a row have been right up to it: a copy that has
gone well for twenty tokens goes on, one that has just failed may be over, and a draft that is wrong
at every third position shows exactly that. So the log-odds of one token are a sum of three parts:
the pair's, that of the run length (position in a block included), and this request's. The first
two are the prior that survives; the last one moves within a few rounds when the text turns from a
list into prose.

Not covered: costs. A high acceptance says nothing of speed.
"""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Mapping
from typing import Any

from homespecd.governor.levels import Level, finite, share

# Run lengths that are told apart: one by one where drafts differ, coarser where a copy goes on.
_RUN_EDGES = (1, 2, 3, 4, 6, 9, 15, 24)
_RUN_OF = tuple(bisect_right(_RUN_EDGES, run) for run in range(_RUN_EDGES[-1] + 1))

# Log-odds of a draft nobody has seen: 0.62. Hopeful, so that it is tried; unsure, so that ten
# rejections in a row settle it.
_PRIOR_LOG_ODDS = 0.5

# How far requests differ from their pair's average, as a variance of log-odds: the start value (±1:
# 0.62 → 0.38 … 0.82), and the bounds of what is learned.
_SPREAD, _SPREAD_LOW, _SPREAD_HIGH = 1.0, 0.2, 3.0

# Variance a request gains per token. At 0.03, some six contradicting tokens outweigh all that was
# believed, wherever it came from; half as much takes twice as long to follow a change of subject.
_REQUEST_DRIFT = 0.03

# Tokens that a request must have shown before it counts for the pair.
_TELLING_TOKENS = 6
_SLOWEST_FOLD = 0.08
_FULL_TOKENS = 24

# Per round in which a drafter had an offer that nobody compared, what is held for or against it in
# this request shrinks towards the pair's average by so much: the text moves on.
_FORGET = 1.0 / 128.0

# Three-point Gauss-Hermite: the doubt about a request is common to all tokens of a block, so it
# must be averaged over after multiplying, not before.
_NODES = ((-math.sqrt(3.0), 1 / 6), (0.0, 2 / 3), (math.sqrt(3.0), 1 / 6))

# A token that is reached less often than this adds nothing to the expectation.
_HARDLY = 1e-3


def _run_bucket(run: int) -> int:
    return _RUN_OF[run] if run < len(_RUN_OF) else _RUN_OF[-1]


class PairAcceptance:
    """What is known of a drafter with this target, over all requests."""

    def __init__(self) -> None:
        self._base = Level(_PRIOR_LOG_ODDS, 1.0, 0.0001)
        self._runs = [Level(0.0, 0.4, 0.0001) for _ in range(len(_RUN_EDGES) + 1)]
        self._spread = _SPREAD
        self._folded = 0
        self.proposed = 0
        self.accepted = 0
        self.rounds = 0

    def count(self, proposed: int, accepted: int) -> None:
        """Of one round; for reporting only."""
        self.rounds += 1
        self.proposed += proposed
        self.accepted += accepted

    @property
    def rate(self) -> float | None:
        return self.accepted / self.proposed if self.proposed else None

    @property
    def length(self) -> float | None:
        """Tokens per speculative round, the target's own included."""
        return 1.0 + self.accepted / self.rounds if self.rounds else None

    def new_request(self) -> RequestAcceptance:
        return RequestAcceptance(self)

    def to_record(self) -> dict[str, Any]:
        return {
            "base": self._base.to_record(),
            "runs": [level.to_record() for level in self._runs],
            "spread": self._spread,
            "folded": self._folded,
            "counts": [self.proposed, self.accepted, self.rounds],
        }

    def restore(self, record: Mapping[str, Any]) -> None:
        """Take over what an earlier run learned. Raises ValueError, KeyError or TypeError."""
        self._base.restore(record["base"])
        if len(record["runs"]) != len(self._runs):
            raise ValueError("another set of run lengths")
        for level, one in zip(self._runs, record["runs"], strict=True):
            level.restore(one)
        self._spread = finite(record["spread"], _SPREAD_LOW, _SPREAD_HIGH)
        self._folded = int(finite(record["folded"], 0, 1e15))
        self.proposed, self.accepted, self.rounds = (
            int(finite(count, 0, 1e15)) for count in record["counts"]
        )
        if self.accepted > self.proposed:
            raise ValueError("more accepted than proposed")

    def _fold(self, own: Level, tokens: int) -> None:
        # By what it showed: a request that began with bad luck was given up after a few tokens, one
        # that began with good luck went on; counted alike, they would make the pair look worse.
        self._folded += 1
        weight = max(1.0 / (self._folded + 1), _SLOWEST_FOLD) * tokens / (tokens + _FULL_TOKENS)
        self._base.mean += weight * own.mean
        spread = self._spread + weight * (own.mean * own.mean - self._spread)
        self._spread = min(max(spread, _SPREAD_LOW), _SPREAD_HIGH)


class RequestAcceptance:
    """The same for one request, while it runs."""

    def __init__(self, pair: PairAcceptance) -> None:
        self._pair = pair
        self._own = Level(0.0, pair._spread, _REQUEST_DRIFT)
        self._tokens = 0
        self.run = 0  # tokens in a row that were right, up to now

    def see(self, *, proposed: int, accepted: int, refused: bool, match: int | None) -> None:
        """One verified proposal.

        refused: the token after the accepted ones was really rejected (and not cut off by a stop).
        match: the length of the match that backed it, where the drafter knows one.
        """
        run = self.run if match is None else match
        for offset in range(accepted):
            self._learn(run + offset, 1.0)
        if accepted < proposed and refused:
            self._learn(run + accepted, 0.0)
        self.run = run + accepted if accepted == proposed else 0

    def foresee(self, *, right: bool, match: int | None) -> None:
        """A token that would have been proposed in a plain round."""
        self._learn(self.run if match is None else match, 1.0 if right else 0.0)
        self.run = self.run + 1 if right else 0

    def lose_track(self, *, offered: bool) -> None:
        """A round went by in which nobody compared, whether there was an offer or not."""
        self.run = 0
        if not offered:
            return
        own = self._own
        own.mean -= _FORGET * own.mean
        own.variance += _FORGET * max(0.0, self._pair._spread - own.variance)

    def expected(self, k: int, match: int | None) -> list[float]:
        """Expected accepted tokens of a block of 0 … k, given all that was seen."""
        run = self.run if match is None else match
        pair, own = self._pair, self._own
        buckets = _RUN_OF[run : run + k]
        buckets += (_RUN_OF[-1],) * (k - len(buckets))
        odds_against = {at: math.exp(-pair._runs[at].mean) for at in set(buckets)}
        base, width = pair._base.mean + own.mean, math.sqrt(own.variance)
        sums = [0.0] * (k + 1)
        for node, weight in _NODES:
            against = math.exp(-base - node * width)
            alive, total = weight, 0.0
            for index, at in enumerate(buckets, start=1):
                alive /= 1.0 + against * odds_against[at]
                total += alive
                sums[index] += total
                if alive < _HARDLY:
                    for rest in range(index + 1, k + 1):
                        sums[rest] += total
                    break
        return sums

    @property
    def doubt(self) -> float:
        """How unsure the outlook is: 0 = this pair is always alike, 1 = could be anything."""
        return min(1.0, self._own.variance)

    def retire(self) -> None:
        """The request is over: what it showed becomes part of the pair's prior."""
        if self._tokens >= _TELLING_TOKENS:
            self._pair._fold(self._own, self._tokens)

    def _learn(self, run: int, outcome: float) -> None:
        pair = self._pair
        level = pair._runs[_run_bucket(run)]
        chance = _sigmoid(pair._base.mean + level.mean + self._own.mean)
        slope = max(chance * (1.0 - chance), 1e-4)
        share((pair._base, level, self._own), (outcome - chance) / slope, 1.0 / slope)
        self._tokens += 1


def _sigmoid(log_odds: float) -> float:
    if -30.0 < log_odds < 30.0:
        return 1.0 / (1.0 + math.exp(-log_odds))
    return 1.0 if log_odds > 0.0 else 1e-13
