"""Verification is exact: what is emitted, enumerated, is the target's own distribution.

`Enumerate` answers a verifier's questions to chance in every possible way and weighs each path, so
the distribution over what a round emits comes from the verifier's own code, to rounding, with no
sampling. A round is then continued by the target to full length and compared with the target's
joint distribution over all sequences. The same harness is shown to catch wrong verifiers.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Sequence
from functools import partial

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from homespecd.decoding.params import SamplingParams
from homespecd.decoding.sampling import Sampler
from homespecd.decoding.verify import (
    Chance,
    Dice,
    Probabilities,
    Verdict,
    verify_block,
    verify_rejection,
    verify_replay,
)
from tests.fakes import HistoryLogits

Prefix = tuple[int, ...]
Conditional = Callable[[Prefix], Probabilities]
Verifier = Callable[
    [Callable[[int], Probabilities], Sequence[int], Probabilities | None, Chance], Verdict
]


class _OneWay:
    """Chance that takes a given branch at each question, and notes where others remain."""

    def __init__(self, choices: Sequence[int]) -> None:
        self._choices = choices
        self.branches: list[list[float]] = []
        self.weight = 1.0

    def _take(self, probabilities: list[float]) -> int:
        depth = len(self.branches)
        possible = [i for i, p in enumerate(probabilities) if p > 0]
        choice = self._choices[depth] if depth < len(self._choices) else possible[0]
        self.branches.append(probabilities)
        self.weight *= probabilities[choice]
        return choice

    def happens(self, probability: float) -> bool:
        likely = min(1.0, max(0.0, probability))
        return bool(self._take([1.0 - likely, likely]))

    def pick(self, weights: Probabilities) -> int:
        return self._take((weights / weights.sum()).tolist())


def enumerate_all(run: Callable[[Chance], Verdict]) -> Iterator[tuple[float, Verdict]]:
    """Every verdict that chance can lead to, with its probability."""
    pending: list[tuple[int, ...]] = [()]
    while pending:
        choices = pending.pop()
        chance = _OneWay(choices)
        verdict = run(chance)
        yield chance.weight, verdict
        taken = list(choices)
        for probabilities in chance.branches[len(choices) :]:
            first, *others = [i for i, p in enumerate(probabilities) if p > 0]
            pending.extend((*taken, other) for other in others)
            taken.append(first)


def joint(conditional: Conditional, start: Prefix, length: int) -> npt.NDArray[np.float64]:
    """The distribution of the `length` tokens after `start`: [vocab] * length."""
    if length == 0:
        return np.ones(())
    p = conditional(start)
    return np.stack([p[x] * joint(conditional, (*start, x), length - 1) for x in range(p.size)])


def emitted(
    verifier: Verifier, target: Conditional, draft: Conditional, k: int, *, one_hot: bool = False
) -> tuple[npt.NDArray[np.float64], float]:
    """The joint of k + 1 tokens when a round with the draft comes first; mean tokens accepted."""
    vocab = target(()).size
    rest = {
        prefix: joint(target, prefix, k + 1 - len(prefix))
        for n in range(1, k + 2)
        for prefix in itertools.product(range(vocab), repeat=n)
    }
    total = np.zeros((vocab,) * (k + 1))
    accepted = 0.0

    def run(proposal: Prefix, q: Probabilities | None, chance: Chance) -> Verdict:
        return verifier(lambda i: target(proposal[:i]), proposal, q, chance)

    for proposal in itertools.product(range(vocab), repeat=k):
        q = np.array([draft(proposal[:i]) for i in range(k)])  # [k, vocab]
        chance_of_proposal = float(np.prod([q[i, x] for i, x in enumerate(proposal)]))
        if chance_of_proposal == 0:
            continue
        given_q = None if one_hot else q
        for weight, verdict in enumerate_all(partial(run, proposal, given_q)):
            prefix = (*proposal[: verdict.accepted], verdict.final)
            total[prefix] += chance_of_proposal * weight * rest[prefix]
            accepted += chance_of_proposal * weight * verdict.accepted
    return total, accepted


def conditional(
    logits_of: Callable[[Prefix], npt.NDArray[np.float32]], params: SamplingParams
) -> Conditional:
    """A model under sampling parameters: prompt (0,), then whatever the prefix is."""
    sampler = Sampler(params, vocab_size=len(logits_of((0,))), prompt_length=1)
    known: dict[Prefix, Probabilities] = {}

    def at(prefix: Prefix) -> Probabilities:
        if prefix not in known:
            tokens = (0, *prefix)
            known[prefix] = sampler.probabilities(logits_of(tokens), tokens)
        return known[prefix]

    return at


def random_model(vocab: int, seed: int) -> HistoryLogits:
    return HistoryLogits(vocab, seed=seed, sharpness=1.2)


def near(vocab: int) -> Callable[[Prefix], npt.NDArray[np.float32]]:
    """A draft like a real one: the target's logits (seed 1) and some noise."""
    target, noise = random_model(vocab, 1), random_model(vocab, 2)
    return lambda tokens: target(tokens) + np.float32(0.5) * noise(tokens)


