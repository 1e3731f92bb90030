"""The measuring governor on simulated machines: losses, regrets, switches, restarts.

All times are simulated and seeded. A bound here is what the program promises, not what one seed
happens to give: the figures that were seen are well within.
"""

from __future__ import annotations

import json
from collections.abc import Mapping

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from homespecd.governor.measured import DrafterSpec, MeasuredGovernor
from homespecd.governor.protocol import (
    Choice,
    Reason,
    RoundRecord,
    Situation,
    SpeculationMode,
)
from tests.governor_answers import Draft, Lookup, answers
from tests.governor_machine import CUDA, FP32, INT4, Machine
from tests.governor_sim import Fixed, Outcome, World, fixed_policies
from tests.governor_worlds import CHAT, PROBE_BUDGET, governor_for, probed, times_plain, world

# Answers before these are the first ones after a load: they learn.
LEARNING = 4

CATEGORIES = [(name, ((name, 150),)) for name in ("chat", "summary", "edit", "copy")]

BAD = Draft("draft", {"": 0.03}, token_ms=2.4, read_row_ms=0.2)
GOOD = Draft("draft", {"": 0.85}, token_ms=7.25, read_row_ms=0.4)
PERFECT_BUT_SLOW = Draft("draft", {"": 0.97}, token_ms=7.5, read_row_ms=0.3)


def spent(world: World, outcome: Outcome, category: str, first: int = LEARNING) -> float:
    return sum(
        ms
        for index, ms in enumerate(outcome.answers)
        if index >= first and world.answers[index].category == category
    )


def against_plain(world: World, outcome: Outcome, category: str, first: int = LEARNING) -> float:
    """How many times faster than plain, in a category, once it has been learned."""
    plain = world.run(Fixed())
    return spent(world, plain, category, first) / spent(world, outcome, category, first)


def regret(world: World, outcome: Outcome, category: str, first: int = LEARNING) -> float:
    """How much longer than with the best fixed drafter and k, found in hindsight."""
    best = min(
        spent(world, world.run(policy), category, first)
        for policy in fixed_policies(world.drafters)
    )
    return spent(world, outcome, category, first) / best - 1


@pytest.mark.parametrize(
    ("machine", "draft"),
    [
        (Machine(INT4), BAD),
        (Machine(INT4), PERFECT_BUT_SLOW),
        (Machine(INT4, sigma=0.2, spikes=0.03), BAD),
        (Machine(CUDA), GOOD),
    ],
    ids=["bad", "perfect-but-slow", "bad-noisy", "early-cuda"],
)
def test_a_draft_that_does_not_pay_costs_next_to_nothing(machine: Machine, draft: Draft) -> None:
    """Never slower: at most 2 % behind plain after the first answer, and it says why."""
    one = world(machine, [draft], [CHAT] * 16)
    governor = governor_for(one)

    outcome = one.run(governor)

    assert against_plain(one, outcome, "chat", first=1) >= 0.98
    assert probed(outcome) <= PROBE_BUDGET
    assert outcome.switches <= 2
    standing = governor.standing()
    assert (standing.mode, standing.reason) == ("plain", Reason.SLOWER_THAN_PLAIN)
    measured = governor.speedup("draft")
    # Where the only try read a prompt, nothing was measured that could be compared.
    assert measured.measured is None or measured.measured < 1
    assert 0 < outcome.speculative_rounds < 0.05 * outcome.rounds
    assert measured.plain_samples > 0


@pytest.mark.parametrize(
    ("machine", "most"),
    [(Machine(FP32), 0.06), (Machine(FP32, sigma=0.2, spikes=0.03), 0.12)],
    ids=["quiet", "noisy"],
)
def test_a_good_draft_is_used(machine: Machine, most: float) -> None:
    one = world(machine, [GOOD], [CHAT] * 20)
    governor = governor_for(one)

    outcome = one.run(governor)

    assert against_plain(one, outcome, "chat") > 1.2
    assert regret(one, outcome, "chat") <= most
    assert probed(outcome) <= PROBE_BUDGET
    assert outcome.switches <= 2
    assert governor.standing().mode == "speculative"
    speedup = governor.speedup("draft").measured
    assert speedup is not None
    assert speedup > 1.2


@pytest.mark.parametrize("told", [True, False], ids=["with-matches", "without"])
def test_every_kind_of_text_gets_what_suits_it(told: bool) -> None:
    """Chat, summaries, edits and copies in turn: none slower than plain, each near its own best."""
    one = world(Machine(INT4), [Lookup(matches=told)], CATEGORIES * 5, foreseen=told)

    outcome = one.run(governor_for(one))

    for category, _ in CATEGORIES:
        assert against_plain(one, outcome, category) >= 0.98
        assert regret(one, outcome, category) <= 0.10
    assert probed(outcome) <= PROBE_BUDGET
    assert outcome.switches <= 3


def test_a_long_context_changes_nothing_of_that() -> None:
    one = world(Machine(INT4), [Lookup()], CATEGORIES * 3, prompt=3950)

    outcome = one.run(governor_for(one))

    for category, _ in CATEGORIES:
        assert against_plain(one, outcome, category) >= 0.98
        assert regret(one, outcome, category) <= 0.11


