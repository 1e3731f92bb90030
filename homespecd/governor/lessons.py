"""What a round that really ran teaches: about the text at once, about the machine now and then.

What comes next in a text depends on what was just right or wrong, so that is learned before the
next decision. Costs, the measured speed-up and the verdicts change slowly: they are learned from a
handful of rounds together, which costs a fraction of taking them one by one (see `backlog`).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from homespecd.governor.knowledge import UNREAD_FREE, Knowledge
from homespecd.governor.pair import Pair
from homespecd.governor.protocol import Reason, RoundRecord, SpeculationMode
from homespecd.governor.requests import Asked
from homespecd.governor.running import RequestState
from homespecd.governor.speedup import circumstances
from homespecd.governor.switch import TimeBudget

# A plain sample that differs less than this from the expectation tells nothing new.
_NOTHING_NEW = 0.1
# One that differs by more wants another look at once: a spike, or a machine at another pace.
_ASTONISHING = 0.3

# A round that takes so many times what was expected counts as that long.
_SPIKE = 2.0


class Seen(NamedTuple):
    """A round whose text has been learned from.

    pair: the drafter it asked. unread: rows that its draft had to catch up on, read_ms: what that
    took. single_ms: a plain round in the same company. instead_ms: what a token costs in this
    request otherwise. worth_ms: what its tokens would have cost one by one; spent_ms: what they did
    cost, the reading and the rows of a prompt left out.
    """

    record: RoundRecord
    asked: Asked | None
    pair: Pair | None
    unread: int
    read_ms: float
    others: int
    single_ms: float
    instead_ms: float
    worth_ms: float
    spent_ms: float


class Lessons:
    """Draws them, and writes them into `known` and `budget`."""

    def __init__(self, known: Knowledge, budget: TimeBudget) -> None:
        self._known = known
        self._budget = budget

    # -- the text -------------------------------------------------------------------------------

    def of_text(self, record: RoundRecord, asked: Asked | None, *, cold: bool) -> Seen:
        """What was right and wrong, and what that meant for the request's account.

        cold: one of the first rounds after a load, whose times say nothing.
        """
        known = self._known
        beginnings = asked.situation.beginnings if asked is not None else ()
        state = known.state(record.request, record.at_s, beginnings)
        state.lanes = max(1, record.lanes)
        choice = record.choice
        pair = known.pairs.get(choice.drafter) if choice.drafter is not None else None
        unread, read_ms = 0, 0.0
        if pair is not None and asked is not None:
            unread = asked.situation.unread.get(pair.spec.name, 0)
            if unread > UNREAD_FREE:
                tokens = record.proposed + record.impossible
                read_ms = max(0.0, record.draft_ms - pair.cost.price(tokens))
        self._acceptance(record, asked, pair, state)
        others = max(0, record.total_rows - record.rows)
        single_ms = known.plain_ms(1 + others, record.context, record.lanes)
        instead_ms = state.token_ms(single_ms)
        worth_ms = single_ms * known.slack * record.committed
        spent_ms = record.wall_ms - read_ms
        if record.catch_up:
            # The prompt's rows made it long, and its tokens are real: as if it had carried none.
            spent_ms = single_ms + record.draft_ms - read_ms
            spent_ms += known.more_rows_ms(record)
        elif asked is not None and asked.expected_ms:
            # A spike is nobody's fault; a lasting change is in what is expected within a while.
            spent_ms = min(spent_ms, _SPIKE * asked.expected_ms)
        if not cold and record.committed > 0:
            use = state.use_of(pair) if pair is not None and choice.k else None
            if not record.catch_up:
                state.spend(record.wall_ms, record.committed, use, covered=record.covered)
                if record.lanes > 1:
                    even_rows = record.total_rows - record.total_proposed
                    even_ms = known.plain_ms(even_rows, record.context, record.lanes)
                    state.share(even_ms=even_ms, spent_ms=spent_ms, tokens=record.committed)
            if use is not None and pair is not None:
                rounds = spent_ms / (single_ms * known.slack)
                use.save(record.committed - record.covered - rounds)
                if _counts(asked):
                    use.stake.see(plain_ms=worth_ms, spent_ms=spent_ms, round_ms=single_ms)
                    if read_ms:
                        use.stake.invest(read_ms / single_ms)
        state.commit(record.committed)
        return Seen(
            record, asked, pair, unread, read_ms, others, single_ms, instead_ms, worth_ms, spent_ms
        )

    def _acceptance(
        self, record: RoundRecord, asked: Asked | None, pair: Pair | None, state: RequestState
    ) -> None:
        """Of the drafter that proposed, and of those that would have."""
        if pair is None and not record.foreseen and not state.uses:
            return
        matches = asked.situation.matches if asked is not None else {}
        offers = asked.situation.offers if asked is not None else {}
        seen = record.foreseen if pair is None else (pair.spec.name,)
        for name, use in state.uses.items():
            if name not in seen:
                use.acceptance.lose_track(offered=offers.get(name, 0) > 0)
        if pair is None:
            for name, right in record.foreseen.items():
                other = self._known.pairs.get(name)
                if other is not None:
                    use = state.use_of(other)
                    use.acceptance.foresee(right=right, match=matches.get(name))
                    if right:
                        use.stake.encourage()
            return
        # What the grammar took off a proposal was wrong as well, and known to be before the step.
        proposed = record.proposed + record.impossible
        if proposed:
            accepted = min(record.accepted, proposed)
            pair.acceptance.count(proposed, accepted)
            state.use_of(pair).acceptance.see(
                proposed=proposed,
                accepted=accepted,
                refused=record.committed > accepted,
                match=matches.get(pair.spec.name),
            )

    # -- the machine ------------------------------------------------------------------------------

    def of_machine(self, rounds: Sequence[Seen]) -> None:
        """Costs, both sides of the measured speed-up, verdicts, and when to look again."""
        known = self._known
        known.learn_costs([(one.record, one.pair, one.unread) for one in rounds])
        for one in rounds:
            record, pair = one.record, one.pair
            if record.committed <= 0:
                continue
            if one.read_ms and pair is not None:
                self._reading(one, pair)
            if record.catch_up:
                continue
            self._time(one)
            asked = one.asked
            if one.unread <= UNREAD_FREE and (
                asked is None or one.others == asked.situation.other_rows
            ):
                expected_ms = asked.expected_ms if asked is not None else 0.0
                known.learn_slack(record, expected_ms or one.single_ms)
            if pair is None or not record.choice.k:
                self._plain(one)
            else:
                known.plain_clock.round()
                pair.rounds += 1
                self._speculative(one, pair)

    def _time(self, one: Seen) -> None:
        """Whose time it was: the drafters' shares, and the budget's."""
        record, pair = one.record, one.pair
        drafter = record.choice.drafter if record.choice.k else None
        # Each of those who share a step reports the same time; together they have one such share.
        self._budget.elapse(record.wall_ms / max(1, record.lanes), one.single_ms)
        if record.choice.reason is Reason.PROBING:
            # What it cost is what the same tokens would not have cost otherwise.
            instead_ms = one.single_ms if drafter is not None else one.instead_ms
            if pair is not None and pair.credit:
                pair.credit = 0.0  # the first look is on the house
            else:
                self._budget.spend(max(0.0, record.wall_ms - instead_ms * record.committed))

    def _plain(self, one: Seen) -> None:
        """A sample of the baseline, taken on purpose or not."""
        known, record = self._known, one.record
        known.meter.add_plain(circumstances(record.context, one.others), record.wall_ms)
        if record.choice.reason is Reason.PROBING:
            off = record.wall_ms / (one.single_ms * known.slack)
            if abs(off - 1.0) < _NOTHING_NEW:
                known.plain_clock.nothing_new()
                return
            if abs(off - 1.0) > _ASTONISHING:
                known.plain_clock.surprised()
                return
        known.plain_clock.looked()

    def _reading(self, one: Seen, pair: Pair) -> None:
        """A draft has read a text: that is a part of what its tokens cost.

        The first of them, too, if they came with the prompt's last rows: of a short answer, that
        may be all there are.
        """
        record, meter = one.record, self._known.meter
        cell = circumstances(record.context, one.others)
        meter.add_reading(pair.key, cell, one.read_ms)
        if record.catch_up:
            meter.add_speculative(pair.key, cell, ms=one.spent_ms, tokens=record.committed)
        if _counts(one.asked):
            pair.switch.charge(one.read_ms)
            if record.catch_up:
                pair.switch.see(plain_ms=one.worth_ms, spent_ms=one.spent_ms)

    def _speculative(self, one: Seen, pair: Pair) -> None:
        """A round with a drafter: what its tokens would have cost one by one, and what they did."""
        record = one.record
        cell = circumstances(record.context, one.others)
        own_ms = record.wall_ms - one.read_ms
        self._known.meter.add_speculative(pair.key, cell, ms=own_ms, tokens=record.committed)
        if not _counts(one.asked):
            return
        pair.switch.see(plain_ms=one.worth_ms, spent_ms=one.spent_ms)
        self._look_back(record, pair, worth=one.worth_ms > own_ms)

    @staticmethod
    def _look_back(record: RoundRecord, pair: Pair, *, worth: bool) -> None:
        """Was this look at a drafter worth it? That says when the next one is due."""
        if record.choice.reason is not Reason.PROBING:
            pair.probes.looked()
        elif worth:
            pair.probes.surprised()
        else:
            pair.probes.nothing_new()


def _counts(asked: Asked | None) -> bool:
    """Whether a speculative round speaks for or against its drafter: nobody insisted on it."""
    return asked is None or asked.situation.mode is SpeculationMode.AUTO