def only(model: Callable[[Prefix], npt.NDArray[np.float32]], ids: range) -> Conditional:
    """The model's distribution with only these ids possible, and those possible everywhere."""
    plain = conditional(model, SamplingParams())

    def at(prefix: Prefix) -> Probabilities:
        kept = np.zeros_like(plain(prefix))
        kept[ids] = plain(prefix)[ids]
        return kept / kept.sum()

    return at


def argmax(model: Callable[[Prefix], npt.NDArray[np.float32]]) -> Conditional:
    return conditional(model, SamplingParams(temperature=0))


SIZES = [(6, 1), (5, 2), (4, 3), (3, 4)]  # (vocab, k)
VERIFIERS = [verify_rejection, verify_block]
MIXES = [
    SamplingParams(temperature=0.6),
    SamplingParams(temperature=1.5, top_k=3),
    SamplingParams(top_p=0.8),
    SamplingParams(min_p=0.2),
    SamplingParams(temperature=0.8, top_k=4, top_p=0.9, min_p=0.1),
    SamplingParams(presence_penalty=0.8, frequency_penalty=0.3, repetition_penalty=1.2),
    SamplingParams(temperature=0),
]


def assert_exact(verifier: Verifier, target: Conditional, draft: Conditional, k: int) -> float:
    total, accepted = emitted(verifier, target, draft, k)
    np.testing.assert_allclose(total, joint(target, (), k + 1), atol=1e-12, rtol=0)
    return accepted


def drafts(vocab: int) -> dict[str, tuple[Conditional, Conditional]]:
    """Pairs (target, draft) by how their distributions lie to each other."""
    target = conditional(random_model(vocab, 1), SamplingParams())
    half = vocab // 2
    return {
        "equal": (target, target),
        "near": (target, conditional(near(vocab), SamplingParams())),
        "random": (target, conditional(random_model(vocab, 3), SamplingParams())),
        "one-hot": (target, argmax(random_model(vocab, 1))),
        "disjoint": (
            only(random_model(vocab, 1), range(half)),
            only(random_model(vocab, 3), range(half, vocab)),
        ),
        "overlapping": (
            only(random_model(vocab, 1), range(half + 1)),
            only(random_model(vocab, 3), range(half, vocab)),
        ),
        "wider target": (target, only(random_model(vocab, 3), range(half))),
    }


@pytest.mark.parametrize("verifier", VERIFIERS)
@pytest.mark.parametrize(("vocab", "k"), SIZES)
@pytest.mark.parametrize("kind", list(drafts(3)))
def test_emits_the_targets_distribution(verifier: Verifier, vocab: int, k: int, kind: str) -> None:
    """Exactly, for drafts of every kind and k = 1 … 4."""
    accepted = assert_exact(verifier, *drafts(vocab)[kind], k)
    if kind == "equal":
        assert accepted == pytest.approx(k, abs=1e-12)
    elif kind == "disjoint":
        assert accepted == 0


@pytest.mark.parametrize("verifier", VERIFIERS)
@pytest.mark.parametrize("params", MIXES)
def test_emits_the_targets_distribution_under_sampling_parameters(
    verifier: Verifier, params: SamplingParams
) -> None:
    """Target and draft both under the request's parameters, as in service; supports differ."""
    for vocab, k in ((5, 2), (4, 3)):
        target = conditional(random_model(vocab, 1), params)
        assert_exact(verifier, target, conditional(near(vocab), params), k)


@pytest.mark.parametrize("verifier", VERIFIERS)
@pytest.mark.parametrize("params", [SamplingParams(), MIXES[4]])
@pytest.mark.parametrize(("vocab", "k"), SIZES)
def test_deterministic_proposals_need_no_q(
    verifier: Verifier, params: SamplingParams, vocab: int, k: int
) -> None:
    """q = None is q = one-hot: exact, and the same acceptance as with the row spelled out."""
    target, draft = conditional(random_model(vocab, 1), params), argmax(random_model(vocab, 3))
    without, accepted = emitted(verifier, target, draft, k, one_hot=True)
    np.testing.assert_allclose(without, joint(target, (), k + 1), atol=1e-12, rtol=0)
    _, spelled_out = emitted(verifier, target, draft, k)
    assert accepted == pytest.approx(spelled_out, abs=1e-12)


