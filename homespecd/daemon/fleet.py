"""All models and their workers: carries out what `residency.plan` says.

Everything here runs on the event loop and between two awaits nothing else does, so the records need
no locks. The planner is asked after every change; loads and unloads are tasks of their own that end
by asking again.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Coroutine, Mapping, Sequence

from homespecd.config.schema import Config, ModelConfig
from homespecd.daemon import memory, residency
from homespecd.daemon.models import Model
from homespecd.daemon.residency import Load, Refuse, State, Unload
from homespecd.daemon.settings import worker_settings
from homespecd.daemon.worker_handle import Owner, WorkerHandle
from homespecd.errors import ModelError, RequestError
from homespecd.worker.messages import WorkerSettings

# A request waits this long for its model to be loaded; the load goes on.
_LOAD_WAIT_S = 300.0

_MEASURE_INTERVAL_S = 2.0


class Fleet:
    """Owns the models.

    Args:
        command: how to start a worker.
        on_change: called after anything that a status line would show.
    """

    def __init__(
        self,
        *,
        command: Sequence[str],
        on_change: Callable[[], None],
        clock_s: Callable[[], float] = time.monotonic,
    ) -> None:
        self.models: dict[str, Model] = {}
        self._command = tuple(command)
        self._on_change = on_change
        self._clock_s = clock_s
        self._log = logging.getLogger(__name__)
        self._cap_bytes = 0
        self._reserve_bytes = 0
        self._tasks: set[asyncio.Task[None]] = set()
        self._wake: asyncio.TimerHandle | None = None
        self._closing = False

    @property
    def used_bytes(self) -> int:
        return sum(
            m.needed_bytes
            for m in self.models.values()
            if m.state in (State.LOADING, State.READY, State.UNLOADING)
        )

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
            model.wanted_since_s = self._clock_s()
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
        model.idle_since_s = self._clock_s()
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

    def forgive(self, model: Model) -> None:
        """Forget that the model failed: someone says that it is worth a try now."""
        model.failures = 0
        model.retry_at_s = 0.0

    async def configure(self, config: Config) -> None:
        """Go over to another configuration; what did not change stays as it is."""
        new_settings = {name: worker_settings(config, name) for name in config.models}
        estimates = await asyncio.to_thread(_estimates, new_settings)
        self._cap_bytes = config.memory.cap_bytes
        self._reserve_bytes = config.memory.reserve_bytes
        for name, settings in new_settings.items():
            model = self.models.get(name)
            if model is None:
                model = Model(
                    name=name,
                    config=config.models[name],
                    settings=settings,
                    created_s=int(time.time()),
                    estimate_bytes=estimates[name],
                )
                self.models[name] = model
            else:
                self._reconfigure(model, config.models[name], settings, estimates[name])
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

    async def measure(self) -> None:
        """Look at the memory of every worker, again and again. Runs until cancelled."""
        while True:
            await asyncio.sleep(_MEASURE_INTERVAL_S)
            for model in list(self.models.values()):
                await self._measure(model)
            self.replan()

    # -- planning ------------------------------------------------------------------------------

    def replan(self) -> None:
        """Ask the planner and act on the answer."""
        if self._closing:
            return
        plan = residency.plan(
            [model.view() for model in self.models.values()],
            cap_bytes=self._cap_bytes,
            limit_bytes=self._limit_bytes(),
            now_s=self._clock_s(),
        )
        for action in plan.actions:
            model = self.models[action.name]
            if isinstance(action, Load):
                self._begin(model, State.LOADING, self._load(model))
            elif isinstance(action, Unload):
                self._log.info("model %s: unloading: %s", model.name, action.why)
                self._begin(model, State.UNLOADING, self._unload(model))
            else:
                self._refuse(model, action)
        for model in self.models.values():
            if model.name not in plan.draining:
                model.let_in()
        self._set_alarm(plan.wake_at_s)
        self._on_change()

    def _limit_bytes(self) -> int:
        can_grow = max(0, memory.available_bytes() - self._reserve_bytes)
        return min(self._cap_bytes, self.used_bytes + can_grow)

    def _refuse(self, model: Model, refusal: Refuse) -> None:
        if refusal.code == "insufficient_memory" and model.error != refusal.message:
            self._log.warning("model %s: not loaded: %s", model.name, refusal.message)
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
            delay_s = max(0.0, wake_at_s - self._clock_s())
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
            self._failed(model, "the service failed to load or unload it")
        self.replan()

    async def _load(self, model: Model) -> None:
        started_s = self._clock_s()
        settings = model.settings
        self._log.info("model %s: loading, about %s", model.name, residency.mib(model.needed_bytes))
        owner = Owner(
            loading=lambda what: self._progress(model, what),
            exited=lambda reason: self._died(model, reason),
        )
        try:
            handle = await WorkerHandle.start(settings, command=self._command, owner=owner)
        except ModelError as error:
            self._failed(model, str(error))
            return
        model.handle = handle
        model.loads += 1
        model.loaded_settings = settings
        model.state = State.READY
        model.leaving = model.leaving or settings != model.settings
        model.error = model.progress = ""
        model.idle_since_s = self._clock_s()
        took_ms = (model.idle_since_s - started_s) * 1e3
        await self._measure(model)
        self._log.info(
            "model %s: ready after %.0f ms, %s",
            model.name,
            took_ms,
            residency.mib(model.needed_bytes),
        )

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
        self._log.error("model %s: %s", model.name, error)
        model.turn_away(RequestError(error, status=503, code="model_failed", retry_after_s=1.0))
        self._gone(model)

    def _gone(self, model: Model) -> None:
        """The worker has ended, one way or the other."""
        model.leaving = False
        for goodbye in model.goodbyes:
            if not goodbye.done():
                goodbye.set_result(None)
        model.goodbyes.clear()
        if model.settings != model.loaded_settings:
            # What was measured belongs to the old settings.
            model.measured_bytes = None
        if model.removed:
            self._forget(model)

    def _died(self, model: Model, reason: str) -> None:
        self._failed(model, reason)
        self.replan()

    def _progress(self, model: Model, what: str) -> None:
        model.progress = what
        self._on_change()

    async def _measure(self, model: Model) -> None:
        if model.handle is None or model.state is not State.READY:
            return
        held = await asyncio.to_thread(memory.worker_bytes, model.handle.pid)
        if held is not None:
            model.measured_bytes = held

    # -- configuration -------------------------------------------------------------------------

    def _reconfigure(
        self, model: Model, config: ModelConfig, settings: WorkerSettings, estimate_bytes: int
    ) -> None:
        model.removed = False
        model.config = config
        self.forgive(model)
        if settings == model.settings:
            return
        model.settings = settings
        model.estimate_bytes = estimate_bytes
        if model.state is State.READY:
            model.leaving = settings != model.loaded_settings
        elif model.state in (State.UNLOADED, State.FAILED):
            model.measured_bytes = None

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


def _estimates(settings: Mapping[str, WorkerSettings]) -> dict[str, int]:
    return {name: memory.estimate_bytes(one) for name, one in settings.items()}
