"""Drafts of models in memory: given up, brought back and exchanged while the target serves."""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import replace

from homespecd.daemon.measured import MeasuredMemory
from homespecd.daemon.models import Model, note
from homespecd.daemon.settings import needs_new_worker, same_draft_models
from homespecd.daemon.tasks import Tasks
from homespecd.daemon.views import Drafts, State
from homespecd.errors import ModelError
from homespecd.worker.messages import WorkerSettings

# Drafts that were given up after they had been loaded stay away for so long: what made them go may
# come again, and loading costs more than a minute without them.
_AWAY_S = 30.0


class Redrafts:
    """Tells workers which drafters to have.

    Args:
        on_change: called when a change is complete.
    """

    def __init__(
        self,
        *,
        tasks: Tasks,
        measured: MeasuredMemory,
        on_change: Callable[[], None],
        clock_s: Callable[[], float],
    ) -> None:
        self._tasks = tasks
        self._measured = measured
        self._on_change = on_change
        self._clock_s = clock_s

    def drop(self, model: Model, why: str) -> None:
        """The target goes on alone."""
        note(logging.WARNING, model, "drafts_off", f"goes on without its drafts: {why}")
        model.drafts_not_before_s = self._clock_s() + _AWAY_S
        settings = replace(model.settings, withhold_drafts=why)
        self._begin(model, settings, passing=Drafts.REMOVING, then=Drafts.OFF)

    def bring_back(self, model: Model) -> None:
        note(logging.INFO, model, "drafts_on", "its drafts come back")
        self._begin(model, model.settings, passing=Drafts.ADDING, then=Drafts.ON)

    def reconcile(self, model: Model) -> None:
        """A model in memory goes over to its settings: other drafters at once, all else by leaving
        when its requests are done."""
        loaded, wanted = model.loaded_settings, model.settings
        assert loaded is not None
        model.leaving = bool(model.goodbyes) or model.removed or needs_new_worker(loaded, wanted)
        if model.leaving or loaded == wanted or model.drafts in (Drafts.ADDING, Drafts.REMOVING):
            return
        note(logging.INFO, model, "drafters", "its drafters change")
        if same_draft_models(loaded, wanted):
            given, then = wanted, model.drafts
            if then is Drafts.OFF:
                given = replace(wanted, withhold_drafts="there is no room for it")
            self._begin(model, given, passing=Drafts.ADDING, then=then, urgent=False)
            return
        # The old ones go first; the planner brings the new ones when there is room.
        given = replace(wanted, withhold_drafts="it is being exchanged")
        self._begin(model, given, passing=Drafts.REMOVING, then=Drafts.OFF, urgent=False)

    def _begin(
        self,
        model: Model,
        settings: WorkerSettings,
        *,
        passing: Drafts,
        then: Drafts,
        urgent: bool = True,
    ) -> None:
        model.drafts = passing
        self._tasks.start(self._carry_out(model, settings, then=then, urgent=urgent))

    async def _carry_out(
        self, model: Model, settings: WorkerSettings, *, then: Drafts, urgent: bool
    ) -> None:
        handle = model.handle
        assert handle is not None
        try:
            await handle.redraft(settings, urgent=urgent)
        except ModelError:
            return  # the worker's end is told elsewhere
        if model.handle is not handle or model.state is not State.READY:
            return
        model.loaded_settings = replace(settings, withhold_drafts="")
        model.drafts = then
        await self._measured.measure(model)
        self.reconcile(model)
        self._on_change()
