"""The eye on the workers: ends those that hang, and measures how late the event loop is."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Awaitable, Callable, Iterable

from homespecd.daemon.health import Health, Patience, Sighting, judge
from homespecd.daemon.processes import is_asleep, process_state
from homespecd.daemon.timings import Histogram
from homespecd.daemon.worker_handle import WorkerHandle

# While somebody waits for an answer a hang must be known within a second; else nobody is in a hurry
# and a service without work should not wake the machine.
BUSY_INTERVAL_S = 0.25
IDLE_INTERVAL_S = 5.0

# How late the event loop was. An answer to a status request is late by as much.
_LAG_S = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 5.0)


class Vigil:
    """Looks at every worker.

    Args:
        workers: those there are now, and whether each has answers to give.
        loading: those whose model is being loaded. They are only ended when they are stopped: how
            long a load may take, from a disk that sleeps or a network, nobody knows.
        clock_s: monotonic; it does not run while the machine is suspended.
    """

    def __init__(
        self,
        *,
        workers: Callable[[], Iterable[tuple[WorkerHandle, bool]]],
        loading: Callable[[], Iterable[WorkerHandle]],
        patience: Patience,
        clock_s: Callable[[], float] = time.monotonic,
    ) -> None:
        self.lag_s = Histogram(_LAG_S)
        self._workers = workers
        self._loading = loading
        self._patience = patience
        self._clock_s = clock_s
        self._health: dict[WorkerHandle, Health] = {}
        self._late_s = 0.0  # all the time in which this should have run and did not
        self._nudged = asyncio.Event()

    def nudge(self) -> None:
        """Something has changed: look now, and see whether to look more often."""
        self._nudged.set()

    async def run(self) -> None:
        """Until cancelled."""
        while True:
            if self.look():
                await self._rest(asyncio.sleep(BUSY_INTERVAL_S), BUSY_INTERVAL_S)
            elif not self._nudged.is_set():
                await self._rest(self._until_nudged(IDLE_INTERVAL_S), IDLE_INTERVAL_S)
            self._nudged.clear()

    async def _until_nudged(self, at_most_s: float) -> None:
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(at_most_s):
                await self._nudged.wait()

    async def _rest(self, wait: Awaitable[None], interval_s: float) -> None:
        began_s = self._clock_s()
        await wait
        late_s = self._clock_s() - began_s - interval_s
        if late_s >= 0.0:  # else it was nudged
            self.lag_s.add(late_s)
            self._late_s += late_s

    def look(self) -> bool:
        """Look at all workers once; True while one of them has something to do."""
        now_s = self._clock_s() - self._late_s
        before, self._health = self._health, {}
        any_busy = False
        for handle, busy in self._workers():
            health = judge(before.get(handle, Health()), _seen(handle, now_s), self._patience)
            any_busy = any_busy or busy
            self._keep(handle, health)
            handle.ask(now_s)
        for handle in self._loading():
            any_busy = True
            state = process_state(handle.pid)
            seen = Sighting(now_s, state=state.letter, ran_ns=state.ran_ns)
            self._keep(handle, judge(before.get(handle, Health()), seen, self._patience))
        return any_busy

    def _keep(self, handle: WorkerHandle, health: Health) -> None:
        self._health[handle] = health
        if health.verdict:
            handle.kill(health.verdict)


def _seen(handle: WorkerHandle, now_s: float) -> Sighting:
    state = process_state(handle.pid)
    return Sighting(
        now_s=now_s,
        state=state.letter,
        # Read only when it matters: a process has many threads.
        asleep=handle.asked_s is not None and is_asleep(handle.pid),
        cpu_s=state.cpu_s,
        faults=state.major_faults,
        ran_ns=state.ran_ns,
        asked_s=handle.asked_s,
        engine=handle.engine,
    )
