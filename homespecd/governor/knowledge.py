"""All that the governor knows, in one place: costs, what was measured, the pairs, the requests.

It learns costs from rounds and answers for them; it decides nothing. It can be written down and
taken up again as a whole.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from statistics import median
from typing import Any

from homespecd.governor.grid import bucket_context, context_bucket
from homespecd.governor.levels import finite
from homespecd.governor.pair import DrafterSpec, Pair
from homespecd.governor.protocol import (
    MeasuredSpeedup,
    Reason,
    RoundRecord,
    Standing,
    best_reason,
)
from homespecd.governor.requests import Requests
from homespecd.governor.running import RequestState
from homespecd.governor.speedup import SpeedupMeter
from homespecd.governor.step_costs import StepCurve
from homespecd.governor.switch import Backoff

# Fewer unread rows than this ride along in the draft's next pass at next to no cost.
UNREAD_FREE = 8

# Others decode on while a prompt is read, at no less than a third of their speed.
_PREFILL_STRETCH = 3.0
_PREFILL_ROWS = (8, 16, 32, 64)  # 64: on a CPU, longer chunks are no faster per row

_RATE = 0.05


class _Overhead:
    """Milliseconds of a plain round besides its step, alone and in company."""

    def __init__(self) -> None:
        self._ms: dict[bool, float] = {}

    def observe(self, ms: float, *, shared: bool) -> None:
        old = self._ms.get(shared)
        if old is None:
            self._ms[shared] = ms
        else:
            self._ms[shared] = old + _RATE * (min(ms, 3.0 * old + 0.1) - old)

    def price(self, *, shared: bool) -> float:
        return self._ms.get(shared, self._ms.get(not shared, 0.0))

    def to_record(self) -> list[float | None]:
        return [self._ms.get(False), self._ms.get(True)]

    def restore(self, record: Any) -> None:
        for shared, ms in zip((False, True), record, strict=True):
            if ms is not None:
                self._ms[shared] = finite(ms, 0.0, 1e7)


class Knowledge:
    """See the module; arguments as of `MeasuredGovernor`."""

    def __init__(
        self,
        drafters: Sequence[DrafterSpec],
        *,
        min_speedup: float,
        step_ms: Mapping[int, float] | None,
        draft_ms: Mapping[str, Mapping[int, float]],
    ) -> None:
        self.steps = StepCurve(step_ms)
        self.overhead = _Overhead()
        self.slack = 1.0  # mean ÷ expected wall time: spikes make it more than 1
        self.meter = SpeedupMeter()
        self.plain_clock = Backoff()
        self.requests = Requests()
        self.pairs = {
            spec.name: Pair(spec, min_speedup, draft_ms.get(spec.name)) for spec in drafters
        }

    def state(self, request: int, now_s: float, beginnings: Sequence[int]) -> RequestState:
        """What is remembered of a request; a new one brings the next probes nearer."""
        return self.requests.state(
            request, now_s, beginnings, pairs=self.pairs, started=self._new_request
        )

    def _new_request(self) -> None:
        for pair in self.pairs.values():
            pair.probes.new_request()

    def plain_ms(self, rows: int, context: int, lanes: int) -> float:
        """A whole plain round, its step of so many rows and the rest."""
        step = self.steps.price(rows=rows, context=context, lanes=lanes)
        return step + self.overhead.price(shared=lanes > 1)

    def more_rows_ms(self, record: RoundRecord) -> float:
        """What the rows of its proposal added to a step."""
        without, with_them = (
            self.steps.price(rows=rows, context=record.context, lanes=record.lanes)
            for rows in (record.total_rows - record.proposed, record.total_rows)
        )
        return with_them - without

    def learn_costs(self, rounds: Sequence[tuple[RoundRecord, Pair | None, int]]) -> None:
        """From rounds, the drafters they asked, and the rows their drafts had to catch up on."""
        changes = self.steps.changes
        # Rounds of a kind count by their median: quicker than one by one, and a spike is no more.
        steps: dict[tuple[int, int, int], list[float]] = {}
        for record, _, _ in rounds:
            kind = (record.total_rows, record.lanes, context_bucket(record.context))
            steps.setdefault(kind, []).append(record.step_ms)
        for (rows, lanes, bucket), times in steps.items():
            context = bucket_context(bucket)
            self.steps.observe(
                rows=rows, context=context, lanes=lanes, ms=median(times), count=len(times)
            )
        if self.steps.changes != changes:
            self._doubt()
        drafts: dict[tuple[str, int], list[float]] = {}
        for record, pair, unread in rounds:
            self._learn_rest(record, pair, unread, drafts)
        for (name, tokens), times in drafts.items():
            self.pairs[name].cost.observe(tokens=tokens, ms=median(times), count=len(times))

    def _learn_rest(
        self,
        record: RoundRecord,
        pair: Pair | None,
        unread: int,
        drafts: dict[tuple[str, int], list[float]],
    ) -> None:
        """What a round took besides its step; the times of proposals are collected."""
        overhead = max(0.0, record.wall_ms - record.draft_ms - record.step_ms)
        shared = record.lanes > 1
        if pair is None:
            if not record.catch_up:
                self.overhead.observe(overhead, shared=shared)
            return
        # In company, drafts share their steps and wait for each other: what one costs by itself
        # shows alone.
        if not record.proposed or shared:
            return
        tokens = record.proposed + record.impossible
        if unread > UNREAD_FREE:
            pair.cost.observe_catch_up(tokens=tokens, rows=unread, ms=record.draft_ms)
        elif not record.catch_up:
            drafts.setdefault((pair.spec.name, tokens), []).append(record.draft_ms)
            pair.observe_rows(overhead - self.overhead.price(shared=False), record.proposed)

    def learn_slack(self, record: RoundRecord, expected_ms: float) -> None:
        """How the wall time of a round came out against what was expected."""
        off = min(max(record.wall_ms / max(expected_ms, 1e-3), 0.5), 2.0)
        self.slack += _RATE * (off - self.slack)

    def _doubt(self) -> None:
        self.meter.doubt()
        self.plain_clock.surprised()
        for pair in self.pairs.values():
            pair.doubt()

    def prefill_rows(self, decoding_slots: int) -> int:
        """Rows of prompt for one step, while so many slots decode."""
        if decoding_slots <= 0:
            return _PREFILL_ROWS[-1]
        prices = self.steps.prices(
            first=decoding_slots,
            last=decoding_slots + _PREFILL_ROWS[-1],
            context=0,
            lanes=decoding_slots + 1,
        )
        fitting = [rows for rows in _PREFILL_ROWS if prices[rows] <= _PREFILL_STRETCH * prices[0]]
        return fitting[-1] if fitting else _PREFILL_ROWS[0]

    def speedup(self, drafter: str | None) -> MeasuredSpeedup:
        """Of one drafter by name; None = of all together."""
        pair = self.pairs.get(drafter or "")
        return self.meter.measured(pair.key if pair else drafter)

    def quiet_reason(self, offers: Mapping[str, int]) -> Reason:
        """Nobody has anything to propose right now: how do they stand in general?"""
        pairs = [self.pairs[name] for name in offers if name in self.pairs]
        if not pairs:
            return Reason.NO_DRAFT
        if not any(pair.warm for pair in pairs):
            return Reason.WARMING_UP
        if any(pair.in_use for pair in pairs):
            return Reason.SPECULATING
        return Reason.SLOWER_THAN_PLAIN

    def standing(self) -> Standing:
        """The whole view, for the snapshot."""
        standings = tuple(
            pair.standing(self.meter.measured(pair.key)) for pair in self.pairs.values()
        )
        reason = best_reason((one.reason for one in standings), default=Reason.NO_DRAFT)
        return Standing(
            mode="speculative" if reason is Reason.SPECULATING else "plain",
            reason=reason,
            step_ms=self.steps.table(),
            plain_ms_per_token=self.meter.plain_ms_per_token,
            drafters=standings,
        )

    def to_record(self) -> dict[str, Any]:
        """As JSON values: numbers and drafter keys, never text."""
        return {
            "steps": self.steps.to_record(),
            "overhead": self.overhead.to_record(),
            "slack": self.slack,
            "answers": self.requests.to_record(),
            "plain": self.meter.plain_to_record(),
            "plain_gap": self.plain_clock.to_record(),
            "drafters": {
                pair.key: pair.to_record() | {"measured": self.meter.to_record(pair.key)}
                for pair in self.pairs.values()
            },
        }

    def restore(self, record: Mapping[str, Any]) -> None:
        """Take over a record; half done when it raises (ValueError, KeyError, TypeError,
        AttributeError)."""
        self.steps.restore(record["steps"])
        self.overhead.restore(record["overhead"])
        self.slack = finite(record["slack"], 0.5, 2.0)
        self.requests.restore(record["answers"])
        self.meter.restore_plain(record["plain"])
        self.plain_clock.restore(record["plain_gap"])
        for pair in self.pairs.values():
            known = record["drafters"].get(pair.key)
            if known is not None:
                pair.restore(known)
                self.meter.restore(pair.key, known["measured"])
