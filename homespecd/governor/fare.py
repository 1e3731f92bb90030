"""How a drafter has fared in requests of one kind, or in all: where the next one starts from."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, NamedTuple

from homespecd.governor.acceptance import SPREAD
from homespecd.governor.levels import finite
from homespecd.governor.stake import Trust

# Bounds of what is learned of how far requests of a kind differ, as a variance of log-odds.
_SPREAD_LOW, _SPREAD_HIGH = 0.2, 3.0

# A request that is off by so many variances speaks of a change, and counts for more.
_SURPRISE, _SURPRISE_WEIGHT = 6.0, 0.4

# The variance of a share of which nothing is known.
_ANYTHING = 1.0 / 12.0

# After so many requests in which a draft was not asked, what it saved before says nothing.
_FORGOTTEN_REQUESTS = 32
_SAVED_WEIGHT, _SAVED_TOKENS = 0.3, 24.0

# A request of so many tokens counts half as much as a long one.
_FULL_TOKENS = 24.0
# The first request of a kind counts for two thirds, none less than a tenth: kinds change as well.
_FIRST_REQUESTS, _LEAST_WEIGHT = 1.5, 0.1


class Ended(NamedTuple):
    """What a request has shown of a drafter.

    own: log-odds over the pair's average, None where too little was compared. compared: tokens of
    that. left: the share of the `tokens` committed that no other drafter took care of. gained: in
    plain rounds, what it had to read counted, None where it was not played. saved: the same, less
    what other drafters would have saved in its place, and without what it had to read. since:
    tokens that were committed from its first block on.
    """

    own: float | None
    compared: int
    left: float
    tokens: int
    gained: float | None
    saved: float | None
    since: int


class Saves(NamedTuple):
    """rate: plain rounds for each token. here: in requests of this very kind, not a wider one."""

    rate: float
    here: bool


@dataclass(slots=True)
class Fare:
    """mean, spread: of the requests' log-odds over the pair's average. left: see `Ended`; unsure:
    how much that varies, 1 = anything goes. saved: plain rounds that it saved for each token since
    its first block; None = not known."""

    requests: int = 0
    mean: float = 0.0
    spread: float = SPREAD
    left: float = 1.0
    unsure: float = 1.0
    saved: float | None = None
    idle: int = 0
    trust: Trust = field(default_factory=Trust)

    def child(self) -> Fare:
        """Of a narrower kind, of which nothing else is known yet."""
        return Fare(0, self.mean, self.spread, self.left)

    def learn(self, ended: Ended) -> None:
        """One request of the kind is over."""
        self.requests += 1
        if ended.own is not None:
            self._how_often_right(ended.own, ended.compared)
        self._how_much_left(ended.left, ended.tokens)
        if ended.saved is not None and ended.since:
            self._how_much_saved(ended.saved, ended.since)
        else:
            self.idle += 1
            if self.idle >= _FORGOTTEN_REQUESTS:
                self.saved = None
        if ended.gained is not None:
            self.trust.remember(ended.gained)

    def _how_often_right(self, own: float, compared: int) -> None:
        off = own - self.mean
        weight = self._weight
        if off * off > _SURPRISE * self.spread:
            weight = max(weight, _SURPRISE_WEIGHT)
        weight *= compared / (compared + _FULL_TOKENS)
        self.mean += weight * off
        spread = self.spread + weight * (off * off - self.spread)
        self.spread = min(max(spread, _SPREAD_LOW), _SPREAD_HIGH)

    def _how_much_left(self, left: float, tokens: int) -> None:
        off = left - self.left
        self.left += self._weight * tokens / (tokens + _FULL_TOKENS) * off
        if self.requests > 1:  # the first one differs from what was only guessed
            weight = max(1.0 / (self.requests - 0.5), _LEAST_WEIGHT)
            self.unsure += weight * (min(off * off / _ANYTHING, 1.0) - self.unsure)

    def _how_much_saved(self, saved: float, since: int) -> None:
        self.idle = 0
        rate = saved / since
        known = rate if self.saved is None else self.saved
        weight = max(_SAVED_WEIGHT, since / (since + _SAVED_TOKENS) / self.requests)
        self.saved = known + weight * (rate - known)

    @property
    def _weight(self) -> float:
        """Of the request that has just been counted."""
        return max(1.0 / (self.requests - 1 + _FIRST_REQUESTS), _LEAST_WEIGHT)

    def doubt(self) -> None:
        """Times have changed, texts have not."""
        self.saved = None
        self.trust = Trust()

    def to_record(self) -> list[Any]:
        numbers = [round(one, 4) for one in (self.mean, self.spread, self.left, self.unsure)]
        saved = None if self.saved is None else round(self.saved, 4)
        return [self.requests, *numbers, saved, self.idle, self.trust.to_record()]

    @staticmethod
    def from_record(record: Any) -> Fare:
        """Raises ValueError or TypeError when it is not sane."""
        requests, mean, spread, left, unsure, saved, idle, gained = record
        fare = Fare(
            int(finite(requests, 0, 1e15)),
            finite(mean, -30.0, 30.0),
            finite(spread, _SPREAD_LOW, _SPREAD_HIGH),
            finite(left, 0.0, 1.0),
            finite(unsure, 0.0, 1.0),
            None if saved is None else finite(saved, -1e9, 1e9),
            int(finite(idle, 0, 1e15)),
        )
        fare.trust.restore(gained)
        return fare
