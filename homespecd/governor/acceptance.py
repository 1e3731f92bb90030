"""How many of the next k tokens of a drafter will be accepted.

The chance of the next token depends on how many in a row have been right up to it: a copy that has
gone well for twenty tokens goes on, one that has just failed may be over, and a draft that is wrong
at every third position shows exactly that. So the log-odds of one token are a sum of three parts:
the pair's, that of the run length (position in a block included), and this request's. The first
two are the prior that survives; the last one starts at what is usual for its kind (see `fare`) and
moves within a few rounds when the text turns from a list into prose.

Not covered: costs. A high acceptance says nothing of speed.
"""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from homespecd.governor.levels import Level, finite, share

# Run lengths that are told apart: one by one where drafts differ, coarser where a copy goes on.
_RUN_EDGES = (1, 2, 3, 4, 6, 9, 15, 24)
_RUN_OF = tuple(bisect_right(_RUN_EDGES, run) for run in range(_RUN_EDGES[-1] + 1))
_LONG_RUN = len(_RUN_OF)

# Log-odds of a draft nobody has seen: 0.62. Hopeful, so that it is tried; unsure, so that ten
# rejections in a row settle it.
_PRIOR_LOG_ODDS = 0.5

# How far requests differ from the average until that is learned, as a variance of log-odds
# (±1: 0.62 → 0.38 … 0.82).
SPREAD = 1.0

# Variance a request gains per token. At 0.03, some six contradicting tokens outweigh all that was
# believed, wherever it came from; half as much takes twice as long to follow a change of subject.
_REQUEST_DRIFT = 0.03

# Tokens that a request must have shown before it counts for the pair and its kind.
_TELLING_TOKENS = 6
_EARLY_TOKENS = 48
_SLOWEST_FOLD = 0.08
_FULL_TOKENS = 24

# Per round in which a drafter had an offer that nobody compared, what is held for or against it in
# this request shrinks towards the average of its kind by so much: the text moves on.
_FORGET = 1.0 / 128.0

# Three-point Gauss-Hermite: the doubt about a request is common to all tokens of a block, so it
# must be averaged over after multiplying, not before. The outer points lie this many standard
# deviations out and weigh a sixth each.
_OUT = math.sqrt(3.0)
_OUTER, _MIDDLE = 1.0 / 6.0, 2.0 / 3.0


def _run_bucket(run: int) -> int:
    return _RUN_OF[run] if run < _LONG_RUN else _RUN_OF[-1]


@dataclass(frozen=True, slots=True)
class Outlook:
    """Accepted tokens of a block of 0 … k tokens.

    expected: on average. at_worst: if this text suits the drafter as little as one in twenty does.
    """

    expected: list[float]
    at_worst: list[float]


