"""The measuring governor on real texts of the real model, with simulated times.

What is right where is what a lookup and a draft model really made of SmolLM2's answers to the
shipped prompts; times are those of a machine with 3 % of noise.
"""

from __future__ import annotations

import pytest

from homespecd.governor.measured import DrafterSpec, MeasuredGovernor
from homespecd.governor.protocol import Reason
from tests.governor_answers import Draft, Drafting, Lookup
from tests.governor_machine import FP32, Machine
from tests.governor_sim import Fixed, Outcome, World, fixed_policies
from tests.governor_texts import CATEGORIES, INT4_EXACT, NEVER, real_answers

TURNS = 5
INT4 = Machine(INT4_EXACT)
LOOKUP = Lookup()
BAD = Draft(NEVER, {"": 0.0}, token_ms=2.4, read_row_ms=0.2)
SLOW = Draft("fp32", {"": 0.97}, token_ms=24.0, read_row_ms=1.5)
SMALL = Draft("int4", {"": 0.97}, token_ms=9.6, read_row_ms=0.9)

Case = tuple[MeasuredGovernor, Outcome, World]


def served(
    precision: str, machine: Machine, drafters: list[Drafting], tokens: int, seed: int = 1
) -> Case:
    """The six answers in turns, by a governor that has only timed some steps before."""
    answers = real_answers(precision, drafters, tokens)
    governor = MeasuredGovernor(
        [DrafterSpec(one.name, one.max_k) for one in drafters],
        step_ms=machine.curve,
        draft_ms={
            one.name: {1: one.token_ms, one.max_k: one.max_k * one.token_ms}
            for one in drafters
            if isinstance(one, Draft)
        },
    )
    outcome = World(machine, drafters, answers * TURNS).run(governor, seed=seed)
    return governor, outcome, World(machine, drafters, answers)


def learned(outcome: Outcome, category: int) -> float:
    """Mean time of a category's answers after the first turn."""
    own = outcome.answers[category :: len(CATEGORIES)][1:]
    return sum(own) / len(own)


def of_plain(case: Case) -> dict[str, float]:
    """How many times as fast as plain, by category."""
    _, outcome, once = case
    plain = once.run(Fixed()).answers
    return {name: plain[i] / learned(outcome, i) for i, name in enumerate(CATEGORIES)}


def of_best(case: Case) -> dict[str, float]:
    """The same against the drafter and k that are best for the category in hindsight."""
    _, outcome, once = case
    runs = [once.run(policy).answers for policy in fixed_policies(once.drafters)]
    return {
        name: min(run[i] for run in runs) / learned(outcome, i) for i, name in enumerate(CATEGORIES)
    }


@pytest.mark.parametrize("seed", [1, 2, 3])
def test_a_lookup_is_used_where_it_helps(seed: int) -> None:
    case = served("int4", INT4, [LOOKUP], 96, seed)

    assert min(of_plain(case).values()) >= 0.98
    assert min(of_best(case).values()) >= 0.90
    assert of_plain(case)["code edit"] > 3.5
    assert case[0].standing().reason is Reason.SPECULATING


@pytest.mark.parametrize("draft", [BAD, SLOW], ids=["never-right", "slow"])
@pytest.mark.parametrize("seed", [1, 2])
def test_a_draft_that_does_not_pay_is_left_alone(draft: Draft, seed: int) -> None:
    """Not read with either: in nearly every answer it is not asked at all."""
    governor, outcome, once = case = served("int4", INT4, [draft], 96, seed)

    assert min(of_plain(case).values()) >= 0.98
    assert outcome.answers[0] <= once.run(Fixed()).answers[0] * 1.05  # the first one finds out
    assert governor.standing().reason is Reason.SLOWER_THAN_PLAIN
    plain = once.run(Fixed()).answers * TURNS
    touched = [i for i, ms in enumerate(outcome.answers) if ms > plain[i] * 1.0001]
    assert len(touched) <= 4


@pytest.mark.parametrize("seed", [1, 2, 3])
def test_a_bad_draft_beside_a_lookup_takes_nothing_from_it(seed: int) -> None:
    case = served("int4", INT4, [LOOKUP, BAD], 96, seed)

    assert min(of_plain(case).values()) >= 0.98
    assert min(of_best(case).values()) >= 0.90


@pytest.mark.parametrize("seed", [1, 2, 3])
def test_a_model_and_a_lookup_share_the_work(seed: int) -> None:
    """Whether a lookup will find something soon is not known when the draft would have to read the
    prompt: that is learned from the answers to prompts that begin alike."""
    case = served("fp32", Machine(FP32), [LOOKUP, SMALL], 96, seed)

    assert min(of_plain(case).values()) >= 1.4
    assert min(of_best(case).values()) >= 0.90
