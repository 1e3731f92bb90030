"""What holds for every choice: what was asked for, the room there is, and whoever else decodes."""

from __future__ import annotations

import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from homespecd.governor.measured import DrafterSpec, MeasuredGovernor
from homespecd.governor.protocol import Choice, Reason, Situation, SpeculationMode
from tests.governor_answers import Lookup
from tests.governor_machine import INT4, Machine
from tests.governor_rounds import round_record
from tests.governor_worlds import BAD, CATEGORIES, CHAT, governor_for, world


def test_off_is_off_and_on_is_on() -> None:
    one = world(Machine(INT4), [BAD], [CHAT] * 3)
    governor = governor_for(one)

    off = one.run(governor, mode=SpeculationMode.OFF)
    on = one.run(governor, mode=SpeculationMode.ON, start_s=1000.0, first_id=1000)

    assert {choice.k for choice in off.choices} == {0}
    assert {choice.reason for choice in off.choices} == {Reason.DISABLED_BY_REQUEST}
    # The last round of an answer has room for one token only.
    plain = [choice for choice in on.choices if choice.k == 0]
    assert len(plain) <= 3
    assert on.proposed > 0


def test_a_long_prompt_is_no_slow_decode() -> None:
    """Rounds that carry prompt enter neither side of the measured speed-up."""
    governor = MeasuredGovernor([DrafterSpec("draft", 4)], step_ms=INT4)
    for number in range(30):
        observe(governor, number, catch_up=0, k=0, wall_ms=7.5)
        observe(governor, number, catch_up=500, k=0, wall_ms=900.0)
        observe(governor, number, catch_up=500, k=2, wall_ms=900.0)

    speedup = governor.speedup("draft")

    assert speedup.plain_samples == 30 - 1  # three cold rounds are left out, one of them plain
    assert speedup.speculative_samples == 0
    assert speedup.plain_ms_per_token == pytest.approx(7.5)


def observe(
    governor: MeasuredGovernor, request: int, *, catch_up: int, k: int, wall_ms: float
) -> None:
    rows = 1 + catch_up + k
    governor.observe(
        round_record(
            request=request,
            at_s=float(request),
            choice=Choice("draft" if k else None, k, Reason.SPECULATING),
            context=600,
            catch_up=catch_up,
            rows=rows,
            total_rows=rows,
            proposed=k,
            step_ms=wall_ms - 0.1,
            wall_ms=wall_ms,
        )
    )


def test_in_company_a_block_must_earn_its_rows() -> None:
    """Alone, a middling draft takes two tokens; with three others decoding, rows are dearer."""

    def width(other_rows: int) -> int:
        one = world(Machine(INT4, per_1000_tokens=0.0), [Lookup()], [CATEGORIES[1]] * 4)
        governor = governor_for(one)
        one.run(governor)
        total = 0
        for slot in range(4 if other_rows else 1):
            choice = governor.choose(
                1000.0,
                Situation(
                    request=100 + slot,
                    mode=SpeculationMode.AUTO,
                    context=300,
                    catch_up=0,
                    room=100,
                    offers={"ngram": 16},
                    other_rows=other_rows,
                    matches={"ngram": 3},
                ),
            )
            total = choice.k
        return total

    assert width(other_rows=0) > width(other_rows=3)


def test_prefill_chunks_leave_room_for_others() -> None:
    governor = MeasuredGovernor([], step_ms=INT4)

    alone, one, three = (governor.prefill_rows(slots) for slots in (0, 1, 3))

    assert alone == 64
    assert 8 <= one < 64
    assert one <= three <= 64


def test_without_drafters_every_round_is_plain() -> None:
    governor = MeasuredGovernor([])
    situation = Situation(1, SpeculationMode.AUTO, 10, 0, 100, {})

    assert governor.choose(0.0, situation) == Choice(None, 0, Reason.NO_DRAFT)
    assert governor.standing().reason is Reason.NO_DRAFT


@settings(max_examples=25, deadline=None)
@given(
    data=st.data(),
    mode=st.sampled_from(SpeculationMode),
    max_k=st.integers(1, 20),
)
def test_whatever_happens_a_choice_keeps_its_bounds(
    data: st.DataObject, mode: SpeculationMode, max_k: int
) -> None:
    governor = MeasuredGovernor([DrafterSpec("a", max_k), DrafterSpec("b", 3)])
    milliseconds = st.floats(0.0, 1e5)
    now_s = 0.0
    for _ in range(data.draw(st.integers(1, 25))):
        now_s += data.draw(st.floats(0.0, 10.0))
        situation = Situation(
            request=data.draw(st.integers(0, 3)),
            mode=mode,
            context=data.draw(st.integers(1, 100_000)),
            catch_up=data.draw(st.sampled_from([0, 0, 0, 1, 64, 1000])),
            room=data.draw(st.integers(0, 40)),
            offers=data.draw(
                st.dictionaries(st.sampled_from(["a", "b", "stranger"]), st.integers(0, 30))
            ),
            other_rows=data.draw(st.sampled_from([0, 0, 1, 3, 64])),
        )
        choice = governor.choose(now_s, situation)
        if choice.drafter is None:
            assert choice.k == 0
        else:
            assert 1 <= choice.k <= situation.offers[choice.drafter]
            assert choice.k <= situation.room - 1
            assert choice.k <= {"a": max_k, "b": 3}[choice.drafter]
            assert mode is not SpeculationMode.OFF
        if mode is SpeculationMode.ON and situation.room > 1:
            known = [situation.offers.get(name, 0) for name in ("a", "b")]
            assert (choice.k > 0) == (max(known) > 0)
        proposed = data.draw(st.integers(0, choice.k))
        accepted = data.draw(st.integers(0, proposed))
        rows = 1 + situation.catch_up + proposed
        governor.observe(
            round_record(
                request=situation.request,
                at_s=now_s,
                choice=choice,
                context=situation.context,
                catch_up=situation.catch_up,
                rows=rows,
                total_rows=rows + situation.other_rows,
                lanes=1 + (situation.other_rows > 0),
                proposed=proposed,
                accepted=accepted,
                committed=data.draw(st.integers(0, accepted + 1)),
                draft_ms=data.draw(milliseconds),
                step_ms=data.draw(milliseconds),
                wall_ms=data.draw(milliseconds),
            )
        )
        standing = governor.standing()
        assert all(ms >= 0 for ms in standing.step_ms.values())
        for one in standing.drafters:
            assert one.acceptance_rate is None or 0 <= one.acceptance_rate <= 1
    again = MeasuredGovernor(
        [DrafterSpec("a", max_k), DrafterSpec("b", 3)],
        remembered=json.loads(json.dumps(governor.to_record(), allow_nan=False)),
    )
    assert again.to_record() == governor.to_record()
