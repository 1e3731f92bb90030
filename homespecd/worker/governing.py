"""The governor of a loaded model: what it is told at the start, and what it learned, kept.

Not here: what a governor makes of it (`governor`), and when drafters change (`worker.serving`).
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Generator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any, Protocol

from homespecd.errors import ModelError
from homespecd.governor.calibrate import at_once, calibrate, calibration_plan, still_unknown
from homespecd.governor.ledger import Environment, Ledger, Record
from homespecd.governor.measured import DrafterSpec, MeasuredGovernor
from homespecd.governor.protocol import Governor, Reason
from homespecd.runtime.step import Model, Rows
from homespecd.worker.load import Draft, Loaded
from homespecd.worker.machine import describe_machine
from homespecd.worker.verdict import place, verdict

# A model of which nothing is known is measured for so long at the most.
CALIBRATION_LIMIT_MS = 2500.0
# The draft's step is the same at every k: one row. A few passes are enough.
DRAFT_LIMIT_MS = 500.0


class Learning(Governor, Protocol):
    """A governor that can say what it has learned."""

    def to_record(self) -> dict[str, Any]: ...


class LearnedGovernor:
    """A governor that learns and the ledger it is kept in, if there is a state directory.

    Writing waits for the disk, so it happens on a thread of its own; the engine only hands over
    what to write.

    Args:
        remembered: what it was made from; knows drafters too that are not here now.
        verdict: what blocks of the target are worth where it runs; kept beside their costs.
    """

    def __init__(
        self,
        governor: Learning,
        ledger: Ledger | None,
        *,
        remembered: Record | None = None,
        verdict: Mapping[str, Any] | None = None,
    ) -> None:
        self.governor = governor
        self._remembered = remembered or {}
        self._verdict = verdict
        self._ledger = ledger
        self._writer = ThreadPoolExecutor(max_workers=1, thread_name_prefix="ledger")
        self._writing: Future[None] | None = None

    def renew(
        self, loaded: Loaded, *, widest_rows: int, clock_s: Callable[[], float]
    ) -> Generator[None, None, None]:
        """Another `governor` in the place of this one, for drafters that have come.

        One step of a model for each turn, so that answers go on in between. The new one starts from
        what this one knows now: rounds with such a step in them are longer than they should be.

        Args:
            widest_rows: no step has more; what wider ones take is learned from the answers.
        """
        drafters = dict(self._remembered.get("drafters", {}))
        self._remembered = self.governor.to_record()
        self._remembered["drafters"] = drafters | self._remembered["drafters"]
        self.governor = yield from _measured(
            loaded, self._remembered, widest_rows=widest_rows, clock_s=clock_s
        )

    def save_if_due(self, now_s: float) -> None:
        """Hand what was learned to the writer, if it is time and the last write is done."""
        if self._ledger is None or not self._ledger.due(now_s):
            return
        if self._writing is None or self._writing.done():
            self._writing = self._writer.submit(_write, self._ledger, self._record(), now_s)

    def close(self, now_s: float) -> None:
        """Write once more and wait for it."""
        if self._ledger is not None:
            self._writer.submit(_write, self._ledger, self._record(), now_s)
        self._writer.shutdown(wait=True)

    def _record(self) -> dict[str, Any]:
        return {**self.governor.to_record(), "verdict": self._verdict}


def _write(ledger: Ledger, record: Record, now_s: float) -> None:
    try:
        ledger.save(record, now_s=now_s)
    except Exception:
        # The top of the writer's thread: nobody else would ever hear of it.
        logging.getLogger(__name__).exception("%s: was not written", ledger.path)


def make_governor(
    loaded: Loaded, *, clock_s: Callable[[], float] = time.monotonic
) -> LearnedGovernor:
    """Remembers this model on this machine, and measures for a few seconds what it does not."""
    settings, spec = loaded.settings, loaded.target.spec
    ledger = None
    if settings.state_dir:
        ledger = Ledger(
            Path(settings.state_dir),
            target=loaded.identity.digest,
            environment=Environment(
                provider=place(spec), threads=spec.threads, machine=describe_machine()
            ),
        )
    remembered = None if ledger is None else ledger.load()
    return LearnedGovernor(
        at_once(_measured(loaded, remembered, widest_rows=spec.context, clock_s=clock_s)),
        ledger,
        remembered=remembered,
        verdict=verdict(loaded.exactness, spec),
    )


def _measured(
    loaded: Loaded,
    remembered: Record | None,
    *,
    widest_rows: int,
    clock_s: Callable[[], float],
) -> Generator[None, None, MeasuredGovernor]:
    """A governor for the drafters that are here. Steps whose times it does not know are timed, one
    for each turn; that a record makes no sense shows only when a governor has tried it."""
    speculates = loaded.blocked is None
    draft_ms = (yield from _drafts_costs(loaded.drafts, clock_s)) if speculates else {}
    governor = _governor(loaded, remembered=remembered, draft_ms=draft_ms, step_ms={})
    known = governor.standing().step_ms
    bound = loaded.settings.speculation.max_draft_tokens
    widest_rows = min(widest_rows, loaded.target.spec.context)
    plan = [rows for rows in calibration_plan(bound) if rows <= widest_rows]
    unknown = still_unknown(plan, known)
    if not speculates or not unknown or not any(one.usable for one in loaded.drafts.values()):
        return governor
    step_ms = yield from _target_costs(loaded.target, unknown, clock_s)
    return _governor(
        loaded, remembered=remembered if known else None, draft_ms=draft_ms, step_ms=step_ms
    )


def drafter_specs(loaded: Loaded) -> list[DrafterSpec]:
    """The drafters that can be used, as a governor needs them."""
    bound = loaded.settings.speculation.max_draft_tokens
    return [
        DrafterSpec(
            name=name,
            max_k=min(bound, draft.settings.max_draft_tokens),
            key=draft.key,
        )
        for name, draft in loaded.drafts.items()
        if draft.usable
    ]


def _governor(
    loaded: Loaded,
    *,
    remembered: Record | None,
    draft_ms: Mapping[str, Mapping[int, float]],
    step_ms: Mapping[int, float],
) -> MeasuredGovernor:
    speculation = loaded.settings.speculation
    return MeasuredGovernor(
        drafter_specs(loaded),
        min_speedup=speculation.min_speedup,
        probe_budget=speculation.probe_budget,
        step_ms=step_ms,
        draft_ms=draft_ms,
        remembered=remembered,
    )


def _timed_steps(model: Model, clock_s: Callable[[], float]) -> Callable[[int], float]:
    """Steps of so many rows, all with logits, on a cache that is short each time."""
    cache = model.new_cache()

    def step_of(rows: int) -> float:
        cache.rewind_to(0)
        tokens = [(31 * i + 7) % model.spec.vocab_size for i in range(rows)]
        started_s = clock_s()
        model.step([Rows(cache, tokens, logits_from=max(0, rows - 32), anywhere=True)])
        return (clock_s() - started_s) * 1e3

    return step_of


def _target_costs(
    target: Model, plan: Sequence[int], clock_s: Callable[[], float]
) -> Generator[None, None, dict[int, float]]:
    """Nothing where a step fails: what cannot be measured now is learned from the answers."""
    try:
        return (
            yield from calibrate(_timed_steps(target, clock_s), plan, limit_ms=CALIBRATION_LIMIT_MS)
        )
    except ModelError as error:
        logging.getLogger(__name__).warning("its steps could not be measured: %s", error)
        return {}


def _drafts_costs(
    drafts: Mapping[str, Draft], clock_s: Callable[[], float]
) -> Generator[None, None, dict[str, dict[int, float]]]:
    """Of every usable draft model. One that fails is given up, and its target is served."""
    costs = {}
    for name, draft in drafts.items():
        if draft.model is None or not draft.usable:
            continue
        try:
            steps = _timed_steps(draft.model, clock_s)
            times = yield from calibrate(steps, [1], limit_ms=DRAFT_LIMIT_MS)
        except ModelError as error:
            draft.fail(Reason.DRAFT_FAILED, str(error))
            continue
        most = draft.settings.max_draft_tokens
        costs[name] = {1: times[1], most: most * times[1]}
    return costs
