"""All that is known of one drafter with this target: the parts, put together for the governor."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from homespecd.governor.acceptance import PairAcceptance
from homespecd.governor.draft_costs import DraftCurve
from homespecd.governor.fare import Ended, Fare, Saves
from homespecd.governor.kinds import Kinds
from homespecd.governor.levels import finite
from homespecd.governor.protocol import DrafterStanding, MeasuredSpeedup, Reason
from homespecd.governor.stake import Advance
from homespecd.governor.switch import Backoff, PairSwitch

# How many of the tokens were the drafter's where it had an offer, over some 250, or all there were
# so far and a few more that would have been. It counts as in use from the upper share on, until
# it falls below the lower one: kinds of answers take turns, and the state shown must not flicker
# with them.
_USE_RATE = 1 / 256
_USE_PRIOR_OFFERS = 4.0
_MOST_USE_RATE = 0.25
_USED, _UNUSED = 0.15, 0.03
# One that was measured slower counts as given up sooner than one that wins when it is taken.
_UNUSED_SLOWER = 0.7

# Until a drafter has had so many rounds, or was passed over so often, its state is "warming up".
_WARM_ROUNDS, _WARM_OFFERS = 8, 64

# What the first try of a drafter may cost, in plain rounds: a model has a prompt to read for it.
_CREDIT_ROUNDS = 12.0

_ROW_RATE = 0.05
_MOST_ROW_MS = 1e5


@dataclass(frozen=True)
class DrafterSpec:
    """A drafter as the governor needs it.

    max_k: the most tokens it may propose at once. key: what its history is kept under (a draft
    model's digest); "" = its name.
    """

    name: str
    max_k: int
    key: str = ""


class Pair:
    """One drafter: acceptance, cost, verdict, and when to probe it."""

    def __init__(
        self, spec: DrafterSpec, min_speedup: float, draft_ms: Mapping[int, float] | None
    ) -> None:
        self.spec = spec
        self.key = spec.key or spec.name
        self.acceptance = PairAcceptance()
        self.cost = DraftCurve(draft_ms)
        self.switch = PairSwitch(min_speedup)
        self.probes = Backoff()
        self.advance = Advance()
        self._fares = Kinds(Fare())
        self.rounds = 0
        self.row_ms = 0.0
        self._use = 1.0
        self._min_speedup = min_speedup
        self._used = True
        self._offered = 0
        # Plain rounds that finding out about a drafter nobody knows may cost, once.
        self.credit = _CREDIT_ROUNDS

    def observe_rows(self, ms: float, proposed: int) -> None:
        """What a round took besides draft and step, over that of a plain round."""
        per_row = min(max(0.0, ms) / proposed, 3.0 * self.row_ms + 0.1)
        self.row_ms += _ROW_RATE * (per_row - self.row_ms)

    def considered(self, *, used: bool, tokens: float = 1.0) -> None:
        """It had an offer, and was taken or not, in a round of so many tokens."""
        self._offered += 1
        rate = max(_USE_RATE, 1.0 / (self._offered + _USE_PRIOR_OFFERS))
        rate = min(rate * tokens, _MOST_USE_RATE)
        self._use += rate * (used - self._use)
        self._used = self._use >= (_UNUSED if self._used else _USED)

    def fare(self, beginnings: Sequence[int]) -> Fare:
        """How it fared in the requests most like one that begins so."""
        return self._fares.nearest(beginnings)

    def saves(self, beginnings: Sequence[int]) -> Saves | None:
        """What it has saved for each token in the requests most like one that begins so; None where
        it was never used in any."""
        for narrower, fare in enumerate(self._fares.wider(beginnings)):
            if fare.saved is not None:
                return Saves(fare.saved, here=narrower == 0)
        return None

    def retire(self, beginnings: Sequence[int], ended: Ended) -> None:
        """A request is over: what it showed counts for the next ones, of its kind above all."""
        for fare in self._fares.passed(beginnings):
            fare.learn(ended)
        if ended.own is not None:
            moved = self.acceptance.fold(ended.own, ended.compared)
            for fare in self._fares.each():
                fare.mean -= moved

    def doubt(self) -> None:
        """The machine has changed its pace: what it gained and lost before says little."""
        self.switch.doubt()
        self.probes.new_request()
        for fare in self._fares.each():
            fare.doubt()

    @property
    def in_use(self) -> bool:
        return self.switch.on and self._used and self.rounds > 0

    @property
    def warm(self) -> bool:
        """Known well enough to say how it stands: tried, or not worth a try for long enough."""
        return self.rounds >= _WARM_ROUNDS or self._offered >= _WARM_OFFERS

    def standing(self, speedup: MeasuredSpeedup) -> DrafterStanding:
        slower = speedup.measured is not None and speedup.measured < self._min_speedup
        if not self.warm:
            reason = Reason.WARMING_UP
        elif not self.in_use or (slower and self._use < _UNUSED_SLOWER):
            reason = Reason.SLOWER_THAN_PLAIN
        else:
            reason = Reason.SPECULATING
        k = max(1, round((self.acceptance.proposed or 1) / max(1, self.acceptance.rounds)))
        return DrafterStanding(
            name=self.spec.name,
            reason=reason,
            k=min(k, self.spec.max_k) if reason is Reason.SPECULATING else 0,
            acceptance_rate=self.acceptance.rate,
            acceptance_length=self.acceptance.length,
            draft_ms=self.cost.price(min(k, self.spec.max_k)) if self.rounds else None,
            speedup=speedup,
        )

    def to_record(self) -> dict[str, Any]:
        return {
            "acceptance": self.acceptance.to_record(),
            "cost": self.cost.to_record(),
            "switch": self.switch.to_record(),
            "probe_gap": self.probes.to_record(),
            "advance": self.advance.to_record(),
            "fares": self._fares.to_record(),
            "credit": self.credit,
            "rounds": self.rounds,
            "row_ms": self.row_ms,
            "offered": self._offered,
            "use": [self._use, float(self._used)],
        }

    def restore(self, record: Mapping[str, Any]) -> None:
        """Take over what an earlier run learned. Raises ValueError, KeyError or TypeError."""
        self.acceptance.restore(record["acceptance"])
        self.cost.restore(record["cost"])
        self.switch.restore(record["switch"])
        self.probes.restore(record["probe_gap"])
        self.advance.restore(record["advance"])
        self._fares.restore(record["fares"], Fare.from_record)
        self.credit = finite(record["credit"], 0.0, _CREDIT_ROUNDS)
        self.rounds = int(finite(record["rounds"], 0, 1e15))
        self.row_ms = finite(record["row_ms"], 0.0, _MOST_ROW_MS)
        self._offered = int(finite(record["offered"], 0, 1e15))
        self._use, used = (finite(one, 0.0, 1.0) for one in record["use"])
        self._used = used > 0.5
