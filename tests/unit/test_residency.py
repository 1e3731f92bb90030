"""The planner: what is loaded, kept, evicted and refused, on made-up states and times."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from homespecd.daemon.residency import backoff_s, plan
from homespecd.daemon.views import Load, ModelView, Plan, Refuse, State, Unload

MIB = 2**20


def model(name: str, state: State = State.UNLOADED, size: int = 100, **more: Any) -> ModelView:
    return ModelView(name=name, state=state, needed_bytes=size * MIB, **more)


def ask(*models: ModelView, cap: int = 250, limit: int | None = None, now: float = 100.0) -> Plan:
    limit = cap if limit is None else limit
    return plan(models, cap_bytes=cap * MIB, limit_bytes=limit * MIB, now_s=now)


def done(result: Plan) -> list[tuple[str, str]]:
    return [(type(action).__name__, action.name) for action in result.actions]


def test_nobody_asks_and_nothing_happens() -> None:
    assert ask(model("a"), model("b", State.READY)) == Plan()


def test_what_is_wanted_is_loaded_in_the_order_of_wanting() -> None:
    result = ask(model("a", wanted_since_s=2.0), model("b", wanted_since_s=1.0))
    assert result.actions == (Load("b"), Load("a"))


@pytest.mark.parametrize("state", [State.LOADING, State.READY, State.UNLOADING])
def test_a_model_under_way_is_not_loaded_twice(state: State) -> None:
    assert done(ask(model("a", state, wanted_since_s=1.0))) == []


def test_idle_time_counts_from_the_end_of_the_last_request() -> None:
    a = model("a", State.READY, idle_since_s=90.0, idle_unload_s=15.0)
    assert ask(a, now=104.9) == Plan(wake_at_s=105.0)
    assert done(ask(a, now=105.0)) == [("Unload", "a")]
    assert done(ask(replace(a, busy=True), now=1000.0)) == []
    assert done(ask(replace(a, pinned=True), now=1000.0)) == []
    assert done(ask(replace(a, wanted_since_s=1.0), now=1000.0)) == []


def test_idle_models_leave_for_a_new_one_least_recently_used_first() -> None:
    old = model("old", State.READY, idle_since_s=1.0)
    new = model("new", State.READY, idle_since_s=2.0)
    wanted = model("w", wanted_since_s=50.0)
    result = ask(new, old, wanted)
    assert done(result) == [("Unload", "old")]
    # Its memory is not there yet; the load follows when it is.
    leaving = replace(old, state=State.UNLOADING)
    assert done(ask(new, leaving, wanted)) == []
    assert done(ask(new, replace(old, state=State.UNLOADED), wanted)) == [("Load", "w")]


def test_no_more_leave_than_must() -> None:
    small = [model(f"s{i}", State.READY, size=50, idle_since_s=float(i)) for i in range(5)]
    assert done(ask(*small, model("w", wanted_since_s=9.0))) == [("Unload", "s0"), ("Unload", "s1")]


def test_busy_models_finish_first_and_take_nothing_new() -> None:
    busy = model("busy", State.READY, size=200, busy=True)
    result = ask(busy, model("w", wanted_since_s=9.0))
    assert result.actions == ()
    assert result.draining == {"busy"}


def test_whoever_asked_first_gets_the_room_first() -> None:
    """Two models that exclude each other take turns, in the order of asking."""
    a = model("a", State.READY, size=200, wanted_since_s=20.0)
    b = model("b", size=200, wanted_since_s=10.0)
    assert done(ask(a, b)) == [("Unload", "a")]
    assert done(ask(replace(a, wanted_since_s=5.0), b)) == []


def test_a_small_model_does_not_overtake_a_big_one_that_waits_for_room() -> None:
    busy = model("busy", State.READY, size=150, busy=True)
    big = model("big", size=200, wanted_since_s=1.0)
    assert done(ask(busy, big, model("small", size=50, wanted_since_s=2.0))) == []


def test_what_can_never_fit_is_refused_with_the_numbers() -> None:
    [refusal] = ask(model("w", size=300, wanted_since_s=1.0)).actions
    assert isinstance(refusal, Refuse)
    assert refusal.code == "insufficient_memory"
    assert "300 MiB" in refusal.message
    assert "250 MiB" in refusal.message
    never_s = refusal.retry_after_s
    # Without room now, it is worth while to come again soon.
    [refusal] = ask(model("w", size=200, wanted_since_s=1.0), limit=100).actions
    assert isinstance(refusal, Refuse)
    assert 0 < refusal.retry_after_s < never_s


def test_pinned_models_are_not_evicted_so_they_count_for_ever() -> None:
    pinned = model("p", State.READY, size=200, pinned=True)
    [refusal] = ask(pinned, model("w", wanted_since_s=1.0)).actions
    assert isinstance(refusal, Refuse)
    assert "pinned models hold 200 MiB" in refusal.message


def test_a_refusal_does_not_stand_in_the_way_of_others() -> None:
    result = ask(model("w", size=300, wanted_since_s=1.0), model("a", wanted_since_s=2.0))
    assert done(result) == [("Refuse", "w"), ("Load", "a")]


def test_a_model_has_a_cap_of_its_own() -> None:
    [refusal] = ask(model("w", cap_bytes=50 * MIB, wanted_since_s=1.0)).actions
    assert isinstance(refusal, Refuse)
    assert "memory_cap is 50.0 MiB" in refusal.message


def test_growth_past_the_cap_costs_idle_models() -> None:
    grown = model("g", State.READY, size=200, busy=True)
    idle = model("i", State.READY, size=100)
    assert done(ask(grown, idle)) == [("Unload", "i")]
    assert done(ask(grown, replace(idle, pinned=True))) == []


def test_a_machine_short_of_memory_limits_loads_but_evicts_nobody() -> None:
    idle = model("i", State.READY)
    assert done(ask(idle, limit=50)) == []
    assert done(ask(idle, model("w", wanted_since_s=1.0), limit=120)) == [("Unload", "i")]


def test_failures_wait_longer_and_longer() -> None:
    waits = [backoff_s(failures) for failures in range(8)]
    assert waits[:2] == [0.0, 0.0]
    assert waits == sorted(waits)
    assert waits[-1] == waits[-2]


def test_a_failed_model_is_tried_again_when_its_time_has_come() -> None:
    failed = model("f", State.FAILED, wanted_since_s=1.0, retry_at_s=103.0, error="no graph")
    result = ask(failed, now=100.0)
    assert result.actions == (Refuse("f", "model_failed", "no graph", 3.0),)
    assert result.wake_at_s == 103.0
    assert done(ask(failed, now=103.0)) == [("Load", "f")]
    assert done(ask(replace(failed, wanted_since_s=None), now=103.0)) == []


def test_a_model_told_to_go_waits_for_its_requests() -> None:
    leaving = model("l", State.READY, leaving=True, pinned=True, wanted_since_s=1.0)
    assert done(ask(replace(leaving, busy=True))) == []
    [action] = ask(leaving).actions
    assert isinstance(action, Unload)
