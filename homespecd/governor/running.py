"""One running request: what it has shown so far, and what may be expected of the rest of it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from homespecd.governor.acceptance import RequestAcceptance
from homespecd.governor.fare import Ended, Fare, Saves
from homespecd.governor.pair import Pair
from homespecd.governor.stake import Stake

# How long answers are until some have been seen. One that is longer than all before goes on by a
# part of what it has.
_FIRST_ANSWER_TOKENS, _FIRST_REMAINING_TOKENS = 64.0, 32.0
_LONGER_TOKENS, _LONGER_PART = 4.0, 0.25

# What a token costs "of late" spans some 48 tokens, and starts out as if a few had been plain.
_FADE = 1.0 - 1.0 / 48.0
_PLAIN_PRIOR_TOKENS = 4.0
_SHARE_PRIOR_TOKENS = 8.0

# Whoever shares its steps with others that speculate may wait so much longer for them than if
# nobody did: by a fifth with one other, a tenth with three. (Taking turns would cost the more, the
# fewer there are to wait for.) Kept by an account: what it is ahead of that may be used by others,
# up to so many rounds at once; of bad luck, no more than a few are made good.
_WAITING = 0.4
_MOST_BEHIND, _MOST_AHEAD = -4.0, 24.0


def fair_stretch(lanes: int) -> float:
    """How many times longer than without proposals a step of so many slots may be on average."""
    return 1.0 + _WAITING / max(2, lanes)


@dataclass(slots=True)
class Use:
    """One drafter in one request.

    fare, saves: how it fared in requests like this one. lately: tokens of its blocks, older ones
    faded; taken: all of them; covered: those of them that another drafter would have foreseen.
    saved: plain rounds, against plain steps and other drafters, None before its first block;
    since: tokens committed from that block on.
    """

    fare: Fare
    saves: Saves | None
    acceptance: RequestAcceptance
    stake: Stake
    lately: float = 0.0
    taken: int = 0
    covered: int = 0
    saved: float | None = None
    since: int = 0

    @staticmethod
    def of(pair: Pair, beginnings: Sequence[int]) -> Use:
        """Before anything has happened: as in the requests that began alike."""
        fare = pair.fare(beginnings)
        return Use(
            fare=fare,
            saves=pair.saves(beginnings),
            acceptance=pair.acceptance.new_request(mean=fare.mean, spread=fare.spread),
            stake=Stake(fare.trust.first_stake, pair.advance),
        )

    def save(self, rounds: float) -> None:
        """A block saved so many plain rounds; from the first one on a draft is up to date."""
        self.saved = (self.saved or 0.0) + rounds


@dataclass(slots=True)
class RequestState:
    """See the module.

    beginnings: see `kinds`. lengths: tokens of the answers to requests like this one. lanes: slots
    in its last step. spent_ms, tokens: of its rounds, older ones faded. ahead_ms: how far it is
    ahead of the speed that is its due in company.
    """

    last_s: float
    beginnings: Sequence[int] = ()
    lengths: Sequence[int] = ()
    uses: dict[str, Use] = field(default_factory=dict)
    lanes: int = 1
    spent_ms: float = 0.0
    tokens: float = 0.0
    committed: int = 0
    plain_rounds: int = 0
    ahead_ms: float = 0.0

    def use_of(self, pair: Pair) -> Use:
        """What this request has shown of a drafter."""
        use = self.uses.get(pair.spec.name)
        if use is None:
            use = self.uses[pair.spec.name] = Use.of(pair, self.beginnings)
        return use

    # -- what happens ---------------------------------------------------------------------------

    def spend(self, ms: float, tokens: int, use: Use | None, *, covered: int) -> None:
        """A decoding round, plain or with a drafter; older ones fade."""
        fade = _FADE**tokens
        self.spent_ms = self.spent_ms * fade + ms
        self.tokens = self.tokens * fade + tokens
        for each in self.uses.values():
            each.stake.token(tokens)
            each.lately *= fade
        if use is None:
            self.plain_rounds += 1
        else:
            use.lately += tokens
            use.taken += tokens
            use.covered += covered

    def share(self, *, even_ms: float, spent_ms: float, tokens: int) -> None:
        """A round with others. even_ms: what it would have taken without anybody's proposals."""
        ahead_ms = (
            self.ahead_ms * _FADE**tokens + fair_stretch(self.lanes) * even_ms * tokens - spent_ms
        )
        self.ahead_ms = min(max(ahead_ms, _MOST_BEHIND * even_ms), _MOST_AHEAD * even_ms)

    def commit(self, tokens: int) -> None:
        """Tokens of the answer, in whatever way."""
        self.committed += tokens
        for use in self.uses.values():
            if use.saved is not None:
                use.since += tokens

    def retire(self, pairs: Mapping[str, Pair]) -> None:
        """It is over: what it showed of each drafter counts for the next ones."""
        if not self.committed:
            return
        for pair in pairs.values():
            use = self.use_of(pair)
            own, compared = use.acceptance.shown
            ended = Ended(
                own=own,
                compared=compared,
                left=1.0 - self._taken_anyway(use) / self.committed,
                tokens=self.committed,
                gained=use.stake.gained,
                saved=use.saved,
                since=use.since,
            )
            pair.retire(self.beginnings, ended)

    # -- what may be expected -------------------------------------------------------------------

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

    def left_to(self, use: Use) -> float:
        """The share of the tokens that no other drafter takes care of: of late, and as usual."""
        others = sum(other.lately for other in self.uses.values() if other is not use)
        taken = others + (1.0 - use.fare.left) * _SHARE_PRIOR_TOKENS
        return 1.0 - taken / (self.tokens + _SHARE_PRIOR_TOKENS)

    def token_ms(self, plain_ms: float) -> float:
        """What a token costs of late, at most a plain round."""
        ms = (self.spent_ms + _PLAIN_PRIOR_TOKENS * plain_ms) / (self.tokens + _PLAIN_PRIOR_TOKENS)
        return min(ms, plain_ms)

    def _taken_anyway(self, use: Use) -> int:
        """Tokens that would have come as quickly without the drafter."""
        others = sum(other.taken for other in self.uses.values() if other is not use)
        return others + use.covered
