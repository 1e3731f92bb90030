"""The self-test of sampled speculation: passes a right verifier, and no wrong one."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest
from scipy import stats

from homespecd.decoding.verify import Dice, Probabilities, Verdict, verify_block
from homespecd.worker.chi_square import pooled_statistic, speculated_pairs, upper_tail
from tests.fakes import FakeModel, HistoryLogits

PROMPT = (1, 2, 3)


def p_value(seed: int = 1, samples: int = 4000) -> float:
    model = FakeModel(HistoryLogits(16, seed=2, sharpness=1.5))
    return speculated_pairs(model, PROMPT, vocab_size=16, samples=samples, seed=seed).p_value


@pytest.mark.parametrize("dof", [3, 10, 63])
@pytest.mark.parametrize("share", [0.3, 1.0, 1.4, 2.0])
def test_the_upper_tail_is_that_of_chi_square(dof: int, share: float) -> None:
    assert upper_tail(share * dof, dof) == pytest.approx(
        float(stats.chi2.sf(share * dof, dof)), abs=2e-3
    )


def test_the_upper_tail_at_its_ends() -> None:
    assert upper_tail(math.inf, 5) == 0.0
    assert upper_tail(0.0, 5) > 0.999


def test_rare_cells_are_pooled() -> None:
    expected = {(0, 0): 90.0, (0, 1): 4.0, (1, 0): 3.0, (1, 1): 3.0}
    counts = {(0, 0): 80, (0, 1): 10, (1, 0): 10}

    statistic, dof = pooled_statistic(counts, expected)

    assert dof == 1
    assert statistic == pytest.approx(100 / 90 + 100 / 10)


def test_what_cannot_happen_is_infinitely_bad() -> None:
    assert pooled_statistic({(9, 9): 1}, {(0, 0): 10.0}) == (math.inf, 1)


def test_the_verifier_passes() -> None:
    assert min(p_value(seed) for seed in (1, 2, 3)) > 0.001


def accept_always(p: Callable[[int], Probabilities], *more: Any) -> Verdict:
    return Verdict(accepted=1, final=more[-1].pick(p(1)))


def draw_again_from_all(
    p: Callable[[int], Probabilities], proposal: Any, q: Any, dice: Dice
) -> Verdict:
    """Right about what to accept, but a correction is drawn from p and not from what is left."""
    verdict = verify_block(p, proposal, q, dice)
    return verdict if verdict.accepted else Verdict(accepted=0, final=dice.pick(p(0)))


@pytest.mark.parametrize("wrong", [accept_always, draw_again_from_all])
def test_a_wrong_verifier_is_caught(wrong: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("homespecd.worker.chi_square.verify_block", wrong)

    assert max(p_value(seed) for seed in (1, 2, 3)) < 0.001
