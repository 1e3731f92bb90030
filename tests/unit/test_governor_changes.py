"""A machine that changes its pace: what was measured before counts no more, and soon not at all."""

from __future__ import annotations

from typing import Any

import pytest

from homespecd.governor.measured import MeasuredGovernor
from homespecd.governor.pair import DrafterSpec, Pair
from homespecd.governor.protocol import Choice, Reason, SpeculationMode
from tests.governor_answers import Draft
from tests.governor_machine import FP32, Machine
from tests.governor_sim import Fixed, Outcome, World
from tests.governor_worlds import CHAT, GOOD, governor_for, regret, times_plain, world


def quick_plain(request: int, position: int, rows: int) -> float:  # noqa: ARG001
    return 0.3 if rows == 1 else 1.0


def twice(request: int, position: int, rows: int) -> float:  # noqa: ARG001
    return 2.0


SLOWED = Draft("draft", {"": 0.85}, token_ms=7.25, pace=twice)
QUICK, SLOW = Machine(FP32), Machine(FP32, cold_steps=0, pace=twice)
SHORT = world(SLOW, [GOOD], [("chat", (("chat", 12),))])


@pytest.fixture(scope="module")
def settled() -> dict[str, Any]:
    """What is known after sixteen answers of a draft that pays."""
    one = world(QUICK, [GOOD], [CHAT] * 16)
    governor = governor_for(one)
    one.run(governor)
    return governor.to_record()


def then(record: dict[str, Any], after: World, **options: Any) -> tuple[MeasuredGovernor, Outcome]:
    """What comes next, in another world."""
    governor = governor_for(after, remembered=record)
    return governor, after.run(governor, start_s=1000.0, first_id=1000, **options)


def test_where_plain_steps_become_quick_that_is_found_out(settled: dict[str, Any]) -> None:
    """Every round has a proposal, so only plain samples can show it: a few, since one may be
    chance. They come every 24 rounds where the last one brought something new."""
    machine = Machine(FP32, cold_steps=0, per_1000_tokens=0.0, pace=quick_plain)
    after = world(machine, [GOOD], [("chat", (("chat", 300),))] * 4, prompt=60)

    _, outcome = then(settled | {"plain_gap": 24}, after)

    assert outcome.speculative_rounds > 20
    assert times_plain(after, outcome, 2, 4) >= 0.9


def test_the_measured_speedup_stays_right(settled: dict[str, Any]) -> None:
    """Plain rounds of the quick machine against speculative ones of the slow one say nothing."""
    after = world(SLOW, [SLOWED], [CHAT] * 4)

    governor, outcome = then(settled, after)

    measured = governor.speedup("draft").measured
    assert measured == pytest.approx(times_plain(after, outcome, 0, 4), rel=0.2)


def test_what_was_measured_at_another_pace_hardly_counts(settled: dict[str, Any]) -> None:
    """A dozen plain rounds say how slow the machine is now; of the draft they say nothing new."""
    governor, _ = then(settled, SHORT, mode=SpeculationMode.OFF)

    before, after = settled["drafters"]["draft"], governor.to_record()["drafters"]["draft"]
    assert [rounds > 100 for _, _, rounds in before["measured"]["cells"].values()] == [True]
    assert after["measured"]["cells"] == {}
    assert after["measured"]["before"][-1] == pytest.approx(8.0)
    assert before["switch"]["evidence"][2] > 100
    assert after["switch"]["evidence"][2] == pytest.approx(4.0)
    assert after["switch"]["on"]
    trusted, doubted = before["fares"]["all"][-1], after["fares"]["all"][-1]
    assert (len(trusted) > 3, doubted) == (True, [])


def test_after_a_change_plain_samples_come_often_again(settled: dict[str, Any]) -> None:
    """The baseline has just been measured; whether it stays is looked at within a few answers."""
    later = world(SLOW, [SLOWED], [CHAT] * 3)
    _, usual = then(settled, world(Machine(FP32, cold_steps=0), [GOOD], [CHAT] * 3))
    governor, _ = then(settled, SHORT, mode=SpeculationMode.OFF)
    changed = later.run(governor, start_s=2000.0, first_id=2000)

    assert len(samples(usual)) == 0
    assert len(samples(changed)) >= 1


def samples(outcome: Outcome) -> list[Choice]:
    """The plain rounds that were taken on purpose."""
    return [one for one in outcome.choices if one.reason is Reason.PROBING and one.k == 0]


def test_a_draft_that_nobody_looked_at_for_long_is_looked_at_soon() -> None:
    pair = Pair(DrafterSpec("draft", 8), 1.0, None)
    for _ in range(12):
        pair.probes.nothing_new()

    pair.doubt()
    for _ in range(600):
        pair.probes.round()

    assert pair.probes.due


@pytest.mark.parametrize("seed", [1, 2, 3])
def test_plain_steps_that_became_quicker_are_found_out_within_an_answer(seed: int) -> None:
    """The other program is gone: what paid before is a loss now, and only plain steps tell."""

    def pace(request: int, position: int, rows: int) -> float:  # noqa: ARG001
        return 0.3 if request >= 2 and rows == 1 else 1.0

    draft = Draft("draft", {"": 0.6}, token_ms=7.0, read_row_ms=0.1)
    one = world(Machine(FP32, pace=pace), [draft], [("chat", (("chat", 600),))] * 8)

    outcome, plain = one.run(governor_for(one), seed=seed), one.run(Fixed())

    assert sum(plain.answers[:2]) > 1.05 * sum(outcome.answers[:2])
    assert sum(plain.answers[3:]) >= 0.97 * sum(outcome.answers[3:])


def test_a_machine_that_becomes_slower_changes_no_verdict() -> None:
    def pace(request: int, position: int, rows: int) -> float:  # noqa: ARG001
        return 2.0 if request >= 8 else 1.0

    draft = Draft("draft", {"": 0.85}, token_ms=7.25, read_row_ms=0.4, pace=pace)
    one = world(Machine(FP32, pace=pace), [draft], [CHAT] * 16)
    governor = governor_for(one)

    outcome = one.run(governor)

    assert regret(one, outcome, "chat") <= 0.10
    assert outcome.switches <= 2
    assert governor.standing().mode == "speculative"
    assert governor.standing().step_ms[1] == pytest.approx(2 * FP32[1], rel=0.25)


def test_where_only_wide_steps_become_slower_speculation_ends_and_comes_back() -> None:
    """Another program takes the second core for a while: off, at once, and on again afterwards."""

    def pace(request: int, position: int, rows: int) -> float:  # noqa: ARG001
        return 2.5 if rows > 1 and 8 <= request < 24 else 1.0

    one = world(Machine(FP32, pace=pace), [GOOD], [CHAT] * 60)

    outcome = one.run(governor_for(one))

    assert times_plain(one, outcome, 4, 8) > 1.2
    assert times_plain(one, outcome, 8, 9) > 0.85  # one answer finds out
    assert times_plain(one, outcome, 9, 24) >= 0.97
    assert times_plain(one, outcome, 50, 60) > 1.2
    assert outcome.switches <= 6
