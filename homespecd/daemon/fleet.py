"""All models: who is wanted, who holds what, and what `residency.plan` says about it.

Everything here runs on the event loop and between two awaits nothing else does, so the records need
no locks. The planner is asked after every change; what it says is carried out by `loads` and
`redrafts` in tasks of their own, which end by asking again.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Mapping, Sequence

from homespecd.config.schema import Config
from homespecd.config.units import format_size
from homespecd.daemon import memory, residency
from homespecd.daemon.cells import Cells
from homespecd.daemon.loads import Loads
from homespecd.daemon.measured import MeasuredMemory
from homespecd.daemon.models import Model, note
from homespecd.daemon.redrafts import Redrafts
from homespecd.daemon.roster import Roster
from homespecd.daemon.tasks import Tasks
from homespecd.daemon.views import (
    AddDrafts,
    DropDrafts,
    End,
    Load,
    Refuse,
    Relief,
    State,
    Unload,
)
from homespecd.daemon.worker_handle import WorkerHandle
from homespecd.errors import RequestError

# A request waits this long for its model to be loaded; the load goes on.
_LOAD_WAIT_S = 300.0


class Fleet:
    """What is asked of models goes through here. `roster` keeps their records.

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
        self.relief = Relief.NONE
        self.measured = MeasuredMemory()
        self._clock_s = clock_s
        self._on_change = on_change
        self._tasks = Tasks()
        self._redrafts = Redrafts(
            tasks=self._tasks, measured=self.measured, on_change=self.replan, clock_s=clock_s
        )
        self._roster = Roster(measured=self.measured, redrafts=self._redrafts)
        self.models: Mapping[str, Model] = self._roster.models
        self._loads = Loads(
            command=command,
            cells=cells or Cells(None),
            tasks=self._tasks,
            measured=self.measured,
            redrafts=self._redrafts,
            on_end=self.replan,
            on_progress=on_change,
            on_removed=self._roster.forget,
            clock_s=clock_s,
        )
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
            model.wanted_since_s = self._clock_s()
        let_in = False
        try:
            self.replan()
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

    def keep_alive(self, model: Model, seconds: float | None) -> None:
        """How long the model stays without work, until it goes; None = as configured."""
        model.keep_alive_s = seconds
        self.replan()

    def forgive(self, model: Model) -> None:
        """Someone says that the model is worth a try now."""
        model.forgive()

    async def configure(self, config: Config) -> None:
        """Go over to another configuration; what did not change stays as it is."""
        await self._roster.configure(config)
        self.replan()

    def break_off(self, why: str) -> None:
        """End every job; requests go on."""
        for model in self.models.values():
            model.break_off(why)

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
        await self._tasks.cancel()
        handles = [m.handle for m in self.models.values() if m.handle is not None]
        await asyncio.gather(*(handle.stop() for handle in handles))
        for model in self.models.values():
            self.measured.learn(model, exactly=True)
        await self.measured.save()

    # -- planning ------------------------------------------------------------------------------

    def replan(self) -> None:
        """Ask the planner and act on the answer."""
        if self._closing:
            return
        plan = residency.plan(
            [model.view() for model in self.models.values()],
            cap_bytes=self._roster.cap_bytes,
            limit_bytes=self._limit_bytes(),
            now_s=self._clock_s(),
            relief=self.relief,
        )
        for action in plan.actions:
            model = self.models[action.name]
            if isinstance(action, Load):
                alone = "" if action.drafts else self._why_alone(model)
                self._loads.load(model, most_bytes=self._roster.most_bytes(model), alone=alone)
            elif isinstance(action, Unload):
                self._loads.unload(model, action.why)
            elif isinstance(action, End):
                assert model.handle is not None
                model.handle.kill(action.why)  # its end is told as any other
            elif isinstance(action, DropDrafts):
                self._redrafts.drop(model, action.why)
            elif isinstance(action, AddDrafts):
                self._redrafts.bring_back(model)
            else:
                self._refuse(model, action)
        for model in self.models.values():
            if model.name in plan.draining:
                model.break_off("another model needs its memory")
                continue
            if model.leaving:
                model.break_off(model.why_leaving)
            model.let_in()
        self._set_alarm(plan.wake_at_s)
        self._on_change()

    def _limit_bytes(self) -> int:
        # What was promised and is not yet taken is still there to be seen, and is not to be had.
        promised = sum(model.promised_bytes for model in self.models.values())
        can_grow = max(0, memory.available_bytes() - self._roster.reserve_bytes - promised)
        return min(self._roster.cap_bytes, self.used_bytes + can_grow)

    def _refuse(self, model: Model, refusal: Refuse) -> None:
        if refusal.code == "insufficient_memory" and model.error != refusal.message:
            note(logging.WARNING, model, "refused", f"not loaded: {refusal.message}")
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

    def _why_alone(self, model: Model) -> str:
        if self.relief is not Relief.NONE:
            return "the machine is short of memory"
        draft = format_size(model.view().draft_bytes)
        cap = format_size(self._roster.most_bytes(model))
        return f"its {draft} do not fit beside the target, and the cap is {cap}"


def _succeeded(future: asyncio.Future[WorkerHandle]) -> bool:
    return future.done() and not future.cancelled() and future.exception() is None
