"""Which models are in memory: a pure function from what is to what to do.

The rules, in order:
- a model whose settings changed, or that was told to go, leaves when its requests are done;
- an on-demand model leaves when it has been idle for `idle_unload`, counted from the end of its
  last request;
- when more is held than the cap allows, idle on-demand models leave, least recently used first;
- a model that is wanted is loaded, in the order of wanting. If it does not fit, idle on-demand
  models leave for it; if that is not enough, busy ones finish what they have and take nothing new;
  if even that could not help, it is refused with the numbers.

Nothing here acts, waits or looks at a clock. Drafts are not given up here; they are part of what a
model needs.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import StrEnum

# Waits before the second, third, … try after failures in a row. The first retry is immediate: most
# crashes do not repeat. The last value stays: a broken model costs one process start in so long.
_BACKOFF_S = (0.0, 1.0, 2.0, 5.0, 10.0)

# When to ask again after a refusal for want of memory: somebody must finish or leave first.
_REFUSAL_RETRY_S = 10.0


class State(StrEnum):
    """The snapshot's words."""

    UNLOADED = "unloaded"
    LOADING = "loading"
    READY = "ready"
    FAILED = "failed"
    UNLOADING = "unloading"


_HOLDING = (State.LOADING, State.READY, State.UNLOADING)


@dataclass(frozen=True)
class ModelView:
    """One model as the planner sees it.

    needed_bytes: what it holds, or will hold once loaded. cap_bytes: its own cap, None = none.
    wanted_since_s: since when somebody waits for it (a pinned model always does); None = nobody.
    busy: requests are running. idle_since_s: when the last one ended, or it was loaded.
    leaving: its settings changed or it was told to go. retry_at_s: not before this after a failure.
    """

    name: str
    state: State
    needed_bytes: int
    pinned: bool = False
    wanted_since_s: float | None = None
    busy: bool = False
    idle_since_s: float = 0.0
    idle_unload_s: float = float("inf")
    leaving: bool = False
    retry_at_s: float = 0.0
    error: str = ""
    cap_bytes: int | None = None


@dataclass(frozen=True)
class Load:
    name: str


@dataclass(frozen=True)
class Unload:
    name: str
    why: str


@dataclass(frozen=True)
class Refuse:
    """Whoever waits for the model is turned away."""

    name: str
    code: str
    message: str
    retry_after_s: float


Action = Load | Unload | Refuse


@dataclass(frozen=True)
class Plan:
    """What to do now. draining: models that take no new request, so that another gets its room.

    wake_at_s: plan again at this time even if nothing happens; None = no need.
    """

    actions: tuple[Action, ...] = ()
    draining: frozenset[str] = field(default_factory=frozenset)
    wake_at_s: float | None = None


def backoff_s(failures: int) -> float:
    """How long to wait before another try after so many failures in a row."""
    return _BACKOFF_S[min(failures, len(_BACKOFF_S)) - 1] if failures else 0.0


def plan(models: Sequence[ModelView], *, cap_bytes: int, limit_bytes: int, now_s: float) -> Plan:
    """What to do about `models`.

    Args:
        cap_bytes: what all models together may hold.
        limit_bytes: the same, or less where the machine itself is short of memory; looked at when
            something is to be loaded.
    """
    return _Planner(models, cap_bytes=cap_bytes, limit_bytes=limit_bytes, now_s=now_s).run()


