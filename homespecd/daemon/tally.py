"""A plan in the making: what has been said so far, and what that makes of memory.

`residency` has the rules and asks here before each of them: what goes is not sent away twice, and
what it gives back is counted once.
"""

from __future__ import annotations

from collections.abc import Sequence

from homespecd.daemon.views import (
    Action,
    AddDrafts,
    Drafts,
    DropDrafts,
    End,
    Load,
    ModelView,
    Plan,
    Refuse,
    State,
    Unload,
)


class Tally:
    """The books of one plan.

    Args:
        limit_bytes: what all models together may hold now.
    """

    def __init__(self, models: Sequence[ModelView], *, limit_bytes: int) -> None:
        self._models = models
        self._limit_bytes = limit_bytes
        self._used_bytes = sum(m.held_bytes for m in models)
        self._freeing_bytes = sum(
            m.held_bytes
            if m.state is State.UNLOADING
            else m.draft_bytes * (m.drafts is Drafts.REMOVING)
            for m in models
        )
        self._actions: list[Action] = []
        self._going: set[str] = set()
        self._undrafted: set[str] = set()
        self._draining: set[str] = set()
        self._wake_s: list[float] = []

    def plan(self) -> Plan:
        """All that was said."""
        return Plan(
            actions=tuple(self._actions),
            draining=frozenset(self._draining),
            wake_at_s=min(self._wake_s, default=None),
        )

    # -- how much there is ---------------------------------------------------------------------

    @property
    def freeing_bytes(self) -> int:
        """Of what is held: what is on its way out."""
        return self._freeing_bytes

    @property
    def staying_bytes(self) -> int:
        """What will still be held when all that goes has gone."""
        return self._used_bytes - self._freeing_bytes

    def fits_now(self, num_bytes: int) -> bool:
        return self._used_bytes + num_bytes <= self._limit_bytes

    def fits_later(self, num_bytes: int) -> bool:
        """The same, when all that goes has gone."""
        return self.staying_bytes + num_bytes <= self._limit_bytes

    # -- who may go ----------------------------------------------------------------------------

    def goes(self, model: ModelView) -> bool:
        """Whether this plan ends its worker."""
        return model.name in self._going

    def can_drop(self, model: ModelView) -> bool:
        """Whether its drafts are there to be given up."""
        return (
            model.state is State.READY
            and model.drafts is Drafts.ON
            and model.draft_bytes > 0
            and model.name not in self._going
            and model.name not in self._undrafted
        )

    def idle_victims(self, *, before_s: float | None = None) -> list[ModelView]:
        """Models that may leave now, least recently used first.

        A model that somebody wants stays, unless the wanting began after `before_s`.
        """
        idle = [
            m
            for m in self._models
            if m.state is State.READY
            and not (m.busy or m.pinned or m.name in self._going)
            and (m.wanted_since_s is None or (before_s is not None and m.wanted_since_s > before_s))
        ]
        return sorted(idle, key=lambda m: m.idle_since_s)

    def draft_victims(self) -> list[ModelView]:
        """Models whose drafts may go, idle ones first, then the least recently used."""
        return sorted(filter(self.can_drop, self._models), key=lambda m: (m.busy, m.idle_since_s))

    # -- what is said --------------------------------------------------------------------------

    def load(self, model: ModelView, *, drafts: bool) -> None:
        self._actions.append(Load(model.name, drafts=drafts))
        self._used_bytes += model.needed_bytes + (model.draft_bytes if drafts else 0)

    def unload(self, model: ModelView, why: str) -> None:
        self._actions.append(Unload(model.name, why))
        self._leaves(model)

    def end(self, model: ModelView, why: str) -> None:
        self._actions.append(End(model.name, why))
        self._leaves(model)

    def drop(self, model: ModelView, why: str) -> None:
        self._actions.append(DropDrafts(model.name, why))
        self._undrafted.add(model.name)
        self._freeing_bytes += model.draft_bytes

    def add_drafts(self, model: ModelView) -> None:
        self._actions.append(AddDrafts(model.name))
        self._used_bytes += model.draft_bytes

    def refuse(self, model: ModelView, code: str, message: str, *, retry_after_s: float) -> None:
        self._actions.append(Refuse(model.name, code, message, retry_after_s))

    def drain(self, model: ModelView) -> None:
        """It takes no new request."""
        self._draining.add(model.name)

    def wake(self, at_s: float) -> None:
        """Plan again then, whatever happens."""
        self._wake_s.append(at_s)

    def _leaves(self, model: ModelView) -> None:
        self._going.add(model.name)
        counted = model.drafts is Drafts.REMOVING or model.name in self._undrafted
        self._freeing_bytes += model.held_bytes - (model.draft_bytes if counted else 0)
