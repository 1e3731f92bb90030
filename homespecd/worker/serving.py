"""A model while it is served: its target, slots, queue and governor, and what they came to so far.

All of it is the engine's thread's. Nothing here knows of frames: requests come as tickets
(`worker.requests`), and a step is a turn of the scheduler. What changes under requests in flight
are the drafters, and with them the governor.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Generator
from dataclasses import replace
from typing import Any

from homespecd.errors import ModelError
from homespecd.governor.protocol import Governor, Reason
from homespecd.worker.account import Account
from homespecd.worker.governing import LearnedGovernor
from homespecd.worker.load import Loaded
from homespecd.worker.lost import LostDevice
from homespecd.worker.memory import MemoryMeter
from homespecd.worker.messages import WorkerSettings
from homespecd.worker.redraft import DraftChange, opener
from homespecd.worker.scheduler import Scheduler
from homespecd.worker.slots import Slot
from homespecd.worker.totals import Totals

_OVER = object()


class Serving:
    """One model and all that it needs to answer.

    Args:
        loaded: the model; `close` closes it.
        learned: its governor; `close` closes it as well.
        warn: told what the log should say.
        wake: called, from any thread, when `change_drafters` can go on.
        clock_s: monotonic seconds.
    """

    def __init__(
        self,
        *,
        loaded: Loaded,
        learned: LearnedGovernor,
        warn: Callable[[str], None],
        wake: Callable[[], None],
        clock_s: Callable[[], float],
    ) -> None:
        self.loaded = loaded
        self.clock_s = clock_s
        self.totals = Totals()
        self.memory = MemoryMeter()
        self.lost = LostDevice()
        self._learned = learned
        self._governed = _governed(loaded)
        self._warn = warn
        self._wake = wake
        self.slots = tuple(self._new_slot(index) for index in range(loaded.settings.slots))
        self.scheduler = Scheduler(
            target=loaded.target,
            slots=self.slots,
            governor=self.governor,
            clock_s=clock_s,
            drafter_failed=self._drafter_failed,
        )
        self._wanted: deque[tuple[WorkerSettings, bool]] = deque()
        self._change: DraftChange | None = None
        self._measuring: Generator[None, None, None] | None = None

    @property
    def governor(self) -> Governor:
        """Who decides for requests that begin now."""
        return self._learned.governor

    def report(self, account: Account) -> dict[str, Any]:
        """The `homespec` object of an answer that has ended."""
        return account.report(
            speedup=self.governor.speedup(account.drafter),
            peak_memory_bytes=self.memory.peak_bytes(account.submitted_s, self.clock_s()),
        )

    def save_if_due(self) -> None:
        """Keep what was learned, if it is time."""
        self._learned.save_if_due(self.clock_s())

    def close(self) -> None:
        """Keep what was learned, and give everything back."""
        self.scheduler.close()
        self._learned.close(self.clock_s())
        if self._change is not None:
            # It has opened some that nobody was told of yet.
            self.loaded = replace(self.loaded, drafts=self._change.drafts)
        self.loaded.close()

    def want_drafters(self, settings: WorkerSettings, *, urgent: bool) -> None:
        """Have these drafters from now on; see `DraftChange`. One change after the other."""
        self._wanted.append((settings, urgent))

    def change_drafters(self) -> bool:
        """Begin the change that is wanted, or go on with the one under way; True: one is done."""
        if self._change is None:
            if not self._wanted:
                return False
            settings, urgent = self._wanted.popleft()
            self._change = DraftChange(
                self.loaded.drafts,
                settings,
                urgent=urgent,
                opener=opener(self.loaded.tokenizer),
                wake=self._wake,
            )
        if self._measuring is None:
            change = self._change
            # A new dict each time: what others took from the old one stays as it was.
            self.loaded = replace(self.loaded, settings=change.settings, drafts=dict(change.drafts))
            if not change.advance(self.slots, self.scheduler.working, self.loaded.target):
                return False
            self._measuring = self._renew_governor(replace(self.loaded, drafts=change.drafts))
        if next(self._measuring, _OVER) is not _OVER:
            self._wake()  # a turn of its own for the next step, and between the two the answers'
            return False
        self._change = self._measuring = None
        return True

    def _renew_governor(self, loaded: Loaded) -> Generator[None, None, None]:
        """From drafters that are open to drafters that may be used; a step of a model each turn.

        Drafts that only went keep their place in the governor, for when they come back.
        """
        if not _governed(loaded) <= self._governed:
            # Whoever decodes waits for each step: no longer than for a piece of a prompt.
            widest_rows = self.governor.prefill_rows(self.scheduler.active)
            yield from self._learned.renew(loaded, widest_rows=widest_rows, clock_s=self.clock_s)
            self._governed = _governed(loaded)
            self.scheduler.use_governor(self.governor)
        self.loaded = loaded

    def _drafter_failed(self, name: str, error: ModelError) -> None:
        self.lost.of_draft(error)
        draft = self.loaded.drafts.get(name)  # it may have been replaced meanwhile
        if draft is not None and draft.usable:
            draft.fail(Reason.DRAFT_FAILED, str(error))
            self._warn(f"drafter {name} is off: {error}")

    def _new_slot(self, index: int) -> Slot:
        drafters = {
            name: draft.for_slot() for name, draft in self.loaded.drafts.items() if draft.usable
        }
        return Slot(index, self.loaded.target.new_cache(), drafters)


def _governed(loaded: Loaded) -> frozenset[object]:
    """What a governor must be made anew for when there is more of it."""
    speculation = loaded.settings.speculation
    return frozenset(
        (name, draft.key, draft.settings.max_draft_tokens, speculation)
        for name, draft in loaded.drafts.items()
        if draft.usable
    )
