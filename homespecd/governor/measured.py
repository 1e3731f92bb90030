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

from homespecd.governor.choice import Block, Plain
from homespecd.governor.knowledge import Knowledge
from homespecd.governor.lessons import Lessons
from homespecd.governor.pair import DrafterSpec
from homespecd.governor.prospects import Prospect, plain_round, prospects
from homespecd.governor.protocol import (
    Choice,
    MeasuredSpeedup,
    Reason,
    RoundRecord,
    Situation,
    SpeculationMode,
    Standing,
)
from homespecd.governor.quiet import QuietRounds
from homespecd.governor.requests import Asked, RequestState
from homespecd.governor.speedup import circumstances
from homespecd.governor.switch import TimeBudget

__all__ = ["DrafterSpec", "MeasuredGovernor"]

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
# What promises less than this, against a plain step, need not be looked at in every round.
_FAR = 0.85


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
        self._known = fresh()
        if remembered is not None:
            try:
                self._known.restore(remembered)
            except (ValueError, KeyError, TypeError, AttributeError) as error:
                logging.getLogger(__name__).warning(
                    "what was learned earlier cannot be used (%s); measuring again", error
                )
                self._known = fresh()
        self._lessons = Lessons(self._known, self._budget)
        self._quiet = QuietRounds(self._known, self._lessons)

    # -- the questions, in their order ----------------------------------------------------------

    def choose(self, now_s: float, situation: Situation) -> Choice:
        quiet = self._quiet.choose(now_s, situation)
        if quiet is not None:
            return quiet
        self._quiet.work_off()
        state = self._known.state(situation.request, now_s)
        plain = plain_round(self._known, situation, state, now_s)
        found = prospects(self._known, situation, state, plain)
        block, reason = self._decide(situation, state, plain, found)
        choice = Choice(block.drafter, block.k, reason)
        state.asked = Asked(now_s, situation, choice, block.tokens, block.ms)
        if reason is Reason.SLOWER_THAN_PLAIN and all(one.block.ratio < _FAR for one in found):
            self._quiet.rest(situation)
        return choice

    def _decide(
        self,
        situation: Situation,
        state: RequestState,
        plain: Plain,
        found: Sequence[Prospect],
    ) -> tuple[Block, Reason]:
        if situation.mode is SpeculationMode.OFF:
            return plain.block, Reason.DISABLED_BY_REQUEST
        if not found:
            return plain.block, self._known.quiet_reason(situation.offers)
        if situation.mode is SpeculationMode.ON:
            return max(found, key=lambda one: one.block.gain_ms).block, Reason.SPECULATING
        if self._known.meter.plain_samples < _BASELINE_ROUNDS:
            return plain.block, Reason.WARMING_UP
        best = self._best(found, plain)
        if best is None or state.stop.paused:
            probe = self._probe(found, situation)
            for one in found:
                one.pair.considered(used=False)
            if probe is not None:
                return probe.block, Reason.PROBING
            warm = all(one.pair.warm for one in found)
            return plain.block, Reason.SLOWER_THAN_PLAIN if warm else Reason.WARMING_UP
        if self._plain_due(situation, plain):
            return plain.block, Reason.PROBING
        for one in found:
            one.pair.considered(used=one is best)
        probe = self._probe([one for one in found if one is not best], situation)
        if probe is not None:
            return probe.block, Reason.PROBING
        return best.block, Reason.SPECULATING if best.pair.warm else Reason.WARMING_UP

    def _best(self, found: Sequence[Prospect], plain: Plain) -> Prospect | None:
        """Of those that promise enough, the one that saves the most time."""
        good = [
            one
            for one in found
            if one.block.gain_ms > 0 and one.block.ratio >= self._bar(one, plain)
        ]
        return max(good, key=lambda one: one.block.gain_ms, default=None)

    def _bar(self, one: Prospect, plain: Plain) -> float:
        margin = _MARGIN if one.pair.switch.on else _MARGIN_OFF
        at_stake = _MARGIN_PER_ROUND * max(0.0, one.block.ms / plain.ms - 1.0)
        at_stake += _MARGIN_PER_READ_ROUND * one.read_ms / plain.ms
        return self._min_speedup * (margin + at_stake * one.doubt)

    def _probe(self, found: Sequence[Prospect], situation: Situation) -> Prospect | None:
        """A drafter that has not been tried for long enough, if its try is affordable."""
        for one in found:
            one.pair.probes.round()
            cost_ms = one.block.ms + one.read_ms
            if one.pair.probes.due and situation.catch_up == 0 and self._budget.affords(cost_ms):
                return one
        return None

    def _plain_due(self, situation: Situation, plain: Plain) -> bool:
        if situation.catch_up or not self._budget.affords(plain.ms):
            return False
        cell = circumstances(situation.context, situation.other_rows)
        return self._known.plain_clock.due or self._known.meter.plain_rounds(cell) < _CELL_ROUNDS

    # -- the report, and what others want to know -------------------------------------------------

    def observe(self, record: RoundRecord) -> None:
        if not self._quiet.observe(record):
            self._quiet.work_off()
            self._lessons.learn(record)

    def prefill_rows(self, decoding_slots: int) -> int:
        return self._told.prefill_rows(decoding_slots)

    def speedup(self, drafter: str | None) -> MeasuredSpeedup:
        return self._told.speedup(drafter)

    def standing(self) -> Standing:
        return self._told.standing()

    def to_record(self) -> dict[str, Any]:
        """All that was learned, as JSON values; holds numbers and drafter keys, never text."""
        return self._told.to_record()

    @property
    def _told(self) -> Knowledge:
        """All that is known, what was put by included."""
        self._quiet.work_off()
        return self._known
