"""What the governor remembers of each running request.

Requests have no end here: a client may be gone without a word. One that has been silent for a while
is retired when the next one starts, and its acceptance becomes part of the pair's prior.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from homespecd.governor.acceptance import RequestAcceptance
from homespecd.governor.fare import Ended, Fare, Saves
from homespecd.governor.kinds import Kinds
from homespecd.governor.levels import finite
from homespecd.governor.pair import Pair
from homespecd.governor.protocol import Situation
from homespecd.governor.stake import Stake

# A round of the slowest model that is any use takes less; coming back after it costs no more than
# the request's own acceptance, learned again in a few rounds.
SILENT_S = 2.0
_MOST_REQUESTS = 64

# How long answers are until some have been seen; so many of the last ones are remembered. An answer
# that is longer than all of them goes on by a part of what it has.
_FIRST_ANSWER_TOKENS, _FIRST_REMAINING_TOKENS = 64.0, 32.0
_REMEMBERED_ANSWERS = 16
_LONGER_TOKENS, _LONGER_PART = 4.0, 0.25

# What a token costs "of late" spans some 48 tokens, and starts out as if a few had been plain.
_FADE = 1.0 - 1.0 / 48.0
_PLAIN_PRIOR_TOKENS = 4.0
_SHARE_PRIOR_TOKENS = 8.0

# Whoever shares its steps with others that speculate decodes at no less than a tenth below the
# speed it would have if nobody did. Kept by an account: what it is ahead of that may be used by
# others, up to so many rounds at once; of bad luck, no more than a few are made good.
FAIR_STRETCH = 1.1
_MOST_BEHIND, _MOST_AHEAD = -4.0, 24.0


class Company(NamedTuple):
    """Those who share a step: tokens that they expect of it and rows that they propose, together.

    ahead_ms: of the one of them that is least ahead of its fair speed.
    """

    tokens: float
    proposed: int
    ahead_ms: float


ALONE = Company(0.0, 0, float("inf"))


class Asked(NamedTuple):
    """A choice whose round has not been reported yet.

    tokens: what this slot expects of it. proposed: rows of it. expected_ms: 0 where nobody looked.
    considered: whether the drafters with an offer were weighed, or passed over unseen.
    """

    at_s: float
    situation: Situation
    tokens: float = 1.0
    proposed: int = 0
    expected_ms: float = 0.0
    considered: bool = True


@dataclass(slots=True)
class RequestState:
    """One request: its acceptance per drafter, how far each draft has read, what it may lose."""

    last_s: float
    acceptance: dict[str, RequestAcceptance] = field(default_factory=dict)
    stakes: dict[str, Stake] = field(default_factory=dict)
    lanes: int = 1
    spent_ms: float = 0.0
    tokens: float = 0.0
    committed: int = 0
    plain_rounds: int = 0
    served: dict[str, float] = field(default_factory=dict)
    beginnings: Sequence[int] = ()
    lengths: Sequence[int] = ()
    fares: dict[str, Fare] = field(default_factory=dict)
    hopes: dict[str, Saves | None] = field(default_factory=dict)
    taken: dict[str, int] = field(default_factory=dict)
    covered: dict[str, int] = field(default_factory=dict)
    saved: dict[str, float] = field(default_factory=dict)
    since: dict[str, int] = field(default_factory=dict)
    ahead_ms: float = 0.0

    def fare_of(self, pair: Pair) -> Fare:
        """How the drafter fared in requests like this one."""
        fare = self.fares.get(pair.spec.name)
        if fare is None:
            fare = self.fares[pair.spec.name] = pair.fare(self.beginnings)
        return fare

    def saves(self, pair: Pair) -> Saves | None:
        """What the draft has saved in requests like this one."""
        name = pair.spec.name
        if name not in self.hopes:
            self.hopes[name] = pair.saves(self.beginnings)
        return self.hopes[name]

    def acceptance_of(self, pair: Pair) -> RequestAcceptance:
        """This request's acceptance of one drafter, from the pair's prior on."""
        running = self.acceptance.get(pair.spec.name)
        if running is None:
            fare = self.fare_of(pair)
            running = pair.acceptance.new_request(mean=fare.mean, spread=fare.spread)
            self.acceptance[pair.spec.name] = running
        return running

    def stake_of(self, pair: Pair) -> Stake:
        """What one drafter may still lose in this request."""
        stake = self.stakes.get(pair.spec.name)
        if stake is None:
            first = self.fare_of(pair).trust.first_stake
            stake = self.stakes[pair.spec.name] = Stake(first, pair.advance)
        return stake

    def spend(self, ms: float, tokens: int, drafter: str | None, *, covered: int) -> None:
        """A decoding round; older ones fade."""
        for stake in self.stakes.values():
            stake.token(tokens)
        fade = _FADE**tokens
        self.spent_ms = self.spent_ms * fade + ms
        self.tokens = self.tokens * fade + tokens
        for name in self.served:
            self.served[name] *= fade
        if drafter is None:
            self.plain_rounds += 1
        else:
            self.served[drafter] = self.served.get(drafter, 0.0) + tokens
            self.taken[drafter] = self.taken.get(drafter, 0) + tokens
            self.covered[drafter] = self.covered.get(drafter, 0) + covered

    def left_to(self, pair: Pair) -> float:
        """The share of the tokens that no other drafter takes care of: of late, and as usual."""
        fare = self.fare_of(pair)
        others = sum(tokens for name, tokens in self.served.items() if name != pair.spec.name)
        taken = others + (1.0 - fare.left) * _SHARE_PRIOR_TOKENS
        return 1.0 - taken / (self.tokens + _SHARE_PRIOR_TOKENS)

    def share(self, *, even_ms: float, spent_ms: float, tokens: int) -> None:
        """A round with others. even_ms: what it would have taken without anybody's proposals."""
        ahead_ms = self.ahead_ms * _FADE**tokens + FAIR_STRETCH * even_ms * tokens - spent_ms
        self.ahead_ms = min(max(ahead_ms, _MOST_BEHIND * even_ms), _MOST_AHEAD * even_ms)

    def taken_by_others(self, pair: Pair) -> int:
        """Tokens that would have come as quickly without the drafter."""
        name = pair.spec.name
        others = sum(tokens for other, tokens in self.taken.items() if other != name)
        return others + self.covered.get(name, 0)

    def commit(self, tokens: int) -> None:
        """Tokens of the answer, in whatever way."""
        self.committed += tokens
        for name in self.since:
            self.since[name] += tokens

    def save(self, drafter: str, rounds: float) -> None:
        """What a block of a draft saved against plain rounds and other drafters; from now on, it is
        up to date."""
        self.saved[drafter] = self.saved.get(drafter, 0.0) + rounds
        self.since.setdefault(drafter, 0)

    @property
    def remaining(self) -> float:
        """How many tokens the answer surely has ahead: of those that were longer than it is now,
        three in four had more."""
        if not self.lengths:
            return max(_FIRST_REMAINING_TOKENS, _FIRST_ANSWER_TOKENS - self.committed)
        longer = sorted(one - self.committed for one in self.lengths if one > self.committed)
        if not longer:
            return max(_LONGER_TOKENS, _LONGER_PART * self.committed)
        return float(longer[(len(longer) - 1) // 4])

    def retire(self, pairs: Mapping[str, Pair]) -> None:
        """It is over: what it showed of each drafter counts for the next ones."""
        if not self.committed:
            return
        for name, pair in pairs.items():
            acceptance, stake = self.acceptance.get(name), self.stakes.get(name)
            own, compared = acceptance.shown if acceptance is not None else (None, 0)
            ended = Ended(
                own=own,
                compared=compared,
                left=1.0 - self.taken_by_others(pair) / self.committed,
                tokens=self.committed,
                gained=stake.gained if stake is not None else None,
                saved=self.saved.get(name),
                since=self.since.get(name, 0),
            )
            pair.retire(self.beginnings, ended)

    def token_ms(self, plain_ms: float) -> float:
        """What a token costs of late, at most a plain round."""
        ms = (self.spent_ms + _PLAIN_PRIOR_TOKENS * plain_ms) / (self.tokens + _PLAIN_PRIOR_TOKENS)
        return min(ms, plain_ms)


@dataclass(slots=True)
class Length:
    """Tokens of the last answers of one kind of request, or of all."""

    tokens: tuple[int, ...] = ()

    def child(self) -> Length:
        """Of a narrower kind, of which nothing is known yet."""
        return Length()

    def learn(self, tokens: int) -> None:
        """One more answer."""
        self.tokens = (*self.tokens, tokens)[-_REMEMBERED_ANSWERS:]

    def to_record(self) -> list[Any]:
        return list(self.tokens)

    @staticmethod
    def from_record(record: Any) -> Length:
        """Raises ValueError or TypeError when it is not sane."""
        return Length(tuple(int(finite(one, 0, 1e15)) for one in record)[-_REMEMBERED_ANSWERS:])


class Requests:
    """The requests that are running, as far as anyone can tell."""

    def __init__(self) -> None:
        self._states: dict[int, RequestState] = {}
        self._lengths = Kinds(Length())

    def state(
        self,
        request: int,
        now_s: float,
        beginnings: Sequence[int],
        *,
        pairs: Mapping[str, Pair],
        started: Callable[[], None],
    ) -> RequestState:
        """The request's state; `started` is called when it is new."""
        state = self._states.get(request)
        if state is None:
            self._retire(now_s, pairs)
            started()
            state = self._states[request] = RequestState(
                now_s, beginnings=beginnings, lengths=self._lengths.nearest(beginnings).tokens
            )
        state.last_s = now_s
        return state

    def least_ahead_ms(self, request: int, others: int, now_s: float) -> float:
        """Of so many others that were here last: how far the poorest is ahead."""
        running = sorted(
            (
                (state.last_s, state.ahead_ms)
                for other, state in self._states.items()
                if other != request and now_s - state.last_s <= SILENT_S
            ),
            reverse=True,
        )
        return min((ahead_ms for _, ahead_ms in running[:others]), default=0.0)

    def _retire(self, now_s: float, pairs: Mapping[str, Pair]) -> None:
        silent = [
            request for request, state in self._states.items() if now_s - state.last_s > SILENT_S
        ]
        # Insertion order: the oldest go first when there are too many.
        crowd = len(self._states) - len(silent) - _MOST_REQUESTS + 1
        if crowd > 0:
            silent += [request for request in self._states if request not in silent][:crowd]
        for request in silent:
            state = self._states.pop(request)
            for length in self._lengths.passed(state.beginnings):
                length.learn(state.committed)
            state.retire(pairs)

    def to_record(self) -> dict[str, Any]:
        return self._lengths.to_record()

    def restore(self, record: Mapping[str, Any]) -> None:
        """Take over what an earlier run learned. Raises ValueError, KeyError or TypeError."""
        self._lengths.restore(record, Length.from_record)
