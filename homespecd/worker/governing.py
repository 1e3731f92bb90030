"""The governor of a loaded model: what it is told at the start, and what it learned, kept."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any, Protocol

from homespecd.errors import ModelError
from homespecd.governor.calibrate import calibrate, calibration_plan
from homespecd.governor.ledger import Environment, Ledger
from homespecd.governor.measured import DrafterSpec, MeasuredGovernor
from homespecd.governor.protocol import Governor, Reason
from homespecd.runtime.step import Model, Rows
from homespecd.worker.load import Draft, Loaded
from homespecd.worker.machine import describe_machine
from homespecd.worker.verdict import place, verdict

# A model that is loaded for the first time is measured for so long at the most.
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
        verdict: what blocks of the target are worth where it runs; kept beside their costs.
    """

    def __init__(
        self,
        governor: Learning,
        ledger: Ledger | None,
        *,
        verdict: Mapping[str, Any] | None = None,
    ) -> None:
        self.governor = governor
        self._verdict = verdict
        self._ledger = ledger
        self._writer = ThreadPoolExecutor(max_workers=1, thread_name_prefix="ledger")
        self._writing: Future[bool] | None = None

    def save_if_due(self, now_s: float) -> None:
        """Hand what was learned to the writer, if it is time and the last write is done."""
        if self._ledger is None or not self._ledger.due(now_s):
            return
        if self._writing is None or self._writing.done():
            record = self._record()
            self._writing = self._writer.submit(self._ledger.save, record, now_s=now_s)

    def close(self, now_s: float) -> None:
        """Write once more and wait for it."""
        if self._ledger is not None:
            self._writer.submit(self._ledger.save, self._record(), now_s=now_s)
        self._writer.shutdown(wait=True)

    def _record(self) -> dict[str, Any]:
        return {**self.governor.to_record(), "verdict": self._verdict}


def make_governor(
    loaded: Loaded, *, clock_s: Callable[[], float] = time.monotonic
) -> LearnedGovernor:
    """Remembers this model on this machine, or measures its steps for a few seconds."""
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
    bound = settings.speculation.max_draft_tokens
    step_ms: dict[int, float] = {}
    draft_ms: dict[str, dict[int, float]] = {}
    if loaded.blocked is None and any(draft.usable for draft in loaded.drafts.values()):
        if remembered is None:
            step_ms = _target_costs(loaded.target, bound, clock_s)
        draft_ms = _drafts_costs(loaded.drafts, clock_s)
    usable = {name: draft for name, draft in loaded.drafts.items() if draft.usable}
    governor = MeasuredGovernor(
        [
            DrafterSpec(
                name=name,
                max_k=min(bound, draft.settings.max_draft_tokens),
                key=draft.key,
                reads=draft.model is not None,
            )
            for name, draft in usable.items()
        ],
        min_speedup=settings.speculation.min_speedup,
        probe_budget=settings.speculation.probe_budget,
        step_ms=step_ms,
        draft_ms=draft_ms,
        remembered=remembered,
    )
    return LearnedGovernor(governor, ledger, verdict=verdict(loaded.exactness, spec))


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


def _target_costs(target: Model, bound: int, clock_s: Callable[[], float]) -> dict[int, float]:
    """Nothing where a step fails: what cannot be measured now is learned from the answers."""
    plan = [rows for rows in calibration_plan(bound) if rows <= target.spec.context]
    try:
        return calibrate(_timed_steps(target, clock_s), plan, limit_ms=CALIBRATION_LIMIT_MS)
    except ModelError as error:
        logging.getLogger(__name__).warning("its steps could not be measured: %s", error)
        return {}


def _drafts_costs(
    drafts: Mapping[str, Draft], clock_s: Callable[[], float]
) -> dict[str, dict[int, float]]:
    """Of every usable draft model. One that fails is given up, and its target is served."""
    costs = {}
    for name, draft in drafts.items():
        if draft.model is None or not draft.usable:
            continue
        try:
            times = calibrate(_timed_steps(draft.model, clock_s), [1], limit_ms=DRAFT_LIMIT_MS)
        except ModelError as error:
            draft.fail(Reason.DRAFT_FAILED, str(error))
            continue
        most = draft.settings.max_draft_tokens
        costs[name] = {1: times[1], most: most * times[1]}
    return costs