class PairAcceptance:
    """What is known of a drafter with this target, over all requests."""

    def __init__(self) -> None:
        self._base = Level(_PRIOR_LOG_ODDS, 1.0, 0.0001)
        self._runs = [Level(0.0, 0.4, 0.0001) for _ in range(len(_RUN_EDGES) + 1)]
        self.odds_against = [1.0] * len(self._runs)  # e^-mean of each run length
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

    def new_request(self, *, mean: float = 0.0, spread: float = SPREAD) -> RequestAcceptance:
        """mean, spread: how requests of its kind differ from the average (log-odds, variance)."""
        return RequestAcceptance(self, mean, spread)

    def fold(self, own: float, tokens: int) -> float:
        """A request is over that was so far off the average; returns how far that has moved."""
        # By what it showed: a request that began with bad luck was given up after a few tokens, one
        # that began with good luck went on; counted alike, they would make the pair look worse.
        self._folded += 1
        weight = max(1.0 / self._folded, _SLOWEST_FOLD) * tokens / (tokens + _FULL_TOKENS)
        self._base.mean += weight * own
        return weight * own

    def to_record(self) -> dict[str, Any]:
        return {
            "base": self._base.to_record(),
            "runs": [level.to_record() for level in self._runs],
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
        self.odds_against = [math.exp(-level.mean) for level in self._runs]
        self._folded = int(finite(record["folded"], 0, 1e15))
        self.proposed, self.accepted, self.rounds = (
            int(finite(count, 0, 1e15)) for count in record["counts"]
        )
        if self.accepted > self.proposed:
            raise ValueError("more accepted than proposed")


class RequestAcceptance:
    """The same for one request, while it runs."""

    def __init__(self, pair: PairAcceptance, mean: float, spread: float) -> None:
        self._pair = pair
        self._mean, self._spread = mean, spread
        self._own = Level(mean, spread, _REQUEST_DRIFT)
        self._early = mean
        self._tokens = 0
        self.run = 0  # tokens in a row that were right, up to now

    def see(self, *, proposed: int, accepted: int, refused: bool, match: int | None) -> None:
        """One verified proposal.

        refused: the token after the accepted ones was really rejected (and not cut off by a stop).
        match: the length of the match that backed it, where the drafter knows one.
        """
        run = self.run if match is None else match
        at, end = run, run + accepted
        while at < end:
            bucket = _run_bucket(at)
            alike = min(end, _RUN_EDGES[bucket]) - at if bucket < len(_RUN_EDGES) else end - at
            self._learn(bucket, 1.0, alike)
            at += alike
        if accepted < proposed and refused:
            self._learn(_run_bucket(end), 0.0, 1)
        self.run = end if accepted == proposed else 0

    def foresee(self, *, right: bool, match: int | None) -> None:
        """A token that would have been proposed in a plain round."""
        self._learn(_run_bucket(self.run if match is None else match), 1.0 if right else 0.0, 1)
        self.run = self.run + 1 if right else 0

    def lose_track(self, *, offered: bool) -> None:
        """A round went by in which nobody compared, whether there was an offer or not."""
        self.run = 0
        if not offered:
            return
        own = self._own
        own.mean += _FORGET * (self._mean - own.mean)
        own.variance += _FORGET * max(0.0, self._spread - own.variance)

    def outlook(self, k: int, match: int | None) -> Outlook:
        """What a block of up to k tokens promises, given all that was seen."""
        run = self.run if match is None else match
        own, odds_against = self._own, self._pair.odds_against
        middle = math.exp(-self._pair._base.mean - own.mean)
        spread = math.exp(_OUT * math.sqrt(own.variance))
        low, high = middle * spread, middle / spread
        alive_low = alive_middle = alive_high = 1.0
        sum_low = sum_middle = sum_high = 0.0
        expected, at_worst = [0.0], [0.0]
        for at in range(run, run + k):
            against = odds_against[_RUN_OF[at] if at < _LONG_RUN else _RUN_OF[-1]]
            alive_low /= 1.0 + low * against
            alive_middle /= 1.0 + middle * against
            alive_high /= 1.0 + high * against
            sum_low += alive_low
            sum_middle += alive_middle
            sum_high += alive_high
            expected.append(_MIDDLE * sum_middle + _OUTER * (sum_low + sum_high))
            at_worst.append(sum_low)
        return Outlook(expected, at_worst)

    @property
    def shown(self) -> tuple[float | None, int]:
        """How far this request is off the pair's average (None: too early to say), and tokens."""
        return (self._early if self._tokens >= _TELLING_TOKENS else None), self._tokens

    def _learn(self, bucket: int, outcome: float, tokens: int) -> None:
        """So many tokens of this run length came out as one."""
        pair = self._pair
        level = pair._runs[bucket]
        chance = _sigmoid(pair._base.mean + level.mean + self._own.mean)
        slope = max(chance * (1.0 - chance), 1e-4)
        noise = 1.0 / (slope * tokens)
        share((pair._base, level, self._own), (outcome - chance) / slope, noise)
        pair.odds_against[bucket] = math.exp(-level.mean)
        if self._tokens < _EARLY_TOKENS:
            self._early = self._own.mean
        self._tokens += tokens


def _sigmoid(log_odds: float) -> float:
    if -30.0 < log_odds < 30.0:
        return 1.0 / (1.0 + math.exp(-log_odds))
    return 1.0 if log_odds > 0.0 else 1e-13