def test_two_drafters_compete() -> None:
    """The lookup where it has a match, the model elsewhere: better than either alone."""
    model = Draft("model", {"": 0.65, "copy": 0.9, "edit": 0.85}, token_ms=7.25, read_row_ms=0.3)
    one = world(Machine(FP32), [Lookup(), model], CATEGORIES * 6)

    outcome = one.run(governor_for(one))

    used = {choice.drafter for choice in outcome.choices}
    assert used == {None, "ngram", "model"}
    for category, _ in CATEGORIES:
        assert against_plain(one, outcome, category) >= 1.0
    assert spent(one, outcome, "copy") < spent(one, one.run(Fixed("model", 6)), "copy") / 2
    assert spent(one, outcome, "summary") < spent(one, one.run(Fixed("model", 2)), "summary")


@pytest.mark.parametrize("told", [True, False], ids=["with-matches", "without"])
def test_a_change_of_subject_is_followed_within_an_answer(told: bool) -> None:
    """A list, prose, a list: no fixed k suits all three, so the governor beats each of them."""
    kind = ("mixed", (("copy", 100), ("chat", 100), ("copy", 60)))
    one = world(Machine(INT4), [Lookup(matches=told)], [kind] * 10, foreseen=told)

    outcome = one.run(governor_for(one))

    assert regret(one, outcome, "mixed") < 0.0
    assert against_plain(one, outcome, "mixed") > 1.3


def test_after_a_change_to_prose_blocks_shrink_within_a_few_rounds() -> None:
    kind = ("mixed", (("copy", 120), ("chat", 120)))
    one = world(Machine(INT4), [Lookup()], [kind] * 8)
    governor = governor_for(one)
    one.run(governor)
    widths: list[int] = []
    position = 0
    last = answers(one.drafters, [kind], seed=99)
    single = World(one.machine, one.drafters, last)

    outcome = single.run(governor, start_s=1000.0, first_id=1000)

    for choice in outcome.choices:
        if position > 130:
            widths.append(choice.k)
        laid = last[0].laid["ngram"]
        position += 1 + (laid.accepted(position, choice.k) if choice.k else 0)
    assert sum(widths[10:]) <= 0.5 * len(widths[10:])


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


@pytest.mark.parametrize("machine", [FP32, INT4], ids=["memory-bound", "compute-bound"])
def test_a_draft_that_was_of_no_use_for_long_is_found_out_to_be_good(
    machine: Mapping[int, float],
) -> None:
    """Even if it must read a prompt for each look that is long for the answer."""
    token_ms = machine[1] / 4
    draft = Draft("draft", {"": 0.03, "copy": 0.9}, token_ms=token_ms, read_row_ms=token_ms / 15)
    bad, good = [("chat", (("chat", 100),))] * 40, [("copy", (("copy", 100),))] * 40
    one = world(Machine(machine), [draft], [*bad, *good])

    outcome = one.run(governor_for(one))

    assert times_plain(one, outcome, 1, 40) >= 0.99
    assert times_plain(one, outcome, 70, 80) > 1.2
    assert outcome.switches <= 6


def test_a_borderline_draft_does_not_flicker() -> None:
    """Fifty answers of a draft that is exactly as fast as plain."""
    draft = Draft("draft", {"": 0.56}, token_ms=2.2, read_row_ms=0.1)
    one = world(Machine(INT4), [draft], [CHAT] * 50)

    outcome = one.run(governor_for(one))

    assert outcome.switches <= 6
    assert against_plain(one, outcome, "chat") >= 0.98
    assert probed(outcome) <= PROBE_BUDGET


def test_a_higher_bar_is_kept() -> None:
    """With min_speedup 2, a draft that makes it 1.4 times faster is not used."""
    one = world(Machine(FP32), [GOOD], [CHAT] * 10)
    governor = governor_for(one, min_speedup=2.0)

    outcome = one.run(governor)

    assert outcome.speculative_rounds < 0.1 * outcome.rounds
    assert governor.standing().reason is Reason.SLOWER_THAN_PLAIN


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
    damage: dict, caplog: pytest.LogCaptureFixture
) -> None:
    one = world(Machine(FP32), [GOOD], [CHAT])
    governor = governor_for(one)
    one.run(governor)
    record = {} if not damage else governor.to_record() | damage

    rebuilt = governor_for(one, remembered=record)

    assert rebuilt.standing() == governor_for(one).standing()
    assert len(caplog.records) == 1


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
        RoundRecord(
            request=request,
            at_s=float(request),
            choice=Choice("draft" if k else None, k, Reason.SPECULATING),
            context=600,
            catch_up=catch_up,
            rows=rows,
            total_rows=rows,
            lanes=1,
            proposed=k,
            accepted=0,
            committed=1,
            draft_ms=0.0,
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
            RoundRecord(
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


def test_a_draft_that_is_never_worth_a_try_is_not_called_in_use() -> None:
    """Its prompt takes longer to read than probes may cost: nothing is measured, and it says so."""
    dear = Draft("draft", {"": 0.9}, token_ms=30.0, read_row_ms=3.0)
    one = world(Machine(INT4), [dear], [CHAT] * 3)
    governor = MeasuredGovernor(
        [DrafterSpec("draft", 8)], step_ms=INT4, draft_ms={"draft": {1: 30.0, 8: 240.0}}
    )

    outcome = one.run(governor)

    assert outcome.proposed == 0
    standing = governor.standing()
    assert (standing.mode, standing.reason) == ("plain", Reason.SLOWER_THAN_PLAIN)
    assert standing.drafters[0].speedup.measured is None
