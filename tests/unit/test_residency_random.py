"""The planner driven by random requests, edits, kills, sizes and pressure: what must never happen.

`World` plays the fleet: it carries out plans, lets loads and unloads take their time, and counts
what is really held.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from homespecd.daemon.residency import backoff_s, plan
from homespecd.daemon.views import (
    AddDrafts,
    Drafts,
    DropDrafts,
    End,
    Load,
    ModelView,
    Refuse,
    Relief,
    State,
    Unload,
)

NAMES = ("a", "b", "c", "d")
SIZES = st.integers(1, 60)
CAP = 100


@dataclass
class Held:
    """One model of the world. waiting, running: requests."""

    view: ModelView
    waiting: int = 0
    running: int = 0
    failures: int = 0
    loads_under_way: int = 0


class World(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.now_s = 0.0
        self.relief = Relief.NONE
        self.cap = CAP
        self.models: dict[str, Held] = {}
        self.asked = self.answered = 0
        self.draining: frozenset[str] = frozenset()

    @initialize(
        needs=st.tuples(SIZES, SIZES, SIZES, SIZES),
        drafts=st.tuples(*[st.sampled_from((0, 5, 30))] * 4),
        pinned=st.sampled_from(((), ("a",), ("a", "b"))),
        own_caps=st.tuples(*[st.sampled_from((None, None, 40))] * 4),
    )
    def begin(
        self,
        needs: tuple[int, ...],
        drafts: tuple[int, ...],
        pinned: tuple[str, ...],
        own_caps: tuple[int | None, ...],
    ) -> None:
        for name, needed, draft, own in zip(NAMES, needs, drafts, own_caps, strict=True):
            view = ModelView(
                name=name,
                state=State.UNLOADED,
                needed_bytes=needed,
                draft_bytes=draft,
                pinned=name in pinned,
                cap_bytes=own,
                idle_unload_s=50.0,
            )
            self.models[name] = Held(view)
        self.step()

    # -- the world -----------------------------------------------------------------------------

    def put(self, name: str, **changes: object) -> None:
        one = self.models[name]
        one.view = replace(one.view, **changes)  # type: ignore[arg-type]

    def views(self) -> list[ModelView]:
        views = []
        for one in self.models.values():
            since = one.view.wanted_since_s if one.waiting else None
            if one.view.pinned and since is None and one.view.held_bytes == 0:
                since = 0.0
            views.append(replace(one.view, wanted_since_s=since, busy=one.running > 0))
        return views

    def step(self) -> None:
        """Ask for a plan and carry it out, as the fleet does."""
        before = sum(view.held_bytes for view in self.views())
        result = plan(
            self.views(),
            cap_bytes=self.cap,
            limit_bytes=self.cap,
            now_s=self.now_s,
            relief=self.relief,
        )
        for action in result.actions:
            one = self.models[action.name]
            match action:
                case Load():
                    assert one.view.state in (State.UNLOADED, State.FAILED), "loaded twice"
                    assert one.loads_under_way == 0, "two loads at once"
                    one.loads_under_way += 1
                    drafts = Drafts.ON if action.drafts else Drafts.OFF
                    self.put(action.name, state=State.LOADING, drafts=drafts)
                case Unload():
                    assert one.view.state is State.READY
                    assert one.running == 0, "a model in use was evicted"
                    over_own_cap = one.view.held_bytes > (one.view.cap_bytes or 1 << 60)
                    kept = one.view.pinned and not one.view.leaving and not over_own_cap
                    assert not kept, "a pinned model was evicted"
                    self.put(action.name, state=State.UNLOADING)
                case End():
                    assert one.view.cap_bytes is not None
                    assert one.view.held_bytes > one.view.cap_bytes
                    assert one.view.drafts is Drafts.OFF or one.view.draft_bytes == 0
                    self.die(action.name)
                case DropDrafts():
                    assert one.view.drafts is Drafts.ON
                    assert one.view.state is State.READY
                    self.put(
                        action.name,
                        drafts=Drafts.REMOVING,
                        drafts_not_before_s=self.now_s + 30.0,
                    )
                case AddDrafts():
                    assert one.view.drafts is Drafts.OFF
                    assert self.relief is Relief.NONE
                    self.put(action.name, drafts=Drafts.ADDING)
                case Refuse():
                    assert one.view.state in (State.UNLOADED, State.FAILED)
                    self.answered += one.waiting
                    one.waiting = 0
        self.draining = result.draining
        for name, one in self.models.items():
            ready = one.view.state is State.READY and not one.view.leaving
            if ready and name not in self.draining and one.waiting:
                one.running += one.waiting
                one.waiting = 0
        after = sum(view.held_bytes for view in self.views())
        # What grew by itself may be over; a plan never adds to that.
        assert after <= max(self.cap, before), f"{after} held after a plan, {before} before it"

    def die(self, name: str) -> None:
        one = self.models[name]
        one.failures += 1
        self.answered += one.running + one.waiting  # with an error
        one.running = one.waiting = one.loads_under_way = 0
        retry_at_s = self.now_s + backoff_s(one.failures)
        self.put(name, state=State.FAILED, drafts=Drafts.OFF, leaving=False, retry_at_s=retry_at_s)

    def settle(self, name: str) -> None:
        """What is under way with this model comes to its end."""
        one = self.models[name]
        if one.view.state is State.LOADING:
            one.loads_under_way = 0
            self.put(name, state=State.READY, idle_since_s=self.now_s)
        elif one.view.state is State.UNLOADING:
            self.put(name, state=State.UNLOADED, drafts=Drafts.OFF, leaving=False)
        elif one.view.drafts is Drafts.REMOVING:
            self.put(name, drafts=Drafts.OFF)
        elif one.view.drafts is Drafts.ADDING:
            self.put(name, drafts=Drafts.ON)

    def finish(self, name: str) -> None:
        one = self.models[name]
        if one.running:
            one.running -= 1
            self.answered += 1
            self.put(name, idle_since_s=self.now_s)

    # -- what happens to it --------------------------------------------------------------------

    @rule(name=st.sampled_from(NAMES))
    def request(self, name: str) -> None:
        one = self.models[name]
        self.asked += 1
        if not one.waiting:
            self.put(name, wanted_since_s=self.now_s)
        one.waiting += 1
        self.step()

    @rule(name=st.sampled_from(NAMES))
    def request_ends(self, name: str) -> None:
        self.finish(name)
        self.step()

    @rule(name=st.sampled_from(NAMES))
    def work_ends(self, name: str) -> None:
        self.settle(name)
        self.step()

    @rule(name=st.sampled_from(NAMES))
    def killed(self, name: str) -> None:
        if self.models[name].view.state in (State.LOADING, State.READY):
            self.die(name)
        self.step()

    @rule(name=st.sampled_from(NAMES))
    def edited(self, name: str) -> None:
        """Its settings change, so that it has to go."""
        if self.models[name].view.state is State.READY:
            self.put(name, leaving=True)
        self.step()

    @rule(name=st.sampled_from(NAMES), needed=SIZES)
    def grows(self, name: str, needed: int) -> None:
        """Measured memory is not what was estimated."""
        if self.models[name].view.state is State.READY:
            self.put(name, needed_bytes=needed)
        self.step()

    @rule(cap=st.sampled_from((CAP, 60, 150)))
    def cap_edited(self, cap: int) -> None:
        self.cap = cap
        self.step()

    @rule(relief=st.sampled_from(Relief))
    def pressure(self, relief: Relief) -> None:
        self.relief = relief
        self.step()

    @rule(seconds=st.sampled_from((0.5, 5.0, 60.0)))
    def time_goes_by(self, seconds: float) -> None:
        self.now_s += seconds
        self.step()

    @rule()
    def everyone_gets_an_answer(self) -> None:
        """When no more is asked, and what is under way ends, nobody is left without an answer."""
        for _ in range(200):
            if self.answered == self.asked:
                return
            self.now_s += 1.0
            for name in NAMES:
                self.settle(name)
                self.finish(name)
            self.step()
        raise AssertionError(f"{self.asked - self.answered} requests wait for ever")

    # -- what must always hold -----------------------------------------------------------------

    @invariant()
    def no_request_is_lost(self) -> None:
        open_now = sum(one.waiting + one.running for one in self.models.values())
        assert self.asked == self.answered + open_now


World.TestCase.settings = settings(max_examples=150, stateful_step_count=40)
TestPlanner = World.TestCase
