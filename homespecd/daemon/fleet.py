"""All models and their workers: carries out what `residency.plan` says.

Everything here runs on the event loop and between two awaits nothing else does, so the records need
no locks. The planner is asked after every change; loads and unloads are tasks of their own that end
by asking again.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Coroutine, Sequence
from dataclasses import replace

from homespecd.config.schema import Config, ModelConfig
from homespecd.daemon import memory, residency
from homespecd.daemon.cells import Cells, system_oom_kills
from homespecd.daemon.journal import event
from homespecd.daemon.learned import LearnedMemory, Needs
from homespecd.daemon.models import Model
from homespecd.daemon.settings import needs_new_worker, same_draft_models, worker_settings
from homespecd.daemon.views import (
    AddDrafts,
    Drafts,
    DropDrafts,
    End,
    Load,
    Refuse,
    Relief,
    State,
    Unload,
)
from homespecd.daemon.worker_handle import Owner, WorkerHandle
from homespecd.errors import ModelError, RequestError
from homespecd.worker.messages import WorkerSettings

# A request waits this long for its model to be loaded; the load goes on.
_LOAD_WAIT_S = 300.0

# Drafts that were given up after they had been loaded stay away for so long: what made them go may
# come again, and loading costs more than a minute without them.
_DRAFTS_AWAY_S = 30.0


class Fleet:
    """Owns the models.

    Args:
        command: how to start a worker.
        cells: makes the cgroups of workers.
        on_change: called after anything that a status line would show.
    """

    def __init__(
        self,
        *,
        command: Sequence[str],
        on_change: Callable[[], None],
        cells: Cells | None = None,
        clock_s: Callable[[], float] = time.monotonic,
    ) -> None:
        self.models: dict[str, Model] = {}
        self.learned: LearnedMemory | None = None
        self.relief = Relief.NONE
        self.clock_s = clock_s
        self._cells = cells or Cells(None)
        self._command = tuple(command)
        self._on_change = on_change
        self._log = logging.getLogger(__name__)
        self._cap_bytes = 0
        self._reserve_bytes = 0
        self._tasks: set[asyncio.Task[None]] = set()
        self._wake: asyncio.TimerHandle | None = None
        self._closing = False

    @property
    def used_bytes(self) -> int:
        return sum(model.held_bytes for model in self.models.values())

    # -- requests ------------------------------------------------------------------------------

    async def acquire(self, model: Model) -> WorkerHandle:
        """Wait until the model is ready and be let in; `release` must follow.

        Cancelling this cancels no load.

        Raises:
            RequestError: 503 with the reason why the model cannot be had now.
        """
        future: asyncio.Future[WorkerHandle] = asyncio.get_running_loop().create_future()
        model.waiters.append(future)
        model.held = False
        if model.wanted_since_s is None:
            model.wanted_since_s = self.clock_s()
        self.replan()
        let_in = False
        try:
            async with asyncio.timeout(_LOAD_WAIT_S):
                handle = await future
                let_in = True
                return handle
        except TimeoutError:
            raise RequestError(
                f"model {model.name!r} is still loading",
                status=503,
                code="model_loading",
                retry_after_s=10.0,
            ) from None
        finally:
            if future in model.waiters:
                model.waiters.remove(future)
                self.replan()
            elif not let_in and _succeeded(future):
                self.release(model)  # nobody is there any more to do so

    def release(self, model: Model) -> None:
        """A request that was let in has ended."""
        model.running -= 1
        model.idle_since_s = self.clock_s()
        self.replan()

    # -- commands ------------------------------------------------------------------------------

    async def unload(self, model: Model) -> None:
        """Let the model go once its running requests are done, and wait for that."""
        model.held = True
        if model.state in (State.UNLOADED, State.FAILED):
            return
        model.leaving = True
        goodbye: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        model.goodbyes.append(goodbye)
        self.replan()
        await goodbye

    def keep_alive(self, model: Model, seconds: float | None) -> None:
        """How long the model stays without work, until it goes; None = as configured."""
        model.keep_alive_s = seconds
        self.replan()

    def forgive(self, model: Model) -> None:
        """Forget that the model failed: someone says that it is worth a try now."""
        model.failures = 0
        model.retry_at_s = 0.0

    async def configure(self, config: Config) -> None:
        """Go over to another configuration; what did not change stays as it is."""
        new_settings = {name: worker_settings(config, name) for name in config.models}
        if self.learned is None or self.learned.state_dir != config.paths.state:
            self.learned = await asyncio.to_thread(LearnedMemory, config.paths.state)
        learned = self.learned
        needs = {
            name: await asyncio.to_thread(learned.needs, one) for name, one in new_settings.items()
        }
        self._cap_bytes = config.memory.cap_bytes
        self._reserve_bytes = config.memory.reserve_bytes
        for name, settings in new_settings.items():
            model = self.models.get(name)
            if model is None:
                self.models[name] = Model(
                    name=name,
                    config=config.models[name],
                    settings=settings,
                    created_s=int(time.time()),
                    estimate=needs[name].estimate,
                    memory_key=needs[name].key,
                )
            else:
                self._reconfigure(model, config.models[name], settings, needs[name])
        for name, model in list(self.models.items()):
            if name not in new_settings:
                self._remove(model)
        self.replan()

    def fail_all(self, error: RequestError) -> None:
        """End everything that runs or waits with `error`."""
        for model in self.models.values():
            model.turn_away(error)
            if model.handle is not None:
                model.handle.fail_all(error)

    async def close(self, *, error: RequestError) -> None:
        """End every worker; whoever waits for one gets `error`."""
        self._closing = True
        if self._wake is not None:
            self._wake.cancel()
        self.fail_all(error)
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        handles = [m.handle for m in self.models.values() if m.handle is not None]
        await asyncio.gather(*(handle.stop() for handle in handles))
        for model in self.models.values():
            self._learn(model, exactly=True)
        if self.learned is not None:
            await asyncio.to_thread(self.learned.save)

    # -- planning ------------------------------------------------------------------------------

    def replan(self) -> None:
        """Ask the planner and act on the answer."""
        if self._closing:
            return
        plan = residency.plan(
            [model.view() for model in self.models.values()],
            cap_bytes=self._cap_bytes,
            limit_bytes=self._limit_bytes(),
            now_s=self.clock_s(),
            relief=self.relief,
        )
        for action in plan.actions:
            model = self.models[action.name]
            if isinstance(action, Load):
                model.drafts = Drafts.ON if action.drafts else Drafts.OFF
                self._begin(model, State.LOADING, self._load(model))
            elif isinstance(action, Unload):
                self._note(logging.INFO, model, "unloading", f"unloading: {action.why}")
                self._begin(model, State.UNLOADING, self._unload(model))
            elif isinstance(action, End):
                self._end(model, action.why)
            elif isinstance(action, DropDrafts):
                self._drop_drafts(model, action.why)
            elif isinstance(action, AddDrafts):
                self._note(logging.INFO, model, "drafts_on", "its drafts come back")
                self._redraft(model, model.settings, passing=Drafts.ADDING, then=Drafts.ON)
            else:
                self._refuse(model, action)
        for model in self.models.values():
            if model.name not in plan.draining:
                model.let_in()
        self._set_alarm(plan.wake_at_s)
        self._on_change()

    def _limit_bytes(self) -> int:
        # What was promised and is not yet taken is still there to be seen, and is not to be had.
        promised = sum(model.promised_bytes for model in self.models.values())
        can_grow = max(0, memory.available_bytes() - self._reserve_bytes - promised)
        return min(self._cap_bytes, self.used_bytes + can_grow)

    def _refuse(self, model: Model, refusal: Refuse) -> None:
        if refusal.code == "insufficient_memory" and model.error != refusal.message:
            self._note(logging.WARNING, model, "refused", f"not loaded: {refusal.message}")
            model.error = refusal.message
        error = RequestError(
            refusal.message, status=503, code=refusal.code, retry_after_s=refusal.retry_after_s
        )
        model.turn_away(error)

    def _set_alarm(self, wake_at_s: float | None) -> None:
        if self._wake is not None:
            self._wake.cancel()
            self._wake = None
        if wake_at_s is not None:
            delay_s = max(0.0, wake_at_s - self.clock_s())
            self._wake = asyncio.get_running_loop().call_later(delay_s, self.replan)

    # -- loading and unloading -----------------------------------------------------------------

    def _begin(self, model: Model, state: State, work: Coroutine[None, None, None]) -> None:
        model.state = state
        task = asyncio.get_running_loop().create_task(self._finish(model, work))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _finish(self, model: Model, work: Coroutine[None, None, None]) -> None:
        try:
            await work
        except Exception:
            self._log.exception("model %s", model.name)
            if model.handle is not None:
                model.handle.kill("the service lost track of it")
            self._failed(model, "the service failed to load or unload it")
        self.replan()

    async def _load(self, model: Model) -> None:
        started_s = self.clock_s()
        settings = model.settings
        about = residency.mib(model.held_bytes)
        self._note(logging.INFO, model, "loading", f"loading, about {about}")
        oom_kills_before = await asyncio.to_thread(system_oom_kills)

        def started(pid: int) -> None:
            model.cell = self._cells.open(model.name, max_bytes=self._most_bytes(model))
            if model.cell is not None:
                model.cell.enter(pid)

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
                self._died(model, reason)

        owner = Owner(
            loading=lambda what: self._progress(model, what),
            exited=exited,
            started=started,
            out_of_memory=out_of_memory,
        )
        try:
            given = settings if model.drafts is Drafts.ON else self._without_drafts(model)
            handle = await WorkerHandle.start(given, command=self._command, owner=owner)
        except ModelError as error:
            self._failed(model, str(error))
            return
        if ended:  # between its last word about the load and now
            self._failed(model, ended[0])
            return
        model.handle = handle
        model.loads += 1
        model.loaded_settings = settings
        model.state = State.READY
        model.error = model.progress = ""
        model.idle_since_s = self.clock_s()
        self._reconcile(model)
        took_ms = (model.idle_since_s - started_s) * 1e3
        await self.measure(model)
        held = residency.mib(model.held_bytes)
        self._note(logging.INFO, model, "ready", f"ready after {took_ms:.0f} ms, {held}")

    def _most_bytes(self, model: Model) -> int:
        own = model.config.memory_cap_bytes
        return self._cap_bytes if own is None else min(own, self._cap_bytes)

    def _without_drafts(self, model: Model) -> WorkerSettings:
        draft = residency.mib(model.view().draft_bytes)
        cap = residency.mib(self._most_bytes(model))
        why = f"its {draft} do not fit beside the target, and the cap is {cap}"
        if self.relief is not Relief.NONE:
            why = "the machine is short of memory"
        self._note(logging.WARNING, model, "drafts_off", f"loading without its drafts: {why}")
        return replace(model.settings, withhold_drafts=why)

    def _note(self, level: int, model: Model, what: str, text: str) -> None:
        """A line of the log about a model, with fields that alerts can ask for."""
        fields = event(f"model_{what}", model=model.name)
        self._log.log(level, "model %s: %s", model.name, text, extra=fields)

    async def _unload(self, model: Model) -> None:
        assert model.handle is not None
        await model.handle.stop()
        model.handle = None
        model.state = State.UNLOADED
        self._gone(model)

    def _end(self, model: Model, why: str) -> None:
        """`_died` follows."""
        assert model.handle is not None
        model.handle.kill(why)

    def _failed(self, model: Model, error: str) -> None:
        model.state = State.FAILED
        model.handle = None
        model.progress = ""
        model.error = error
        model.failures += 1
        model.retry_at_s = self.clock_s() + residency.backoff_s(model.failures)
        self._note(logging.ERROR, model, "failed", error)
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
        self._learn(model, exactly=True)
        # The next load goes by what was learned, which knows of settings that changed.
        model.forget_measured()
        if model.removed:
            self._forget(model)

    def _died(self, model: Model, reason: str) -> None:
        self._failed(model, reason)
        self.replan()

    def _progress(self, model: Model, what: str) -> None:
        model.progress = what
        self._on_change()

    # -- drafts --------------------------------------------------------------------------------

    def _drop_drafts(self, model: Model, why: str) -> None:
        self._note(logging.WARNING, model, "drafts_off", f"goes on without its drafts: {why}")
        model.drafts_not_before_s = self.clock_s() + _DRAFTS_AWAY_S
        settings = replace(model.settings, withhold_drafts=why)
        self._redraft(model, settings, passing=Drafts.REMOVING, then=Drafts.OFF)

    def _redraft(
        self,
        model: Model,
        settings: WorkerSettings,
        *,
        passing: Drafts,
        then: Drafts,
        urgent: bool = True,
    ) -> None:
        """Give the worker other drafters while it serves."""
        model.drafts = passing
        task = asyncio.get_running_loop().create_task(
            self._redrafted(model, settings, then=then, urgent=urgent)
        )
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _redrafted(
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
        await self.measure(model)
        self._reconcile(model)
        self.replan()

    def _reconcile(self, model: Model) -> None:
        """A model in memory goes over to its settings: other drafters at once, all else by leaving
        when its requests are done."""
        loaded, wanted = model.loaded_settings, model.settings
        assert loaded is not None
        model.leaving = bool(model.goodbyes) or model.removed or needs_new_worker(loaded, wanted)
        if model.leaving or loaded == wanted or model.drafts in (Drafts.ADDING, Drafts.REMOVING):
            return
        self._log.info("model %s: its drafters change", model.name)
        if same_draft_models(loaded, wanted):
            given, then = wanted, model.drafts
            if then is Drafts.OFF:
                given = replace(wanted, withhold_drafts="there is no room for it")
            self._redraft(model, given, passing=Drafts.ADDING, then=then, urgent=False)
            return
        # The old ones go first; the planner brings the new ones when there is room.
        given = replace(wanted, withhold_drafts="it is being exchanged")
        self._redraft(model, given, passing=Drafts.REMOVING, then=Drafts.OFF, urgent=False)

    # -- memory --------------------------------------------------------------------------------

    async def measure(self, model: Model) -> None:
        """Look at what the worker of a model that is ready holds."""
        handle = model.handle
        if handle is None or model.state is not State.READY:
            return
        held = await asyncio.to_thread(memory.worker_bytes, handle.pid)
        if held is None or model.handle is not handle:
            return
        model.peak_bytes = max(model.peak_bytes, held)
        if model.drafts is Drafts.ON:
            # One that could not be opened holds nothing, and is still one that may come back.
            model.draft_bytes = max(handle.draft_bytes, min(1, model.estimate.draft_bytes))
            model.target_bytes = max(0, held - model.draft_bytes)
        elif model.drafts is Drafts.OFF:
            model.target_bytes = held
        if model.target_bytes is not None:
            if handle.info.get("provider") == "cpu":
                # Weights that are mapped and were not read, or were taken back by the kernel, are
                # not held now; the next step may need all of them.
                model.target_bytes = max(model.target_bytes, model.estimate.floor_bytes)
            model.most_bytes = max(model.most_bytes, model.target_bytes)
        self._learn(model)

    def _learn(self, model: Model, *, exactly: bool = False) -> None:
        """Remember what the present worker needed, if it goes by the present settings."""
        if self.learned is None or not model.most_bytes:
            return
        if model.loaded_settings != model.settings:
            return
        needed = replace(model.estimate, target_bytes=model.most_bytes)
        if model.draft_bytes is not None:
            needed = replace(needed, draft_bytes=model.draft_bytes)
        self.learned.note(model.memory_key, needed, exactly=exactly)
        model.estimate = self.learned.get(model.memory_key) or needed

    # -- configuration -------------------------------------------------------------------------

    def _reconfigure(
        self, model: Model, config: ModelConfig, settings: WorkerSettings, needs: Needs
    ) -> None:
        model.removed = False
        model.config = config
        self.forgive(model)
        if model.cell is not None:
            model.cell.limit(self._most_bytes(model))
        if settings == model.settings and needs.key == model.memory_key:
            return
        model.settings = settings
        model.estimate, model.memory_key = needs.estimate, needs.key
        if model.state is State.READY:
            assert model.loaded_settings is not None
            if not same_draft_models(model.loaded_settings, settings):
                model.draft_bytes = None
                model.drafts_not_before_s = 0.0
            self._reconcile(model)

    def _remove(self, model: Model) -> None:
        model.removed = True
        error = RequestError(
            f"model {model.name!r} was taken out of the configuration",
            status=404,
            code="model_not_found",
            param="model",
        )
        model.turn_away(error)
        if model.state in (State.UNLOADED, State.FAILED):
            self._forget(model)
        else:
            model.leaving = True

    def _forget(self, model: Model) -> None:
        self.models.pop(model.name, None)


def _succeeded(future: asyncio.Future[WorkerHandle]) -> bool:
    return future.done() and not future.cancelled() and future.exception() is None
