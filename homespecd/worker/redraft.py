"""Other drafters for a model that is serving: the target stays, and so does every request.

A change goes through three stages. From its start no new request uses a draft that goes. A draft
that goes is closed once no conversation has it any more: when they have ended, or (urgent: its
memory is needed) as soon as they are between two rounds. Only then are new drafts opened, on a
thread of their own, so that old and new are never in memory together and nobody waits for a file.
"""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable, Mapping, Sequence

from homespecd.bundle.tokenizer import Tokenizer
from homespecd.governor.protocol import Reason
from homespecd.runtime.step import Model
from homespecd.worker.load import Draft, open_draft, withheld, without_model
from homespecd.worker.memory import give_back
from homespecd.worker.messages import WorkerSettings
from homespecd.worker.slots import Slot

# Opens the drafts of these settings that are named.
Opener = Callable[[WorkerSettings, Sequence[str]], dict[str, Draft]]


class DraftChange:
    """One change under way; all methods are the engine's thread's.

    Args:
        before: the drafts as they are.
        urgent: drafts that go are taken from requests in flight too.
        opener: see `Opener`; called on another thread.
        wake: makes the engine call `advance` again.
    """

    def __init__(
        self,
        before: Mapping[str, Draft],
        settings: WorkerSettings,
        *,
        urgent: bool,
        opener: Opener,
        wake: Callable[[], None],
    ) -> None:
        self.settings = settings
        self._urgent = urgent
        self._opener = opener
        self._wake = wake
        self._opened: queue.SimpleQueue[dict[str, Draft]] = queue.SimpleQueue()
        self._opening: threading.Thread | None = None
        wanted = settings.drafters if settings.speculation.enabled else ()
        self.drafts: dict[str, Draft] = {}
        self._missing: list[str] = []
        for one in wanted:
            old = before.get(one.name)
            if old is not None and old.settings == one and _stays(old, settings):
                self.drafts[one.name] = old
            elif settings.withhold_drafts and not without_model(one):
                self.drafts[one.name] = withheld(one, settings)
            else:
                self.drafts[one.name] = Draft(one, problem=Reason.WARMING_UP, detail="is loading")
                self._missing.append(one.name)
        self._retired = {
            name: draft for name, draft in before.items() if self.drafts.get(name) is not draft
        }

    def advance(self, slots: Sequence[Slot], working: Mapping[int, Model], target: Model) -> bool:
        """Go on as far as possible now; True when all is done and `drafts` are final.

        Args:
            working: slot index → the model that its conversation waits for.
        """
        if self._opening is None:
            if not self._retire(slots, working, target):
                return False
            if not self._missing:
                return True
            self._opening = threading.Thread(target=self._open, name="drafts", daemon=True)
            self._opening.start()
        try:
            opened = self._opened.get_nowait()
        except queue.Empty:
            return False
        self.drafts.update(opened)
        for slot in slots:
            for name, draft in opened.items():
                if draft.usable:
                    slot.drafters[name] = draft.for_slot()
        return True

    def _retire(self, slots: Sequence[Slot], working: Mapping[int, Model], target: Model) -> bool:
        for slot in slots:
            waits_for = working.get(slot.index)
            if waits_for is None or (self._urgent and waits_for is target):
                for name in self._retired:
                    slot.drafters.pop(name, None)
        if any(name in slot.drafters for slot in slots for name in self._retired):
            return False
        models = [draft.model for draft in self._retired.values() if draft.model is not None]
        for draft in self._retired.values():
            draft.model = None
        self._retired.clear()
        for model in models:
            model.close()
        if models:
            give_back()
        return True

    def _open(self) -> None:
        try:
            opened = self._opener(self.settings, self._missing)
        except Exception as error:
            # A bug in opening a draft must not leave the change unfinished for ever.
            opened = {}
            for one in self.settings.drafters:
                if one.name in self._missing:
                    opened[one.name] = Draft(one)
                    opened[one.name].fail(Reason.DRAFT_FAILED, f"cannot be opened: {error}")
        self._opened.put(opened)
        self._wake()


def _stays(draft: Draft, settings: WorkerSettings) -> bool:
    if without_model(draft.settings):
        return True
    # One that failed is tried again: a change may be what mends it.
    return draft.usable and not settings.withhold_drafts


def opener(tokenizer: Tokenizer) -> Opener:
    """Opens drafts for a target with this tokenizer."""

    def open_some(settings: WorkerSettings, names: Sequence[str]) -> dict[str, Draft]:
        return {
            one.name: open_draft(one, settings, tokenizer)
            for one in settings.drafters
            if one.name in names
        }

    return open_some
