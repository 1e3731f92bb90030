"""After a load: cold steps teach nothing, and what an earlier run learned is taken up again, unless
it is of something else or damaged."""

from __future__ import annotations

import json
from typing import Any

import pytest

from homespecd.governor.measured import DrafterSpec, MeasuredGovernor
from homespecd.governor.protocol import Reason
from tests.governor_answers import Draft, answers
from tests.governor_machine import FP32, Machine
from tests.governor_sim import World
from tests.governor_worlds import BAD, CHAT, GOOD, against_plain, governor_for, world


@pytest.mark.parametrize("curve", [True, False], ids=["calibrated", "never-measured"])
def test_cold_steps_after_a_load_decide_nothing(curve: bool) -> None:
    """The first three steps take five times as long; nobody concludes anything from them."""
    one = world(Machine(FP32, cold_steps=3), [GOOD], [CHAT] * 3)
    governor = governor_for(one, curve=curve)

    outcome = one.run(governor)

    assert governor.standing().mode == "speculative"
    assert against_plain(one, outcome, "chat", first=1) > 1.15
    plain_ms = governor.standing().plain_ms_per_token
    assert plain_ms is not None
    assert plain_ms < 1.3 * FP32[1]


@pytest.mark.parametrize("draft", [GOOD, BAD], ids=["good", "bad"])
def test_a_restart_decides_in_the_same_way_from_the_first_round(draft: Draft) -> None:
    one = world(Machine(FP32), [draft], [CHAT] * 10)
    before = governor_for(one)
    one.run(before)
    record = json.loads(json.dumps(before.to_record()))

    after = governor_for(one, curve=False, remembered=record)
    fresh = answers(one.drafters, [CHAT] * 4, seed=123)
    warm, cold = Machine(FP32, cold_steps=0), Machine(FP32)
    old = World(warm, one.drafters, fresh).run(before, start_s=1000.0, first_id=1000)
    new = World(cold, one.drafters, fresh).run(after, start_s=1000.0, first_id=1000)

    assert after.standing().mode == before.standing().mode
    first = next(choice for choice in old.choices if choice.reason is not Reason.PROBING)
    assert (new.choices[0].drafter, new.choices[0].reason) == (first.drafter, first.reason)
    assert not any(choice.reason is Reason.WARMING_UP for choice in new.choices)
    if draft is GOOD:
        assert new.true_ms == pytest.approx(old.true_ms, rel=0.05)
    else:
        assert all(choice.k == 0 for choice in new.choices if choice.reason is not Reason.PROBING)


def test_another_draft_under_the_same_name_starts_afresh() -> None:
    one = world(Machine(FP32), [BAD], [CHAT] * 6)
    first = MeasuredGovernor([DrafterSpec("draft", 8, "digest-1")], step_ms=FP32)
    one.run(first)

    second = MeasuredGovernor([DrafterSpec("draft", 8, "digest-2")], remembered=first.to_record())

    assert first.standing().reason is Reason.SLOWER_THAN_PLAIN
    assert second.standing().reason is Reason.WARMING_UP
    assert second.standing().step_ms == first.standing().step_ms


@pytest.mark.parametrize(
    "damage", [{}, {"steps": 1}, {"steps": {"pace": [float("nan"), 0.1]}}, {"drafters": []}]
)
def test_a_record_that_makes_no_sense_is_ignored(
    damage: dict[str, Any], caplog: pytest.LogCaptureFixture
) -> None:
    one = world(Machine(FP32), [GOOD], [CHAT])
    governor = governor_for(one)
    one.run(governor)
    record = {} if not damage else governor.to_record() | damage

    rebuilt = governor_for(one, remembered=record)

    assert rebuilt.standing() == governor_for(one).standing()
    assert len(caplog.records) == 1
