"""The governor that measures: speculation exactly while it pays, per request and per pair.

A pure function of what it is told: no clock, no files, no randomness. It composes what the other
modules know (costs, acceptance, the best block, the measured speed-up, the switches), and adds the
order of the questions:

1. Is speculation asked for, and has any drafter something to say?
2. Is there a baseline? The first rounds are plain, and so is a small share of the later ones.
3. Which block promises the most tokens per millisecond, and is that enough? A pair whose measured
   time says no must promise more than one that is in good standing.
4. Can this request bear its loss? What it may lose grows with what it has gained.
5. Else plain, and now and then a probe, within the time budget.

Three layers, because each catches what the one above cannot: expectations react within a round but
may be wrong; a request's stake counts real milliseconds and bounds what a wrong expectation can
cost one answer; a pair's switch counts them over requests and makes the promise for the next one.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from typing import Any

from homespecd.governor.backlog import Backlog
from homespecd.governor.choice import Block, Plain
from homespecd.governor.knowledge import Knowledge
from homespecd.governor.lessons import Lessons
from homespecd.governor.pair import DrafterSpec, Pair
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
from homespecd.governor.requests import ALONE, Asked
from homespecd.governor.running import RequestState
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
# And more in company: if it is wrong, all of them have waited.
_MARGIN_SHARED = 1.05
# The share of an answer's time that one probe in it may cost; and once in a long while, when a
# draft would have to read a prompt that is long for the answer.
_PROBE_OF_ANSWER, _SELDOM_OF_ANSWER = 0.01, 0.35
# One that has never been tried is waited for that much less.
_NEVER_TRIED = 4.0
# A draft model that promises less than this share of what it must is not looked at again for so
# many rounds, and one that promises more than the request can stake on it for a few: both change
# with evidence, and without a proposal there is little. (A lookup's prospects change with its
# match.)
_FAR, _FAR_REST = 0.85, 7
_NEAR_REST = 3

_PLAIN = {reason: Choice(None, 0, reason) for reason in Reason}


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
            except (ValueError, KeyError, TypeError, AttributeError, ArithmeticError) as error:
                logging.getLogger(__name__).warning(
                    "what was learned earlier cannot be used (%s); measuring again", error
                )
                self._known = fresh()
        self._backlog = Backlog(self._known, Lessons(self._known, self._budget))
        # What is said where nobody has an offer, by who was asked; until more is learned.
        self._quiet: dict[tuple[str, ...], Choice] = {}
        # A request, who had an offer in it, and for how many rounds that need not be looked at.
        self._resting: tuple[int, tuple[str, ...], int] = (0, (), 0)

    # -- the questions, in their order ----------------------------------------------------------

    def choose(self, now_s: float, situation: Situation) -> Choice:
        """See `Governor`."""
        asked = self._backlog.asked
        obvious = self._obvious(situation)
        if obvious is not None:
            asked[situation.request] = Asked(now_s, situation, considered=False)
            return obvious
        self._backlog.read()
        state = self._known.state(situation.request, now_s, situation.beginnings)
        company = ALONE
        if situation.other_rows:
            # Every other has a row at least; how many there were is known from the second round on.
            most = state.lanes - 1 if state.lanes > 1 else situation.other_rows
            company = self._backlog.company(situation.request, most, now_s)
        plain = plain_round(self._known, situation, state, company)
        found = prospects(self._known, situation, state, plain)
        block, reason = self._decide(situation, state, plain, found)
        asked[situation.request] = Asked(now_s, situation, block.tokens, block.k, block.ms)
        if reason is Reason.SLOWER_THAN_PLAIN and not any(situation.matches.values()):
            rest = min((self._rest(one) for one in found), default=0)
            self._resting = (situation.request, tuple(situation.offers), rest)
        return Choice(block.drafter, block.k, reason)

    def _obvious(self, situation: Situation) -> Choice | None:
        """A plain round where nothing needs to be thought about."""
        offers = situation.offers
        if situation.mode is SpeculationMode.OFF:
            return _PLAIN[Reason.DISABLED_BY_REQUEST]
        if situation.room <= 1 or not any(offers.values()):
            names = tuple(offers)
            choice = self._quiet.get(names)
            if choice is None:
                choice = self._quiet[names] = _PLAIN[self._known.quiet_reason(offers)]
            return choice
        request, names, left = self._resting
        if not left or request != situation.request or situation.other_rows:
            return None
        if situation.mode is SpeculationMode.ON or any(situation.matches.values()):
            return None
        self._resting = (request, names, left - 1)
        return _PLAIN[Reason.SLOWER_THAN_PLAIN]

    def _decide(
        self,
        situation: Situation,
        state: RequestState,
        plain: Plain,
        found: Sequence[Prospect],
    ) -> tuple[Block, Reason]:
        if not found:
            return plain.block, self._known.quiet_reason(situation.offers)
        if situation.mode is SpeculationMode.ON:
            blocks = [one.playable or one.block for one in found]
            return max(blocks, key=lambda one: one.gain_ms), Reason.SPECULATING
        if self._known.meter.plain_samples < _BASELINE_ROUNDS:
            return plain.block, Reason.WARMING_UP
        best = self._best(found, _MARGIN_SHARED if situation.other_rows else 1.0)
        if best is None:
            probe = self._probe(found, situation, state, plain)
            for one in found:
                one.pair.considered(used=False)
            if probe is not None:
                return probe.block, Reason.PROBING
            warm = all(one.pair.warm for one in found)
            return plain.block, Reason.SLOWER_THAN_PLAIN if warm else Reason.WARMING_UP
        if self._plain_due(situation, state, plain):
            return plain.block, Reason.PROBING
        for one in found:
            one.pair.considered(used=one is best, tokens=best.block.tokens)
        probe = self._probe([one for one in found if one is not best], situation, state, plain)
        if probe is not None:
            return probe.block, Reason.PROBING
        assert best.playable is not None
        return best.playable, Reason.SPECULATING if best.pair.warm else Reason.WARMING_UP

    def _best(self, found: Sequence[Prospect], margin: float) -> Prospect | None:
        """Of those that promise enough, the one that saves the most time."""
        best, best_gain_ms = None, 0.0
        for one in found:
            block = one.playable
            if block is None or block.gain_ms <= best_gain_ms:
                continue
            if block.ratio >= margin * self._needed(one.pair):
                best, best_gain_ms = one, block.gain_ms
        return best

    def _needed(self, pair: Pair) -> float:
        """What a block of the pair must promise, in plain steps."""
        return self._min_speedup * (_MARGIN if pair.switch.on else _MARGIN_OFF)

    def _rest(self, one: Prospect) -> int:
        """For how many rounds a drafter that was not taken need not be looked at."""
        if one.block.ratio < _FAR * self._needed(one.pair):
            return _FAR_REST
        return _NEAR_REST if one.playable is None else 0

    def _probe(
        self, found: Sequence[Prospect], situation: Situation, state: RequestState, plain: Plain
    ) -> Prospect | None:
        """A drafter that has not been tried for long enough, if its try is affordable."""
        for one in found:
            pair = one.pair
            pair.probes.round()
            if situation.catch_up or not pair.probes.due:
                continue
            # The longer ago it was tried, the less is what it cost then believed.
            doubt = 1.0 if pair.in_use else min(1.0, 0.5 ** (pair.probes.age - 1.0))
            if doubt * (one.block.ms - plain.ms) >= one.block.k * plain.ms:
                continue  # it would not pay if all of it were right
            cost_ms = one.block.ms - plain.ms + one.unpaid_ms
            answer_ms = plain.ms * (state.committed + state.remaining)
            share = _PROBE_OF_ANSWER
            age = pair.probes.age * (1.0 if pair.rounds else _NEVER_TRIED)
            if age >= 1.0 and not pair.in_use:
                cost_ms *= 0.5 ** (age - 1.0)
                share = _SELDOM_OF_ANSWER
            if pair.credit >= cost_ms / plain.ms or (
                self._budget.affords(cost_ms) and cost_ms <= share * answer_ms
            ):
                return one
        return None

    def _plain_due(self, situation: Situation, state: RequestState, plain: Plain) -> bool:
        cost_ms = plain.ms - state.token_ms(plain.ms)
        if situation.catch_up or not self._budget.affords(cost_ms):
            return False
        cell = circumstances(situation.context, situation.other_rows)
        return self._known.plain_clock.due or self._known.meter.plain_rounds(cell) < _CELL_ROUNDS

    # -- the report, and what others want to know -------------------------------------------------

    def observe(self, record: RoundRecord) -> None:
        """See `Governor`."""
        if self._backlog.report(record):
            self._work_off()

    def _work_off(self) -> None:
        self._backlog.work_off()
        self._quiet.clear()

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
        self._work_off()
        return self._known
