"""The record of one configured model; `fleet` keeps it."""

from __future__ import annotations

import asyncio
from collections import deque
from dataclasses import dataclass, field

from homespecd.config.schema import ModelConfig
from homespecd.daemon.residency import ModelView, State
from homespecd.daemon.worker_handle import WorkerHandle
from homespecd.errors import RequestError
from homespecd.worker.messages import WorkerSettings


@dataclass
class Totals:
    """What was asked of a model since the service started, over all its workers."""

    requests: int = 0
    prompt_tokens: int = 0
    completion_tokens: int = 0
    rounds: int = 0
    proposed: int = 0
    accepted: int = 0
    failures: int = 0


@dataclass
class Model:
    """One configured model.

    running: requests that were let in and have not ended. waiters: those that wait to be let in.
    settings: what the next load uses; `loaded_settings` what the present worker was started with.
    goodbyes: whoever waits for the present worker's end.
    leaving: goes when its requests are done. held: a pinned model told to go stays away until it
    is asked for. removed: no longer in the configuration.
    """

    name: str
    config: ModelConfig
    settings: WorkerSettings
    created_s: int
    estimate_bytes: int
    state: State = State.UNLOADED
    loaded_settings: WorkerSettings | None = None
    handle: WorkerHandle | None = None
    running: int = 0
    waiters: deque[asyncio.Future[WorkerHandle]] = field(default_factory=deque)
    goodbyes: list[asyncio.Future[None]] = field(default_factory=list)
    wanted_since_s: float | None = None
    idle_since_s: float = 0.0
    failures: int = 0
    retry_at_s: float = 0.0
    error: str = ""
    loads: int = 0
    progress: str = ""
    measured_bytes: int | None = None
    leaving: bool = False
    held: bool = False
    removed: bool = False
    totals: Totals = field(default_factory=Totals)

    @property
    def pinned(self) -> bool:
        return self.config.residency == "pinned"

    @property
    def needed_bytes(self) -> int:
        """Measured memory counts as soon as there is any."""
        return self.estimate_bytes if self.measured_bytes is None else self.measured_bytes

    def view(self) -> ModelView:
        """The model as the planner sees it."""
        pinned = self.pinned and not (self.held or self.removed)
        since = self.wanted_since_s if self.waiters else None
        if pinned and since is None and self.state in (State.UNLOADED, State.FAILED):
            since = 0.0
        return ModelView(
            name=self.name,
            state=self.state,
            needed_bytes=self.needed_bytes,
            pinned=pinned,
            wanted_since_s=since,
            busy=self.running > 0,
            idle_since_s=self.idle_since_s,
            idle_unload_s=self.config.idle_unload_s,
            leaving=self.leaving and self.state is State.READY,
            retry_at_s=self.retry_at_s,
            error=self.error,
            cap_bytes=self.config.memory_cap_bytes,
        )

    def let_in(self) -> None:
        """Whoever waits may go on, if the model is there to stay."""
        if self.state is not State.READY or self.leaving:
            return
        assert self.handle is not None
        while self.waiters:
            waiter = self.waiters.popleft()
            if not waiter.done():
                self.running += 1
                waiter.set_result(self.handle)
        self.wanted_since_s = None

    def turn_away(self, error: RequestError) -> None:
        """Whoever waits gets `error`."""
        while self.waiters:
            waiter = self.waiters.popleft()
            if not waiter.done():
                waiter.set_exception(error)
        self.wanted_since_s = None
