"""What the planner looks at and what it says: the words of `residency.plan`."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import IntEnum, StrEnum


class State(StrEnum):
    """The snapshot's words."""

    UNLOADED = "unloaded"
    LOADING = "loading"
    READY = "ready"
    FAILED = "failed"
    UNLOADING = "unloading"


HOLDING = (State.LOADING, State.READY, State.UNLOADING)


class Drafts(StrEnum):
    """What the draft models of a model in memory are doing. Counted: all but OFF."""

    ON = "on"
    OFF = "off"
    ADDING = "adding"
    REMOVING = "removing"


class Relief(IntEnum):
    """What a machine under memory pressure is given."""

    NONE = 0
    DRAFTS = 1
    IDLE_MODELS = 2


@dataclass(frozen=True)
class ModelView:
    """One model as the planner sees it.

    needed_bytes: what the target holds, or will hold once loaded, without its drafts.
    draft_bytes: what its draft models add to that while they are in memory; 0 = it has none.
    drafts: what these are doing; looked at while the model is in memory.
    drafts_not_before_s: they were given up, and do not come back before this.
    cap_bytes: its own cap, None = none.
    wanted_since_s: since when somebody waits for it (a pinned model always does); None = nobody.
    busy: requests are running. idle_since_s: when the last one ended, or it was loaded.
    leaving: its settings changed or it was told to go. retry_at_s: not before this after a failure.
    """

    name: str
    state: State
    needed_bytes: int
    draft_bytes: int = 0
    drafts: Drafts = Drafts.OFF
    drafts_not_before_s: float = 0.0
    pinned: bool = False
    wanted_since_s: float | None = None
    busy: bool = False
    idle_since_s: float = 0.0
    idle_unload_s: float = float("inf")
    leaving: bool = False
    retry_at_s: float = 0.0
    error: str = ""
    cap_bytes: int | None = None

    @property
    def held_bytes(self) -> int:
        """What it holds now, or has been promised."""
        if self.state not in HOLDING:
            return 0
        return self.needed_bytes + (self.draft_bytes if self.drafts is not Drafts.OFF else 0)


@dataclass(frozen=True)
class Load:
    """drafts: with its draft models (or it has none); False = the target alone."""

    name: str
    drafts: bool = True


@dataclass(frozen=True)
class Unload:
    name: str
    why: str


@dataclass(frozen=True)
class End:
    """The worker is ended though requests run in it: they get `why`."""

    name: str
    why: str


@dataclass(frozen=True)
class DropDrafts:
    """The target goes on alone."""

    name: str
    why: str


@dataclass(frozen=True)
class AddDrafts:
    name: str


@dataclass(frozen=True)
class Refuse:
    """Whoever waits for the model is turned away."""

    name: str
    code: str
    message: str
    retry_after_s: float


Action = Load | Unload | End | DropDrafts | AddDrafts | Refuse


@dataclass(frozen=True)
class Plan:
    """What to do now. draining: models that take no new request, so that another gets its room.

    wake_at_s: plan again at this time even if nothing happens; None = no need.
    """

    actions: tuple[Action, ...] = ()
    draining: frozenset[str] = field(default_factory=frozenset)
    wake_at_s: float | None = None
