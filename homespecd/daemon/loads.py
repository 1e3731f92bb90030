"""How the worker of a model comes and goes: started, given up, ended, gone."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Coroutine, Sequence
from dataclasses import replace

from homespecd.config.units import format_size
from homespecd.daemon import residency
from homespecd.daemon.cells import Cells, system_oom_kills
from homespecd.daemon.measured import MeasuredMemory
from homespecd.daemon.models import Model, note
from homespecd.daemon.redrafts import Redrafts
from homespecd.daemon.tasks import Tasks
from homespecd.daemon.views import Drafts, State
from homespecd.daemon.worker_handle import Owner, WorkerHandle
from homespecd.errors import ModelError, RequestError
from homespecd.worker.messages import WorkerSettings


class Loads:
    """Loads and unloads models.

    Args:
        command: how to start a worker.
        cells: makes the cgroups of workers.
        on_end: called when a load or unload is over, or a worker has ended by itself.
        on_progress: called when a load has come further.
        on_removed: called when nothing is left of a model that was taken out of the configuration.
    """

    def __init__(
        self,
        *,
        command: Sequence[str],
        cells: Cells,
        tasks: Tasks,
        measured: MeasuredMemory,
        redrafts: Redrafts,
        on_end: Callable[[], None],
        on_progress: Callable[[], None],
        on_removed: Callable[[Model], None],
        clock_s: Callable[[], float],
    ) -> None:
        self._command = tuple(command)
        self._cells = cells
        self._tasks = tasks
        self._measured = measured
        self._redrafts = redrafts
        self._on_end = on_end
        self._on_progress = on_progress
        self._on_removed = on_removed
        self._clock_s = clock_s

    def load(self, model: Model, *, most_bytes: int, alone: str) -> None:
        """Begin to load a model.

        Args:
            most_bytes: what the kernel may let its worker hold.
            alone: why its drafts are left out; "" = they come with it.
        """
        settings = model.settings
        if alone:
            note(logging.WARNING, model, "drafts_off", f"loading without its drafts: {alone}")
            settings = replace(settings, withhold_drafts=alone)
        model.drafts = Drafts.OFF if alone else Drafts.ON
        self._begin(model, State.LOADING, self._load(model, settings, most_bytes))

    def unload(self, model: Model, why: str) -> None:
        """Begin to end the worker of a model without requests."""
        note(logging.INFO, model, "unloading", f"unloading: {why}")
        self._begin(model, State.UNLOADING, self._unload(model))

    def _begin(self, model: Model, state: State, work: Coroutine[None, None, None]) -> None:
        model.state = state
        self._tasks.start(self._finish(model, work))

    async def _finish(self, model: Model, work: Coroutine[None, None, None]) -> None:
        try:
            await work
        except Exception:
            logging.getLogger(__name__).exception("model %s", model.name)
            if model.handle is not None:
                model.handle.kill("the service lost track of it")
            self._failed(model, "the service failed to load or unload it")
        self._on_end()

    async def _load(self, model: Model, given: WorkerSettings, most_bytes: int) -> None:
        started_s = self._clock_s()
        settings = replace(given, withhold_drafts="")
        about = format_size(model.held_bytes)
        note(logging.INFO, model, "loading", f"loading, about {about}")
        oom_kills_before = await asyncio.to_thread(system_oom_kills)

        def started(coming: WorkerHandle) -> None:
            model.coming = coming
            model.cell = self._cells.open(model.name, max_bytes=most_bytes)
            if model.cell is not None:
                model.cell.enter(coming.pid)

        def out_of_memory() -> bool:
            if model.cell is not None:
                return model.cell.oom_kills > 0
            return system_oom_kills() > oom_kills_before

        handle: WorkerHandle | None = None
        ended: list[str] = []

        def exited(reason: str) -> None:
            ended.append(reason)
            # One that is not the model's any more was given up; another may be loading.
            if handle is not None and model.handle is handle:
                self._failed(model, reason)
                self._on_end()

        owner = Owner(
            loading=lambda what: self._progress(model, what),
            exited=exited,
            started=started,
            out_of_memory=out_of_memory,
        )
        try:
            handle = await WorkerHandle.start(given, command=self._command, owner=owner)
        except ModelError as error:
            self._failed(model, str(error))
            return
        finally:
            model.coming = None
        if ended:  # between its last word about the load and now
            self._failed(model, ended[0])
            return
        model.handle = handle
        model.loads += 1
        model.loaded_settings = settings
        model.state = State.READY
        model.error = model.progress = ""
        model.idle_since_s = self._clock_s()
        self._on_progress()  # now: who asks meanwhile is told that it is ready
        self._redrafts.reconcile(model)
        took_ms = (model.idle_since_s - started_s) * 1e3
        await self._measured.measure(model)
        held = format_size(model.held_bytes)
        where = handle.info.get("provider", "?")
        note(logging.INFO, model, "ready", f"ready on {where} after {took_ms:.0f} ms, {held}")

    def _progress(self, model: Model, what: str) -> None:
        model.progress = what
        self._on_progress()

    async def _unload(self, model: Model) -> None:
        assert model.handle is not None
        await model.handle.stop()
        model.handle = None
        model.state = State.UNLOADED
        self._gone(model)

    def _failed(self, model: Model, error: str) -> None:
        model.state = State.FAILED
        model.handle = None
        model.progress = ""
        model.error = error
        model.failures += 1
        model.retry_at_s = self._clock_s() + residency.backoff_s(model.failures)
        note(logging.ERROR, model, "failed", error)
        model.turn_away(RequestError(error, status=503, code="model_failed", retry_after_s=1.0))
        self._gone(model)

    def _gone(self, model: Model) -> None:
        """The worker has ended, one way or the other."""
        model.leaving = False
        model.keep_alive_s = None
        for goodbye in model.goodbyes:
            if not goodbye.done():
                goodbye.set_result(None)
        model.goodbyes.clear()
        model.drafts = Drafts.OFF
        if model.cell is not None:
            model.cell.remove()
            model.cell = None
        self._measured.learn(model, exactly=True)
        # The next load goes by what was learned, which knows of settings that changed.
        model.forget_measured()
        if model.removed:
            self._on_removed(model)
