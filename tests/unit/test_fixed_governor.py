"""The fixed governor: which drafter, how many tokens, and what it counted."""

from __future__ import annotations

from dataclasses import replace

import pytest

from homespecd.governor.fixed import FixedGovernor
from homespecd.governor.protocol import (
    Choice,
    Governor,
    MeasuredSpeedup,
    Reason,
    RoundRecord,
    Situation,
    SpeculationMode,
)
from tests.governor_rounds import round_record

ROUND = Situation(
    request=1,
    mode=SpeculationMode.AUTO,
    context=100,
    catch_up=0,
    room=50,
    offers={"draft": 8, "ngram": 16},
)
RECORD = round_record(
    at_s=0.0,
    choice=Choice(None, 0, Reason.NO_DRAFT),
    context=100,
    step_ms=8.0,
    wall_ms=10.0,
)


def governor(*, enabled: bool = True) -> FixedGovernor:
    return FixedGovernor({"ngram": 5, "draft": 3}, enabled=enabled)


def speculative(drafter: str, *, proposed: int, accepted: int, wall_ms: float) -> RoundRecord:
    return replace(
        RECORD,
        choice=Choice(drafter, 5, Reason.SPECULATING),
        rows=1 + proposed,
        total_rows=1 + proposed,
        proposed=proposed,
        accepted=accepted,
        committed=accepted + 1,
        draft_ms=2.0,
        step_ms=wall_ms - 2.0,
        wall_ms=wall_ms,
    )


@pytest.mark.parametrize(
    ("change", "choice"),
    [
        ({}, Choice("ngram", 5, Reason.SPECULATING)),
        ({"offers": {"ngram": 4}}, Choice("ngram", 4, Reason.SPECULATING)),
        ({"offers": {"ngram": 0, "draft": 8}}, Choice("draft", 3, Reason.SPECULATING)),
        ({"room": 3}, Choice("ngram", 2, Reason.SPECULATING)),
        ({"room": 1}, Choice(None, 0, Reason.NO_DRAFT)),
        ({"offers": {}}, Choice(None, 0, Reason.NO_DRAFT)),
        ({"offers": {"other": 9}}, Choice(None, 0, Reason.NO_DRAFT)),
        ({"mode": SpeculationMode.OFF}, Choice(None, 0, Reason.DISABLED_BY_REQUEST)),
        ({"catch_up": 16}, Choice("ngram", 5, Reason.SPECULATING)),
        ({"catch_up": 17}, Choice(None, 0, Reason.WARMING_UP)),
        ({"catch_up": 17, "offers": {}}, Choice(None, 0, Reason.NO_DRAFT)),
        ({"catch_up": 17, "mode": SpeculationMode.ON}, Choice("ngram", 5, Reason.SPECULATING)),
    ],
)
def test_choice(change: dict[str, object], choice: Choice) -> None:
    assert governor().choose(0.0, replace(ROUND, **change)) == choice  # type: ignore[arg-type]


@pytest.mark.parametrize("mode", [SpeculationMode.AUTO, SpeculationMode.ON])
def test_the_configuration_has_the_last_word(mode: SpeculationMode) -> None:
    off = governor(enabled=False)
    assert off.choose(0.0, replace(ROUND, mode=mode)).reason is Reason.DISABLED_BY_CONFIG
    assert off.standing().mode == "plain"
    assert off.standing().reason is Reason.DISABLED_BY_CONFIG


def test_speedup_is_the_ratio_of_wall_times_per_token() -> None:
    """Both sides from rounds that really ran; None until they have."""
    one = governor()
    assert one.speedup("ngram") == MeasuredSpeedup(None, None, None, 0, 0)
    for wall_ms in (9.0, 11.0):
        one.observe(replace(RECORD, wall_ms=wall_ms))
    assert one.speedup("ngram") == MeasuredSpeedup(None, 10.0, None, 2, 0)
    one.observe(speculative("ngram", proposed=5, accepted=3, wall_ms=16.0))
    one.observe(speculative("draft", proposed=3, accepted=0, wall_ms=20.0))
    assert one.speedup("ngram") == MeasuredSpeedup(2.5, 10.0, 4.0, 2, 1)
    assert one.speedup("draft") == MeasuredSpeedup(0.5, 10.0, 20.0, 2, 1)
    assert one.speedup(None) == MeasuredSpeedup(10.0 / 7.2, 10.0, 7.2, 2, 2)
    assert one.speedup("unknown").speculative_samples == 0


def test_rounds_that_read_prompt_are_not_timed() -> None:
    one = governor()
    one.observe(replace(RECORD, catch_up=30, total_rows=31, wall_ms=500.0))
    one.observe(replace(speculative("ngram", proposed=2, accepted=1, wall_ms=500.0), catch_up=30))
    assert one.speedup(None) == MeasuredSpeedup(None, None, None, 0, 0)
    assert one.standing().step_ms == {}
    assert one.standing().drafters[0].acceptance_rate == 0.5


def test_a_drafter_that_came_up_with_nothing_still_cost_its_time() -> None:
    one = governor()
    one.observe(speculative("ngram", proposed=0, accepted=0, wall_ms=12.0))
    assert one.speedup("ngram").speculative_ms_per_token == 12.0
    assert one.standing().drafters[0].acceptance_rate is None


def test_standing() -> None:
    """Counts per drafter, in the configured order, and the mean time of steps by their rows."""
    one = governor()
    for step_ms in (8.0, 9.0):
        one.observe(replace(RECORD, step_ms=step_ms))
    one.observe(speculative("ngram", proposed=5, accepted=5, wall_ms=20.0))
    one.observe(speculative("ngram", proposed=5, accepted=0, wall_ms=20.0))
    standing = one.standing()
    assert (standing.mode, standing.reason) == ("speculative", Reason.SPECULATING)
    assert standing.step_ms == {1: 8.5, 6: 18.0}
    assert standing.plain_ms_per_token == 10.0
    ngram, draft = standing.drafters
    assert (ngram.name, ngram.k, ngram.acceptance_rate) == ("ngram", 5, 0.5)
    assert (ngram.acceptance_length, ngram.draft_ms) == (3.5, 2.0)
    assert (draft.name, draft.acceptance_rate, draft.draft_ms) == ("draft", None, None)


def test_no_drafters_is_plain() -> None:
    standing = FixedGovernor({}).standing()
    assert (standing.mode, standing.reason, standing.drafters) == ("plain", Reason.NO_DRAFT, ())


def test_prefill_rows_and_the_protocol() -> None:
    one: Governor = FixedGovernor({}, prefill_rows=32)
    assert one.prefill_rows(0) == one.prefill_rows(3) == 32
    assert governor().prefill_rows(1) == 64
