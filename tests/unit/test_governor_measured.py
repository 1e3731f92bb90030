"""The measuring governor on simulated machines: what it gains, and what it loses at most.

All times are simulated and seeded. A bound here is what the program promises, not what one seed
happens to give: the figures that were seen are well within.
"""

from __future__ import annotations

from collections.abc import Mapping

import pytest

from homespecd.governor.measured import DrafterSpec, MeasuredGovernor
from homespecd.governor.protocol import Reason
from tests.governor_answers import Draft, Lookup, answers
from tests.governor_machine import CUDA, FP32, INT4, Machine
from tests.governor_sim import Fixed, World
from tests.governor_worlds import (
    BAD,
    CATEGORIES,
    CHAT,
    GOOD,
    PROBE_BUDGET,
    against_plain,
    governor_for,
    probed,
    regret,
    spent,
    times_plain,
    world,
)

PERFECT_BUT_SLOW = Draft("draft", {"": 0.97}, token_ms=7.5, read_row_ms=0.3)


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
