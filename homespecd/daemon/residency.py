"""Which models are in memory: a pure function from what is to what to do.

The rules, in order:
- a model whose settings changed, or that was told to go, leaves when its requests are done;
- an on-demand model leaves when it has been idle for `idle_unload`, counted from the end of its
  last request;
- a model that holds more than its own cap gives up its drafts, and then its place;
- when more is held than the cap allows, idle on-demand models leave, least recently used first,
  then drafts go; when the machine is short of memory, drafts go first, then idle models;
- a model that is wanted is loaded, in the order of wanting. If it does not fit: idle on-demand
  models leave; then it comes without its drafts; then other models' drafts go; then busy models
  finish what they have and take nothing new; if even that could not help, it is refused with the
  numbers. Its context is never made smaller;
- drafts come back when there is room for them and nobody waits for it.

Nothing here acts, waits or looks at a clock.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from homespecd.config.units import format_size
from homespecd.daemon.tally import Tally
from homespecd.daemon.views import HOLDING, Drafts, ModelView, Plan, Relief, State

# Waits before the second, third, … try after failures in a row. The first retry is immediate: most
# crashes do not repeat. The last value stays: a broken model costs one process start in so long.
_BACKOFF_S = (0.0, 1.0, 2.0, 5.0, 10.0)

# When to ask again after a refusal for want of memory: somebody must finish or leave first.
_REFUSAL_RETRY_S = 10.0
# For what is over a cap even alone: somebody must change the configuration first.
_NEVER_FITS_RETRY_S = 600.0


def backoff_s(failures: int) -> float:
    """How long to wait before another try after so many failures in a row."""
    return _BACKOFF_S[min(failures, len(_BACKOFF_S)) - 1] if failures else 0.0


def plan(
    models: Sequence[ModelView],
    *,
    cap_bytes: int,
    limit_bytes: int,
    now_s: float,
    relief: Relief = Relief.NONE,
) -> Plan:
    """What to do about `models`.

    Args:
        cap_bytes: what all models together may hold.
        limit_bytes: the same, or less where the machine itself is short of memory; looked at when
            something is to be loaded.
        relief: what the machine needs because of pressure.
    """
    return _Planner(
        models, cap_bytes=cap_bytes, limit_bytes=limit_bytes, now_s=now_s, relief=relief
    ).run()


class _Planner:
    def __init__(
        self,
        models: Sequence[ModelView],
        *,
        cap_bytes: int,
        limit_bytes: int,
        now_s: float,
        relief: Relief,
    ) -> None:
        self._models = models
        self._cap_bytes = cap_bytes
        self._limit_bytes = min(limit_bytes, cap_bytes)
        self._now_s = now_s
        self._relief = relief
        self._tally = Tally(models, limit_bytes=self._limit_bytes)

    def run(self) -> Plan:
        self._let_go()
        self._keep_own_caps()
        self._keep_the_cap()
        self._relieve()
        wanted = [m for m in self._models if m.wanted_since_s is not None and not m.leaving]
        for model in sorted(wanted, key=lambda m: m.wanted_since_s or 0.0):
            # Whoever waits for room waits alone: a smaller one must not overtake it for ever.
            if not self._serve(model):
                break
        else:
            self._bring_drafts_back()
        return self._tally.plan()

    # -- who leaves ----------------------------------------------------------------------------

    def _let_go(self) -> None:
        for model in self._models:
            if model.state is not State.READY or model.busy:
                continue
            if model.leaving:
                self._tally.unload(model, "its settings changed or it was told to")
            elif not model.pinned and model.wanted_since_s is None:
                expires_s = model.idle_since_s + model.idle_unload_s
                if expires_s <= self._now_s:
                    self._tally.unload(model, f"idle for {model.idle_unload_s:g} s")
                elif expires_s != float("inf"):
                    self._tally.wake(expires_s)

    def _keep_own_caps(self) -> None:
        for model in self._models:
            if model.state is not State.READY or self._tally.goes(model):
                continue
            if model.cap_bytes is None or model.held_bytes <= model.cap_bytes:
                continue
            held, cap = format_size(model.held_bytes), format_size(model.cap_bytes)
            why = f"it holds {held}, and its memory_cap is {cap}"
            if model.drafts in (Drafts.ADDING, Drafts.REMOVING):
                continue  # what these hold is about to be known
            if self._tally.can_drop(model):
                self._tally.drop(model, why)
            elif model.busy:
                self._tally.end(model, why)
            else:
                self._tally.unload(model, why)

    def _keep_the_cap(self) -> None:
        why = "more is held than memory.cap allows"
        for victim in self._tally.idle_victims():
            if self._tally.staying_bytes <= self._cap_bytes:
                return
            self._tally.unload(victim, why)
        for victim in self._tally.draft_victims():
            if self._tally.staying_bytes <= self._cap_bytes:
                return
            self._tally.drop(victim, why)

    def _relieve(self) -> None:
        why = "the machine is short of memory"
        if self._relief >= Relief.DRAFTS:
            for victim in self._tally.draft_victims():
                self._tally.drop(victim, why)
        if self._relief >= Relief.IDLE_MODELS and not self._tally.freeing_bytes:
            # One at a time: its memory may be all that was missing.
            for victim in self._tally.idle_victims()[:1]:
                self._tally.unload(victim, why)

    # -- who comes -----------------------------------------------------------------------------

    def _serve(self, model: ModelView) -> bool:
        """Load or refuse; False when it has to wait for room."""
        if model.state not in (State.UNLOADED, State.FAILED):
            return True
        if model.state is State.FAILED and model.retry_at_s > self._now_s:
            wait_s = model.retry_at_s - self._now_s
            self._tally.wake(model.retry_at_s)
            self._tally.refuse(model, "model_failed", model.error, retry_after_s=wait_s)
            return True
        # Pinned models stay for ever, but not their drafts.
        others_bytes = sum(
            m.needed_bytes
            for m in self._models
            if m.pinned and m.state in HOLDING and m.name != model.name and not m.leaving
        )
        needed = model.needed_bytes
        if model.cap_bytes is not None and needed > model.cap_bytes:
            self._refuse_for_memory(model, f"its own memory_cap is {format_size(model.cap_bytes)}")
            return True
        if needed + others_bytes > self._limit_bytes:
            held = (
                f", of which pinned models hold {format_size(others_bytes)}" if others_bytes else ""
            )
            self._refuse_for_memory(
                model, f"at most {format_size(self._limit_bytes)} may be held{held}"
            )
            return True
        return self._load_or_make_room(model)

    def _load_or_make_room(self, model: ModelView) -> bool:
        target, both = model.needed_bytes, model.needed_bytes + model.draft_bytes
        if self._drafts_welcome(model):
            if self._tally.fits_now(both):
                self._tally.load(model, drafts=True)
                return True
            leaving = self._idle_enough_for(both, model)
            if leaving is not None:
                self._unload_for(model, leaving)
                return False
        if self._tally.fits_now(target):
            self._tally.load(model, drafts=False)
            return True
        leaving = self._idle_enough_for(target, model)
        if leaving is not None:
            self._unload_for(model, leaving)
            return False
        self._unload_for(model, self._tally.idle_victims(before_s=model.wanted_since_s))
        for victim in self._tally.draft_victims():
            if self._tally.fits_later(target):
                return False
            self._tally.drop(victim, f"room for {model.name}")
        self._drain(model)
        return False

    def _drafts_welcome(self, model: ModelView) -> bool:
        both = model.needed_bytes + model.draft_bytes
        if model.draft_bytes == 0:
            return True
        if model.drafts_not_before_s > self._now_s:
            return False
        return self._relief is Relief.NONE and (model.cap_bytes is None or both <= model.cap_bytes)

    def _idle_enough_for(self, needed: int, model: ModelView) -> list[ModelView] | None:
        """The idle models that must leave so that `needed` fits, None when that is not enough."""
        leaving: list[ModelView] = []
        staying = self._tally.staying_bytes
        for victim in self._tally.idle_victims(before_s=model.wanted_since_s):
            if staying + needed <= self._limit_bytes:
                break
            leaving.append(victim)
            staying -= victim.held_bytes
        return leaving if staying + needed <= self._limit_bytes else None

    def _unload_for(self, model: ModelView, leaving: Iterable[ModelView]) -> None:
        for victim in leaving:
            self._tally.unload(victim, f"room for {model.name}")

    def _drain(self, model: ModelView) -> None:
        busy = [
            m
            for m in self._models
            if m.state is State.READY and m.busy and not m.pinned and not self._tally.goes(m)
        ]
        drained_bytes = 0
        for victim in sorted(busy, key=lambda m: m.idle_since_s):
            if self._tally.fits_later(model.needed_bytes - drained_bytes):
                return
            drained_bytes += victim.needed_bytes
            self._tally.drain(victim)

    def _bring_drafts_back(self) -> None:
        """Where there is room, and nobody waits for it. Most recently used first."""
        if self._relief is not Relief.NONE:
            return
        for model in sorted(self._models, key=lambda m: (not m.busy, -m.idle_since_s)):
            if model.state is not State.READY or model.drafts is not Drafts.OFF:
                continue
            if model.leaving or self._tally.goes(model) or model.draft_bytes == 0:
                continue
            if model.drafts_not_before_s > self._now_s:
                self._tally.wake(model.drafts_not_before_s)
            elif self._drafts_welcome(model) and self._tally.fits_now(model.draft_bytes):
                self._tally.add_drafts(model)

    def _refuse_for_memory(self, model: ModelView, limit: str) -> None:
        message = f"model {model.name!r} needs about {format_size(model.needed_bytes)}, and {limit}"
        # Over a cap, nothing that others give back helps; only another configuration does.
        caps = [self._cap_bytes, *([] if model.cap_bytes is None else [model.cap_bytes])]
        retry_after_s = _NEVER_FITS_RETRY_S if model.needed_bytes > min(caps) else _REFUSAL_RETRY_S
        self._tally.refuse(model, "insufficient_memory", message, retry_after_s=retry_after_s)
