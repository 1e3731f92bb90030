"""What a round that really ran teaches: about the text, the costs, and whether it was worth it.

The first two are learned from every round but the first few after a load; the last only from rounds
that carried no prompt, because those say something of decoding.
"""

from __future__ import annotations

from homespecd.governor.knowledge import UNREAD_FREE, Knowledge
from homespecd.governor.pair import Pair
from homespecd.governor.protocol import Reason, RoundRecord, SpeculationMode
from homespecd.governor.requests import Asked, RequestState
from homespecd.governor.speedup import circumstances
from homespecd.governor.switch import TimeBudget

# The first passes after a load touch cold weights, grow arenas and wake the clock up: several times
# slower, and no measure of anything.
_COLD_ROUNDS = 3

# A plain sample that differs less than this from the expectation tells nothing new.
_NOTHING_NEW = 0.1

# A round that takes so many times what was expected counts as that long.
_SPIKE = 2.0

# So many tokens in a row that a paused drafter would have had right end the pause.
_ENCOURAGING_RUN = 3


class Lessons:
    """Draws them, and writes them into `known` and `budget`."""

    def __init__(self, known: Knowledge, budget: TimeBudget) -> None:
        self._known = known
        self._budget = budget
        self._cold = _COLD_ROUNDS

    def learn(self, record: RoundRecord) -> None:
        """Take in one round; the choice that it answers is forgotten."""
        known = self._known
        state = known.state(record.request, record.at_s)
        asked, state.asked = state.asked, None
        state.lanes = max(1, record.lanes)
        pair = known.pairs.get(record.choice.drafter or "")
        unread = 0
        if pair is not None:
            unread = state.unread(pair.spec.name, record.context)
            state.read[pair.spec.name] = record.context + record.accepted
        self._acceptance(record, asked, pair, state)
        if self._cold:
            self._cold -= 1
            return
        others = max(0, record.total_rows - record.rows)
        single_ms = known.plain_ms(1 + others, record.context, record.lanes)
        known.learn_costs(record, pair, unread)
        if record.catch_up or record.committed <= 0:
            return
        self._time(record, state, single_ms)
        if asked is not None and unread <= UNREAD_FREE and others == asked.situation.other_rows:
            known.learn_slack(record, asked)
        if pair is None or not record.choice.k:
            state.stop.plain_round()
            self._plain(record, others, single_ms)
        else:
            known.plain_clock.round()
            pair.rounds += 1
            self._speculative(
                record, asked, pair, state, others=others, unread=unread, single_ms=single_ms
            )

    def _acceptance(
        self, record: RoundRecord, asked: Asked | None, pair: Pair | None, state: RequestState
    ) -> None:
        """What was right and wrong, of the drafter that proposed and of those that would have."""
        matches = asked.situation.matches if asked is not None else {}
        offers = asked.situation.offers if asked is not None else {}
        seen = record.foreseen if pair is None else (pair.spec.name,)
        for name, running in state.acceptance.items():
            if name not in seen:
                running.lose_track(offered=offers.get(name, 0) > 0)
        if pair is None:
            for name, right in record.foreseen.items():
                if name in self._known.pairs:
                    running = state.acceptance_of(self._known.pairs[name])
                    running.foresee(right=right, match=matches.get(name))
                    if running.run >= _ENCOURAGING_RUN:
                        state.stop.resume()
        elif record.proposed:
            accepted = min(record.accepted, record.proposed)
            pair.acceptance.count(record.proposed, accepted)
            state.acceptance_of(pair).see(
                proposed=record.proposed,
                accepted=accepted,
                refused=record.committed > accepted,
                match=matches.get(pair.spec.name),
            )

    def _time(self, record: RoundRecord, state: RequestState, single_ms: float) -> None:
        """Whose time it was: the request's, the drafters' shares, the budget's."""
        drafter = record.choice.drafter if record.choice.k else None
        # Each of those who share a step reports the same time; together they have one such share.
        self._budget.elapse(record.wall_ms / max(1, record.lanes), single_ms)
        if record.choice.reason is Reason.PROBING:
            self._budget.spend(record.wall_ms)
        state.spend(record.wall_ms, record.committed, drafter)
        for name, pair in self._known.pairs.items():
            pair.round(record.committed, other=drafter is not None and name != drafter)

    def _plain(self, record: RoundRecord, others: int, single_ms: float) -> None:
        """A sample of the baseline, taken on purpose or not."""
        known = self._known
        known.meter.add_plain(circumstances(record.context, others), record.wall_ms)
        if record.choice.reason is Reason.PROBING:
            off = record.wall_ms / (single_ms * known.slack)
            if abs(off - 1.0) < _NOTHING_NEW:
                known.plain_clock.nothing_new()
                return
        known.plain_clock.looked()

    def _speculative(
        self,
        record: RoundRecord,
        asked: Asked | None,
        pair: Pair,
        state: RequestState,
        *,
        others: int,
        unread: int,
        single_ms: float,
    ) -> None:
        """A round with a drafter: what its tokens would have cost one by one, and what they did."""
        worth_ms = single_ms * self._known.slack * record.committed
        if unread > UNREAD_FREE:
            # An investment, not a speed: it is weighed before it is made, and paid by the budget
            # when it was a probe.
            spent_ms = record.wall_ms - pair.cost.catch_up(unread)
            self._look_back(record, pair, worth=worth_ms > spent_ms)
            return
        cell = circumstances(record.context, others)
        self._known.meter.add_speculative(
            pair.key, cell, ms=record.wall_ms, tokens=record.committed
        )
        if asked is not None and asked.situation.mode is not SpeculationMode.AUTO:
            return
        # A spike is nobody's fault; a lasting change is in what is expected within a few rounds.
        spent_ms = record.wall_ms
        if asked is not None:
            spent_ms = min(spent_ms, _SPIKE * asked.expected_ms)
        pair.switch.see(plain_ms=worth_ms, spent_ms=spent_ms)
        state.stop.see(plain_ms=worth_ms, spent_ms=spent_ms, round_ms=single_ms)
        self._look_back(record, pair, worth=worth_ms > record.wall_ms)

    @staticmethod
    def _look_back(record: RoundRecord, pair: Pair, *, worth: bool) -> None:
        """Was this look at a drafter worth it? That says when the next one is due."""
        if record.choice.reason is not Reason.PROBING:
            pair.probes.looked()
        elif worth:
            pair.probes.surprised()
        else:
            pair.probes.nothing_new()
