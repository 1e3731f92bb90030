"""What finding out may cost: plain samples and tries together, and whose time is counted."""

from __future__ import annotations

from typing import Any

import pytest

from homespecd.governor.knowledge import Knowledge
from homespecd.governor.lessons import Lessons
from homespecd.governor.protocol import Choice, Reason, RoundRecord
from homespecd.governor.requests import Requests
from homespecd.governor.switch import TimeBudget
from tests.governor_answers import Draft, Lookup
from tests.governor_machine import FP32, Machine
from tests.governor_rounds import round_record
from tests.governor_sim import World
from tests.governor_worlds import CHAT, governor_for, probed, world

FLAT = Machine({1: 20.0, 16: 22.0, 64: 60.0}, sigma=0.2)
COPYING = world(FLAT, [Lookup()], [("copy", (("copy", 1000),))] * 8)
TRYING = world(
    Machine(FP32, sigma=0.05),
    [Draft("draft", {"": 0.5}, token_ms=18.0)],
    [("chat", (("chat", 300),))] * 12,
)


@pytest.mark.parametrize(
    ("one", "budget"), [(COPYING, 0.005), (TRYING, 0.002)], ids=["samples", "tries"]
)
def test_a_small_budget_is_kept(one: World, budget: float) -> None:
    """Where a round brings seventeen tokens, a plain one costs nearly all of its time."""
    outcome = one.run(governor_for(one, probe_budget=budget))

    assert 0 < probed(outcome) <= budget


def test_a_longer_context_gets_a_baseline_of_its_own() -> None:
    """A long answer grows into the next two context buckets; every round has a proposal."""
    draft = Draft("draft", {"": 0.85}, token_ms=7.25)
    one = world(Machine(FP32), [draft], [CHAT] * 16)
    governor = governor_for(one)
    one.run(governor)
    long = world(Machine(FP32, cold_steps=0), [draft], [("chat", (("chat", 900),))])
    long.run(governor, start_s=1000.0, first_id=1000)

    cells = governor.to_record()["plain"]["cells"]
    counts = {cell: round(rounds) for cell, (*_, rounds) in cells.items()}
    assert min(counts["0:0"], counts.get("1:0", 0), counts.get("2:0", 0)) >= 2


def learned(*records: RoundRecord, lately: RoundRecord | None = None) -> TimeBudget:
    """The budget after rounds, on a machine whose plain round takes 20 ms."""
    known, budget = fresh(), TimeBudget(0.02)
    lessons = Lessons(known, budget)
    for _ in range(40 if lately else 0):
        lessons.of_text(lately, None, cold=False)  # type: ignore[arg-type]
    lessons.of_machine([lessons.of_text(one, None, cold=False) for one in records])
    return budget


def fresh() -> Knowledge:
    return Knowledge([], min_speedup=1.0, step_ms={1: 20.0, 4: 20.0, 8: 20.0}, draft_ms={})


def round_of(**changes: Any) -> RoundRecord:
    return round_record(**({"step_ms": 100.0, "wall_ms": 100.0} | changes))


def test_time_that_is_shared_is_counted_once() -> None:
    """Four who share a step report the same 100 ms each: that are 100 ms, not 400."""
    alone = learned(round_of())
    shared = learned(*[round_of(request=i, total_rows=4, lanes=4) for i in range(4)])

    assert alone.affords(1.19)
    assert shared.affords(1.19)
    assert not shared.affords(1.21)


def test_a_plain_sample_costs_what_its_token_would_have_cost_less() -> None:
    """Ten tokens in 20 ms are usual in this answer; a plain round has brought one."""
    sample = round_of(choice=Choice(None, 0, Reason.PROBING), step_ms=20.0, wall_ms=20.0)
    usual = round_of(committed=10, step_ms=20.0, wall_ms=20.0)

    nothing_else = learned(round_of(request=2), sample)
    quick = learned(round_of(request=2), sample, lately=usual)

    assert nothing_else.affords(1.0)  # 2 % of a fifth are kept back; it was a round like any other
    assert not quick.affords(0.0)  # 18 ms were lost


def test_many_answers_at_once_keep_what_they_have_learned() -> None:
    """Sixty-four do; one more, and the oldest is taken for one that went away."""
    requests = Requests()

    def state(request: int) -> Any:
        return requests.state(request, 1.0, (), pairs={}, started=lambda: None)

    states = {request: state(request) for request in range(64)}
    assert all(state(request) is states[request] for request in range(64))

    state(64)
    assert state(1) is states[1]
    assert state(0) is not states[0]
