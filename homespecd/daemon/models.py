"""The record of one configured model; `roster` keeps it."""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from dataclasses import dataclass, field

from homespecd.config.schema import ModelConfig
from homespecd.daemon.cells import Cell
from homespecd.daemon.estimate import Estimate
from homespecd.daemon.journal import event
from homespecd.daemon.timings import Timings
from homespecd.daemon.views import Drafts, ModelView, State
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
    settings: what the next load uses; `loaded_settings` what the present worker goes by.
    estimate: what the next load will need, learned if it was ever loaded so; memory_key: for that.
    target_bytes, draft_bytes: measured, None before there is anything to measure; most_bytes: the
    most that the target of the present worker held; peak_bytes: with its drafts.
    keep_alive_s: what a client wished for the present worker instead of `idle_unload`.
    handle: of the worker that is ready; coming: of one that loads.
    goodbyes: whoever waits for the present worker's end.
    leaving: goes when its requests are done. held: a pinned model told to go stays away until it
    is asked for. removed: no longer in the configuration.
    """

    name: str
    config: ModelConfig
    settings: WorkerSettings
    created_s: int
    estimate: Estimate
    memory_key: str = ""
    state: State = State.UNLOADED
    loaded_settings: WorkerSettings | None = None
    handle: WorkerHandle | None = None
    coming: WorkerHandle | None = None
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
    target_bytes: int | None = None
    draft_bytes: int | None = None
    most_bytes: int = 0
    peak_bytes: int = 0
    drafts: Drafts = Drafts.OFF
    drafts_not_before_s: float = 0.0
    cell: Cell | None = None
    keep_alive_s: float | None = None
    leaving: bool = False
    held: bool = False
    removed: bool = False
    totals: Totals = field(default_factory=Totals)
    timings: Timings = field(default_factory=Timings)

    @property
    def pinned(self) -> bool:
        return self.config.residency == "pinned"

    @property
    def pid(self) -> int | None:
        """Of its worker, ready or not."""
        worker = self.handle or self.coming
        return None if worker is None else worker.pid

    @property
    def held_bytes(self) -> int:
        """What it holds now or has been promised; measured memory counts as soon as it is there."""
        return self.view().held_bytes

    @property
    def promised_bytes(self) -> int:
        """Of that, what the worker has not taken yet."""
        if self.state is State.LOADING:
            return self.held_bytes
        return self.view().draft_bytes if self.drafts is Drafts.ADDING else 0

    def forget_measured(self) -> None:
        """What was measured belongs to other settings."""
        self.target_bytes = self.draft_bytes = None
        self.most_bytes = self.peak_bytes = 0

    @property
    def idle_unload_s(self) -> float:
        """How long it stays without work: as the last client wished, else as configured."""
        wish = self.keep_alive_s
        return self.config.idle_unload_s if wish is None else wish

    def view(self) -> ModelView:
        """The model as the planner sees it."""
        pinned = self.pinned and not (self.held or self.removed)
        since = self.wanted_since_s if self.waiters else None
        if pinned and since is None and self.state in (State.UNLOADED, State.FAILED):
            since = 0.0
        return ModelView(
            name=self.name,
            state=self.state,
            needed_bytes=_or(self.target_bytes, self.estimate.target_bytes),
            draft_bytes=_or(self.draft_bytes, self.estimate.draft_bytes),
            drafts=self.drafts,
            drafts_not_before_s=self.drafts_not_before_s,
            pinned=pinned,
            wanted_since_s=since,
            busy=self.running > 0,
            idle_since_s=self.idle_since_s,
            idle_unload_s=self.idle_unload_s,
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

    def break_off(self, why: str) -> None:
        """End its jobs. They take minutes, and nobody should have to wait so long for its place."""
        if self.handle is not None:
            self.handle.break_off(why)

    @property
    def why_leaving(self) -> str:
        """What makes a `leaving` model go."""
        if self.removed:
            return "the model was taken out of the configuration"
        return "the model is being unloaded" if self.goodbyes else "the model's settings changed"

    def forgive(self) -> None:
        """Forget that it failed."""
        self.failures = 0
        self.retry_at_s = 0.0
        if self.state is State.UNLOADED:
            self.error = ""  # of a refusal, which may end otherwise now

    def turn_away(self, error: RequestError) -> None:
        """Whoever waits gets `error`."""
        while self.waiters:
            waiter = self.waiters.popleft()
            if not waiter.done():
                waiter.set_exception(error)
        self.wanted_since_s = None


def note(level: int, model: Model, what: str, text: str) -> None:
    """A line of the log about a model, with fields that alerts can ask for."""
    fields = event(f"model_{what}", model=model.name)
    logging.getLogger(__name__).log(level, "model %s: %s", model.name, text, extra=fields)


def _or(measured: int | None, estimated: int) -> int:
    return estimated if measured is None else measured
