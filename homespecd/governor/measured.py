"""The governor that measures: speculation exactly while it pays, per request and per pair.

A pure function of what it is told: no clock, no files, no randomness. It composes what the other
modules know (costs, acceptance, the best block, the measured speed-up, the switches), and adds the
order of the questions:

1. Is speculation asked for, and has any drafter something to say?
2. Is there a baseline? The first rounds are plain, and so is a small share of the later ones.
3. Which block promises the most tokens per millisecond, and is that enough? A pair whose measured
   time says no must promise more than one that is in good standing.
4. Has this request lost too much on speculation? Then it pauses.
5. Else plain, and now and then a probe, within the time budget.

Three layers, because each catches what the one above cannot: expectations react within a round but
may be wrong; a request's stop-loss counts real milliseconds and bounds what a wrong expectation can
cost one answer; a pair's switch counts them over requests and makes the promise for the next one.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from typing import Any

from homespecd.governor.choice import Block, Plain, best_block
from homespecd.governor.knowledge import UNREAD_FREE, Knowledge
from homespecd.governor.pair import DrafterSpec, Pair, Running
from homespecd.governor.protocol import (
    Choice,
    MeasuredSpeedup,
    Reason,
    RoundRecord,
    Situation,
    SpeculationMode,
    Standing,
)
from homespecd.governor.requests import Asked, RequestState
from homespecd.governor.speedup import circumstances
from homespecd.governor.switch import TimeBudget

__all__ = ["DrafterSpec", "MeasuredGovernor"]

# The first passes after a load touch cold weights, grow arenas and wake the clock up: several times
# slower, and no measure of anything.
_COLD_ROUNDS = 3

# Plain rounds before the first speculative one of a model that was never measured.
_BASELINE_ROUNDS = 4
# Plain rounds that circumstances (a longer context, another load) need before they are left alone.
_CELL_ROUNDS = 2

# A block must promise 3 % more than a plain step: a promise is unsure, a plain step is not. A pair
# that was measured slower must promise a quarter more; a copy from the prompt does, prose never.
_MARGIN = 1.03
_MARGIN_OFF = 1.25
# … and for each plain round that is lost when all is rejected, up to so much more, as the outlook
# is unsure: where a wide step costs seven plain ones (early CUDA kernels) or the draft must read a
# long prompt first, one wrong hope would spoil a short answer. What was read serves the rounds that
# follow as well, and weighs less.
_MARGIN_PER_ROUND = 0.03
_MARGIN_PER_READ_ROUND = 0.012

# A plain sample that differs less than this from the expectation tells nothing new.
_NOTHING_NEW = 0.1

# A round that takes so many times what was expected counts as that long.
_SPIKE = 2.0

# So many tokens in a row that a paused drafter would have had right end the pause.
_ENCOURAGING_RUN = 3


class MeasuredGovernor:
    """Implements `governor.protocol.Governor`.

    Args:
        drafters: in the order of preference, with the most tokens each may propose.
        min_speedup: the measured speed-up from which a pair is used.
        probe_budget: the share of the time that probes and plain samples may take together.
        step_ms: rows → milliseconds, measured when the model was loaded (see `calibrate`).
        draft_ms: drafter name → tokens → milliseconds, likewise; what is missing is learned.
        remembered: what `to_record` of an earlier run said; one that makes no sense is ignored.
    """

    def __init__(
        self,
        drafters: Sequence[DrafterSpec],
        *,
        min_speedup: float = 1.0,
        probe_budget: float = 0.02,
        step_ms: Mapping[int, float] | None = None,
        draft_ms: Mapping[str, Mapping[int, float]] | None = None,
        remembered: Mapping[str, Any] | None = None,
    ) -> None:
        def fresh() -> Knowledge:
            return Knowledge(
                drafters, min_speedup=min_speedup, step_ms=step_ms, draft_ms=draft_ms or {}
            )

        self._min_speedup = min_speedup
        self._budget = TimeBudget(probe_budget)
        self._cold = _COLD_ROUNDS
        self._known = fresh()
        if remembered is not None:
            try:
                self._known.restore(remembered)
            except (ValueError, KeyError, TypeError, AttributeError) as error:
                logging.getLogger(__name__).warning(
                    "what was learned earlier cannot be used (%s); measuring again", error
                )
                self._known = fresh()

    # -- the question ---------------------------------------------------------------------------

    def choose(self, now_s: float, situation: Situation) -> Choice:
        state = self._state(situation.request, now_s)
        plain = self._plain(now_s, situation, state)
        usable = {
            name: min(offer, self._known.pairs[name].spec.max_k, situation.room - 1)
            for name, offer in situation.offers.items()
            if name in self._known.pairs
        }
        usable = {name: k for name, k in usable.items() if k > 0}
        block, reason = self._decide(situation, state, plain, usable)
        choice = Choice(block.drafter, block.k, reason)
        state.asked = Asked(now_s, situation, choice, block.tokens, block.ms)
        return choice

    def _decide(
        self, situation: Situation, state: RequestState, plain: Plain, usable: Mapping[str, int]
    ) -> tuple[Block, Reason]:
        if situation.mode is SpeculationMode.OFF:
            return plain.block, Reason.DISABLED_BY_REQUEST
        if not any(name in self._known.pairs for name in situation.offers):
            return plain.block, Reason.NO_DRAFT
        if not usable:
            return plain.block, self._quiet_reason(situation)
        blocks = self._blocks(situation, state, plain, usable)
        if situation.mode is SpeculationMode.ON:
            return max(blocks, key=lambda block: block.gain_ms), Reason.SPECULATING
        if self._known.meter.plain_samples < _BASELINE_ROUNDS:
            return plain.block, Reason.WARMING_UP
        return self._weigh(situation, state, plain, blocks)

    def _weigh(
        self, situation: Situation, state: RequestState, plain: Plain, blocks: Sequence[Block]
    ) -> tuple[Block, Reason]:
        """Automatic mode, with a baseline and at least one offer."""
        good = [
            block
            for block in blocks
            if block.gain_ms > 0 and block.ratio >= self._bar(block, situation, state, plain)
        ]
        best = max(good, key=lambda block: block.gain_ms, default=None)
        if best is None or state.stop.paused:
            probe = self._probe(situation, state, blocks)
            for block in blocks:
                self._pair(block).considered(used=False)
            if probe is not None:
                return probe, Reason.PROBING
            warm = all(self._pair(block).warm for block in blocks)
            return plain.block, Reason.SLOWER_THAN_PLAIN if warm else Reason.WARMING_UP
        if self._plain_due(situation, plain):
            return plain.block, Reason.PROBING
        for block in blocks:
            self._pair(block).considered(used=block is best)
        rivals = [block for block in blocks if block is not best]
        probe = self._probe(situation, state, rivals)
        if probe is not None:
            return probe, Reason.PROBING
        return best, Reason.SPECULATING if self._pair(best).warm else Reason.WARMING_UP

    def _bar(self, block: Block, situation: Situation, state: RequestState, plain: Plain) -> float:
        margin = _MARGIN if self._pair(block).switch.on else _MARGIN_OFF
        pair = self._pair(block)
        read_ms = pair.cost.catch_up(self._unread(pair, situation, state))
        at_stake = _MARGIN_PER_ROUND * max(0.0, block.ms / plain.ms - 1.0)
        at_stake += _MARGIN_PER_READ_ROUND * read_ms / plain.ms
        return self._min_speedup * (margin + at_stake * self._running(pair, state).doubt)

    def _probe(
        self, situation: Situation, state: RequestState, blocks: Sequence[Block]
    ) -> Block | None:
        """A drafter that has not been tried for long enough, if its try is affordable."""
        for block in blocks:
            pair = self._pair(block)
            pair.probes.round()
            cost = block.ms + pair.cost.catch_up(self._unread(pair, situation, state))
            if pair.probes.due and situation.catch_up == 0 and self._budget.affords(cost):
                return block
        return None

    def _plain_due(self, situation: Situation, plain: Plain) -> bool:
        if situation.catch_up or not self._budget.affords(plain.ms):
            return False
        cell = circumstances(situation.context, situation.other_rows)
        return self._known.plain_clock.due or self._known.meter.plain_rounds(cell) < _CELL_ROUNDS

    def _plain(self, now_s: float, situation: Situation, state: RequestState) -> Plain:
        others = situation.other_rows
        ms = self._known.plain_ms(1 + others, situation.context, state.lanes if others else 1)
        tokens = 0.0
        if others:
            tokens = min(
                self._known.requests.others_tokens(situation.request, now_s), float(others)
            )
        return Plain(ms, tokens)

    def _blocks(
        self, situation: Situation, state: RequestState, plain: Plain, usable: Mapping[str, int]
    ) -> list[Block]:
        base = 1 + situation.catch_up + situation.other_rows
        step_ms = self._known.steps.prices(
            first=base,
            last=base + max(usable.values()),
            context=situation.context,
            lanes=state.lanes if situation.other_rows else 1,
        )
        token_ms = state.token_ms(plain.ms)
        blocks = []
        for name, k in usable.items():
            pair = self._known.pairs[name]
            running = self._running(pair, state)
            payback = self._known.requests.remaining(state) * state.left_to(name, pair.left)
            blocks.append(
                best_block(
                    drafter=name,
                    accepted=running.expected(k, situation.matches.get(name)),
                    draft_ms=pair.cost.price,
                    step_ms=step_ms,
                    row_ms=pair.row_ms,
                    catch_up_ms=pair.cost.catch_up(self._unread(pair, situation, state)),
                    horizon=max(1.0, min(situation.room, payback)),
                    token_ms=token_ms,
                    plain=plain,
                )
            )
        return blocks

    # -- the report -----------------------------------------------------------------------------

    def observe(self, record: RoundRecord) -> None:
        state = self._state(record.request, record.at_s)
        asked, state.asked = state.asked, None
        state.lanes = max(1, record.lanes)
        pair = self._known.pairs.get(record.choice.drafter or "")
        others = max(0, record.total_rows - record.rows)
        cold = self._cold > 0
        self._cold -= cold
        unread = 0 if pair is None else state.unread(pair.spec.name, record.context)
        if pair is not None:
            state.read[pair.spec.name] = record.context + record.accepted
        self._learn_acceptance(record, asked, pair, state)
        if cold:
            return
        single_ms = self._known.plain_ms(1 + others, record.context, record.lanes)
        self._known.learn_costs(record, pair, unread)
        if record.catch_up == 0 and record.committed > 0:
            auto = asked is None or asked.situation.mode is SpeculationMode.AUTO
            self._judge(
                record,
                asked,
                pair,
                state,
                others=others,
                unread=unread,
                auto=auto,
                single_ms=single_ms,
            )

    def _learn_acceptance(
        self, record: RoundRecord, asked: Asked | None, pair: Pair | None, state: RequestState
    ) -> None:
        matches = asked.situation.matches if asked is not None else {}
        offers = asked.situation.offers if asked is not None else {}
        seen = record.foreseen if pair is None else (pair.spec.name,)
        for name, running in state.acceptance.items():
            if name not in seen:
                running.lose_track(offered=offers.get(name, 0) > 0)
        if pair is None:
            for name, right in record.foreseen.items():
                if name in self._known.pairs:
                    running = self._running(self._known.pairs[name], state)
                    running.foresee(right=right, match=matches.get(name))
                    if running.run >= _ENCOURAGING_RUN:
                        state.stop.resume()
            return
        if not record.proposed:
            return
        accepted = min(record.accepted, record.proposed)
        pair.acceptance.count(record.proposed, accepted)
        self._running(pair, state).see(
            proposed=record.proposed,
            accepted=accepted,
            refused=record.committed > accepted,
            match=matches.get(pair.spec.name),
        )

    def _judge(
        self,
        record: RoundRecord,
        asked: Asked | None,
        pair: Pair | None,
        state: RequestState,
        *,
        others: int,
        unread: int,
        auto: bool,
        single_ms: float,
    ) -> None:
        """Count the wall time of a round that says something about decoding."""
        cell = circumstances(record.context, others)
        self._budget.elapse(record.wall_ms, single_ms)
        drafter = record.choice.drafter if record.choice.k else None
        state.spend(record.wall_ms, record.committed, drafter)
        for name, one in self._known.pairs.items():
            one.round(record.committed, other=drafter is not None and name != drafter)
        if record.choice.reason is Reason.PROBING:
            self._budget.spend(record.wall_ms)
        if asked is not None and unread <= UNREAD_FREE and others == asked.situation.other_rows:
            self._known.learn_slack(record, asked)
        if pair is None or not record.choice.k:
            state.stop.plain_round()
            self._known.meter.add_plain(cell, record.wall_ms)
            if record.choice.reason is Reason.PROBING:
                off = record.wall_ms / (single_ms * self._known.slack)
                if abs(off - 1.0) < _NOTHING_NEW:
                    self._known.plain_clock.nothing_new()
                    return
            self._known.plain_clock.looked()
            return
        self._known.plain_clock.round()
        pair.rounds += 1
        if unread > UNREAD_FREE:
            # An investment, not a speed: it is weighed before it is made, and paid by the budget
            # when it was a probe.
            self._look_back(record, pair, single_ms, read_ms=pair.cost.catch_up(unread))
            return
        self._known.meter.add_speculative(
            pair.key, cell, ms=record.wall_ms, tokens=record.committed
        )
        if not auto:
            return
        worth_ms = single_ms * self._known.slack * record.committed
        # A spike is nobody's fault; a lasting change is in what is expected within a few rounds.
        spent_ms = record.wall_ms
        if asked is not None:
            spent_ms = min(spent_ms, _SPIKE * asked.expected_ms)
        pair.switch.see(plain_ms=worth_ms, spent_ms=spent_ms)
        state.stop.see(plain_ms=worth_ms, spent_ms=spent_ms, round_ms=single_ms)
        self._look_back(record, pair, single_ms, read_ms=0.0)

    def _look_back(
        self, record: RoundRecord, pair: Pair, single_ms: float, *, read_ms: float
    ) -> None:
        """Was this look at a drafter worth it? That says when the next one is due."""
        if record.choice.reason is not Reason.PROBING:
            pair.probes.looked()
        elif single_ms * self._known.slack * record.committed > record.wall_ms - read_ms:
            pair.probes.surprised()
        else:
            pair.probes.nothing_new()

    # -- what others want to know: see `Knowledge` ------------------------------------------------

    def prefill_rows(self, decoding_slots: int) -> int:
        return self._known.prefill_rows(decoding_slots)

    def speedup(self, drafter: str | None) -> MeasuredSpeedup:
        return self._known.speedup(drafter)

    def standing(self) -> Standing:
        return self._known.standing()

    def to_record(self) -> dict[str, Any]:
        """All that was learned, as JSON values; holds numbers and drafter keys, never text."""
        return self._known.to_record()

    # -- small helpers --------------------------------------------------------------------------

    def _state(self, request: int, now_s: float) -> RequestState:
        return self._known.requests.state(request, now_s, started=self._new_request)

    def _new_request(self) -> None:
        for pair in self._known.pairs.values():
            pair.probes.new_request()

    def _pair(self, block: Block) -> Pair:
        assert block.drafter is not None
        return self._known.pairs[block.drafter]

    def _running(self, pair: Pair, state: RequestState) -> Running:
        running = state.acceptance.get(pair.spec.name)
        if running is None:
            running = state.acceptance[pair.spec.name] = pair.acceptance.new_request()
        return running

    def _unread(self, pair: Pair, situation: Situation, state: RequestState) -> int:
        unread = state.unread(pair.spec.name, situation.context)
        return unread if unread > UNREAD_FREE else 0

    def _quiet_reason(self, situation: Situation) -> Reason:
        """Nobody has anything to propose right now: how do they stand in general?"""
        pairs = [self._known.pairs[name] for name in situation.offers if name in self._known.pairs]
        if not any(pair.warm for pair in pairs):
            return Reason.WARMING_UP
        if any(pair.in_use for pair in pairs):
            return Reason.SPECULATING
        return Reason.SLOWER_THAN_PLAIN