@pytest.mark.parametrize("kind", list(drafts(3)))
@pytest.mark.parametrize(("vocab", "k"), SIZES)
def test_block_keeps_at_least_as_much(vocab: int, k: int, kind: str) -> None:
    """Sun et al. 2024, theorem 2."""
    target, draft = drafts(vocab)[kind]
    _, block = emitted(verify_block, target, draft, k)
    _, single = emitted(verify_rejection, target, draft, k)
    assert block >= single - 1e-12
    if kind in ("near", "random") and k > 1:
        assert block > single + 1e-4


def without_subtraction(
    p: Callable[[int], Probabilities],
    proposal: Sequence[int],
    q: Probabilities | None,
    chance: Chance,
) -> Verdict:
    """Wrong: the correction is drawn from p, not from max(p − q, 0)."""
    assert q is not None
    for i, token in enumerate(proposal):
        if not chance.happens(p(i)[token] / q[i, token]):
            return Verdict(i, chance.pick(p(i)))
    return Verdict(len(proposal), chance.pick(p(len(proposal))))


def swapped(
    p: Callable[[int], Probabilities],
    proposal: Sequence[int],
    q: Probabilities | None,
    chance: Chance,
) -> Verdict:
    """Wrong: accepts with q / p."""
    assert q is not None
    for i, token in enumerate(proposal):
        if not chance.happens(q[i, token] / p(i)[token]):
            return Verdict(i, chance.pick(np.maximum(p(i) - q[i], 0)))
    return Verdict(len(proposal), chance.pick(p(len(proposal))))


def block_with_token_residual(
    p: Callable[[int], Probabilities],
    proposal: Sequence[int],
    q: Probabilities | None,
    chance: Chance,
) -> Verdict:
    """Wrong: block acceptance, but the correction forgets the block's weight."""
    assert q is not None
    verdict = verify_block(p, proposal, q, _CorrectionLess(chance))
    if verdict.accepted == len(proposal):
        return Verdict(verdict.accepted, chance.pick(p(len(proposal))))
    i = verdict.accepted
    return Verdict(i, chance.pick(np.maximum(p(i) - q[i], 0)))


class _CorrectionLess:
    """Chance for the acceptance questions only."""

    def __init__(self, chance: Chance) -> None:
        self.happens = chance.happens

    def pick(self, weights: Probabilities) -> int:
        return int(weights.argmax())


@pytest.mark.parametrize("wrong", [without_subtraction, swapped, block_with_token_residual])
def test_the_harness_catches_wrong_verifiers(wrong: Verifier) -> None:
    target, draft = drafts(4)["near"]
    total, _ = emitted(wrong, target, draft, 2)
    assert total.sum() == pytest.approx(1)
    assert np.abs(total - joint(target, (), 3)).max() > 1e-4


def test_the_harness_catches_a_q_that_the_proposal_was_not_drawn_from() -> None:
    """The fault of case B3: a greedy draft, verified as if it had been sampled."""
    target, claimed = drafts(4)["near"]

    def as_if_sampled(
        p: Callable[[int], Probabilities],
        proposal: Sequence[int],
        q: Probabilities | None,
        chance: Chance,
    ) -> Verdict:
        del q
        softmax = np.array([claimed(tuple(proposal[:i])) for i in range(len(proposal))])
        return verify_rejection(p, proposal, softmax, chance)

    total, _ = emitted(as_if_sampled, target, argmax(near(4)), 2)
    assert np.abs(total - joint(target, (), 3)).max() > 1e-2


@given(
    k=st.integers(0, 4),
    seed=st.integers(0, 2**32),
    tokens=st.lists(st.integers(0, 3), min_size=4, max_size=4),
)
def test_replay_is_plain_decoding(k: int, seed: int, tokens: list[int]) -> None:
    """Coupled: rounds with any proposal emit what drawing alone would, token for token."""
    model = random_model(4, 1)
    sampler = Sampler(SamplingParams(seed=seed), vocab_size=4, prompt_length=1)
    alone: list[int] = [0]
    for _ in range(k + 1):
        alone.append(sampler.draw(model(tuple(alone)), alone))
    proposal = tokens[:k]

    def draw(i: int) -> int:
        before = [0, *proposal[:i]]
        return sampler.draw(model(tuple(before)), before)

    verdict = verify_replay(draw, proposal)
    out = [*proposal[: verdict.accepted], verdict.final]
    assert out == alone[1 : 1 + len(out)]
    assert verdict.accepted == k or proposal[verdict.accepted] != verdict.final