class _Planner:
    def __init__(
        self, models: Sequence[ModelView], *, cap_bytes: int, limit_bytes: int, now_s: float
    ) -> None:
        self._models = models
        self._cap_bytes = cap_bytes
        self._limit_bytes = limit_bytes
        self._now_s = now_s
        self._used_bytes = sum(m.needed_bytes for m in models if m.state in _HOLDING)
        # Of the used: what is on its way out.
        self._freeing_bytes = sum(m.needed_bytes for m in models if m.state is State.UNLOADING)
        self._actions: list[Action] = []
        self._going: set[str] = set()
        self._draining: set[str] = set()
        self._wake_s: list[float] = []

    def run(self) -> Plan:
        self._let_go()
        self._keep_the_cap()
        wanted = [m for m in self._models if m.wanted_since_s is not None and not m.leaving]
        for model in sorted(wanted, key=lambda m: m.wanted_since_s or 0.0):
            # Whoever waits for room waits alone: a smaller one must not overtake it for ever.
            if not self._serve(model):
                break
        return Plan(
            actions=tuple(self._actions),
            draining=frozenset(self._draining),
            wake_at_s=min(self._wake_s, default=None),
        )

    def _let_go(self) -> None:
        for model in self._models:
            if model.state is not State.READY or model.busy:
                continue
            if model.leaving:
                self._unload(model, "its settings changed or it was told to")
            elif not model.pinned and model.wanted_since_s is None:
                expires_s = model.idle_since_s + model.idle_unload_s
                if expires_s <= self._now_s:
                    self._unload(model, f"idle for {model.idle_unload_s:g} s")
                elif expires_s != float("inf"):
                    self._wake_s.append(expires_s)

    def _keep_the_cap(self) -> None:
        for victim in self._idle_victims():
            if self._used_bytes - self._freeing_bytes <= self._cap_bytes:
                return
            self._unload(victim, "more is held than memory.cap allows")

    def _serve(self, model: ModelView) -> bool:
        """Load or refuse; False when it has to wait for room."""
        if model.state not in (State.UNLOADED, State.FAILED):
            return True
        if model.state is State.FAILED and model.retry_at_s > self._now_s:
            wait_s = model.retry_at_s - self._now_s
            self._wake_s.append(model.retry_at_s)
            self._actions.append(Refuse(model.name, "model_failed", model.error, wait_s))
            return True
        others_bytes = sum(
            m.needed_bytes
            for m in self._models
            if m.pinned and m.state in _HOLDING and m.name != model.name
        )
        needed = model.needed_bytes
        if model.cap_bytes is not None and needed > model.cap_bytes:
            self._refuse_for_memory(model, f"its own memory_cap is {mib(model.cap_bytes)}")
            return True
        if needed + others_bytes > self._limit_bytes:
            held = f", of which pinned models hold {mib(others_bytes)}" if others_bytes else ""
            self._refuse_for_memory(model, f"at most {mib(self._limit_bytes)} may be held{held}")
            return True
        if self._used_bytes + needed <= self._limit_bytes:
            self._actions.append(Load(model.name))
            self._used_bytes += needed
            return True
        self._make_room(model)
        return False

    def _make_room(self, model: ModelView) -> None:
        needed = model.needed_bytes
        for victim in self._idle_victims(before_s=model.wanted_since_s):
            if self._fits_later(needed):
                return
            self._unload(victim, f"room for {model.name}")
        busy = [m for m in self._models if m.state is State.READY and m.busy and not m.pinned]
        drained_bytes = 0
        for victim in sorted(busy, key=lambda m: m.idle_since_s):
            if self._fits_later(needed - drained_bytes):
                return
            drained_bytes += victim.needed_bytes
            self._draining.add(victim.name)

    def _fits_later(self, needed: int) -> bool:
        return self._used_bytes - self._freeing_bytes + needed <= self._limit_bytes

    def _idle_victims(self, *, before_s: float | None = None) -> list[ModelView]:
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

    def _unload(self, model: ModelView, why: str) -> None:
        self._actions.append(Unload(model.name, why))
        self._going.add(model.name)
        self._freeing_bytes += model.needed_bytes

    def _refuse_for_memory(self, model: ModelView, limit: str) -> None:
        message = f"model {model.name!r} needs about {mib(model.needed_bytes)}, and {limit}"
        self._actions.append(Refuse(model.name, "insufficient_memory", message, _REFUSAL_RETRY_S))


def mib(num_bytes: int) -> str:
    return f"{num_bytes / 2**20:.0f} MiB"