@pytest.mark.parametrize("verifier", VERIFIERS)
def test_positions_after_the_first_impossible_token_are_not_asked_for(verifier: Verifier) -> None:
    """They cost time, and their logits follow a token that the target would never say."""
    asked: list[int] = []

    def p(i: int) -> Probabilities:
        asked.append(i)
        return np.array([0.5, 0.5, 0.0]) if i == 1 else np.array([0.2, 0.3, 0.5])

    q = np.full((4, 3), 1 / 3)
    verdict = verifier(p, [2, 2, 0, 0], q, Dice(np.random.default_rng(0).random))
    assert verdict.accepted <= 1
    assert max(asked) == 1


def test_replay_stops_at_the_first_difference() -> None:
    asked: list[int] = []

    def draw(i: int) -> int:
        asked.append(i)
        return i

    assert verify_replay(draw, [0, 1, 9, 3]) == Verdict(accepted=2, final=2)
    assert asked == [0, 1, 2]


@pytest.mark.parametrize("verifier", VERIFIERS)
@pytest.mark.parametrize("q", [None, np.zeros((0, 3))])
def test_an_empty_proposal_is_a_plain_draw(verifier: Verifier, q: Probabilities | None) -> None:
    p = np.array([0.0, 1.0, 0.0])
    assert verifier(lambda _: p, [], q, Dice(lambda: 0.5)) == Verdict(accepted=0, final=1)


@pytest.mark.parametrize("verifier", VERIFIERS)
def test_equal_up_to_rounding_is_no_division_by_zero(verifier: Verifier) -> None:
    """A residual of nothing falls back to p, and never to an id that p makes impossible."""
    p = np.array([0.5, 0.5, 0.0])
    q = np.array([[0.5, np.nextafter(0.5, 1), 0.0]])

    class Unlucky:
        def happens(self, probability: float) -> bool:
            return probability >= 1

        def pick(self, weights: Probabilities) -> int:
            return Dice(lambda: 1 - 2**-53).pick(weights)

    assert verifier(lambda _: p, [1], q, Unlucky()) == Verdict(accepted=0, final=1)


@pytest.mark.parametrize("verifier", VERIFIERS)
def test_a_token_of_vanishing_q_is_no_overflow(verifier: Verifier) -> None:
    p = np.array([1.0, 0.0])
    q = np.array([[5e-324, 1.0], [0.0, 1.0]])
    dice = Dice(np.random.default_rng(0).random)
    assert verifier(lambda _: p, [0, 0], q, dice) == Verdict(accepted=2, final=0)


def test_dice_pick_by_cumulative_weight() -> None:
    """Weights need no normalising; entries of weight 0 are never picked, not even at the ends."""
    weights = np.array([0.0, 1.0, 0.0, 3.0, 0.0])
    picks = {u: Dice(lambda u=u: u).pick(weights) for u in (0.0, 0.2499, 0.25, 0.5, 1 - 2**-53)}
    assert picks == {0.0: 1, 0.2499: 1, 0.25: 3, 0.5: 3, 1 - 2**-53: 3}
    assert Dice(lambda: 1 - 2**-53).pick(np.array([5e-324, 5e-324, 0.0])) == 1


def test_dice_happen_as_often_as_they_should() -> None:
    assert not Dice(lambda: 0.0).happens(0.0)
    assert Dice(lambda: 1 - 2**-53).happens(1.0)
    assert [Dice(lambda u=u: u).happens(0.3) for u in (0.0, 0.29, 0.3, 0.9)] == [
        True,
        True,
        False,
        False,
    ]


@pytest.mark.parametrize("verifier", [*VERIFIERS, without_subtraction])
def test_chi_square_end_to_end(verifier: Verifier) -> None:
    """Whole rounds with real dice; the wrong verifier fails the same test."""
    vocab, k, rounds = 4, 2, 6000
    target, draft = drafts(vocab)["near"]
    rng = np.random.default_rng(11)
    dice = Dice(rng.random)
    seen = np.zeros((vocab,) * (k + 1))
    for _ in range(rounds):
        proposal: Prefix = ()
        for _ in range(k):
            proposal = (*proposal, dice.pick(draft(proposal)))
        q = np.array([draft(proposal[:i]) for i in range(k)])
        verdict = verifier(lambda i, x=proposal: target(x[:i]), proposal, q, dice)
        tokens = (*proposal[: verdict.accepted], verdict.final)
        while len(tokens) < k + 1:
            tokens = (*tokens, dice.pick(target(tokens)))
        seen[tokens] += 1
    expected = rounds * joint(target, (), k + 1)
    few = expected < 5
    pooled = stats.chisquare([*seen[~few], seen[few].sum()], [*expected[~few], expected[few].sum()])
    if verifier is without_subtraction:
        assert pooled.pvalue < 1e-6
    else:
        assert pooled.pvalue > 0.001
