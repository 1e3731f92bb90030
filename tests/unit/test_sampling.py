"""Logits to probabilities and draws, against a slow and literal reference."""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Sequence

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from homespecd.decoding.params import SamplingParams
from homespecd.decoding.sampling import Sampler
from homespecd.errors import ModelError, RequestError

VOCAB = 12

_LOGITS = st.lists(
    # Few distinct values, so that ties are common.
    st.sampled_from([-3.0, -1.0, -0.5, 0.0, 0.25, 1.0, 2.0, 2.5, 4.0]),
    min_size=VOCAB,
    max_size=VOCAB,
).map(lambda row: np.array(row, dtype=np.float32))
_PARAMS = st.builds(
    SamplingParams,
    temperature=st.sampled_from([0.0, 0.3, 1.0, 1.7]),
    top_k=st.sampled_from([0, 1, 3, 7, 12, 40]),
    top_p=st.sampled_from([0.1, 0.5, 0.9, 1.0]),
    min_p=st.sampled_from([0.0, 0.05, 0.4, 1.0]),
    presence_penalty=st.sampled_from([0.0, 0.7]),
    frequency_penalty=st.sampled_from([0.0, -0.4]),
    repetition_penalty=st.sampled_from([1.0, 1.3]),
    logit_bias=st.dictionaries(
        st.integers(0, VOCAB - 1), st.sampled_from([-100.0, 1.5]), max_size=2
    ),
    seed=st.integers(0, 2**63),
)
_SEQUENCE = st.lists(st.integers(0, VOCAB - 1), min_size=2, max_size=12)
_PROMPT = 2


def sampler(params: SamplingParams, *, vocab_size: int = VOCAB, **more: object) -> Sampler:
    return Sampler(params, vocab_size=vocab_size, prompt_length=_PROMPT, **more)  # type: ignore[arg-type]


def reference(
    params: SamplingParams, logits: Sequence[float], tokens: Sequence[int]
) -> list[float]:
    """The module's text, step by step, in plain Python."""
    x = [float(value) for value in logits]
    counts = Counter(tokens[_PROMPT:])
    for i in range(len(x)):
        if i in tokens:
            x[i] = (
                x[i] / params.repetition_penalty if x[i] > 0 else x[i] * params.repetition_penalty
            )
        if counts[i]:
            x[i] -= params.presence_penalty + params.frequency_penalty * counts[i]
        x[i] += params.logit_bias.get(i, 0.0)
    order = sorted(range(len(x)), key=lambda i: (-x[i], i))
    if params.temperature == 0:
        return [1.0 if i == order[0] else 0.0 for i in range(len(x))]
    if params.top_k:
        order = order[: params.top_k]
    weight = {i: float(np.exp((x[i] - x[order[0]]) / params.temperature)) for i in order}
    if params.top_p < 1:
        goal = params.top_p * sum(weight.values())
        held = list(itertools.accumulate(weight[i] for i in order))
        order = order[: 1 + next(n for n, mass in enumerate(held) if mass >= goal - 1e-12)]
    order = [i for i in order if weight[i] >= params.min_p]
    total = sum(weight[i] for i in order)
    return [weight[i] / total if i in order else 0.0 for i in range(len(x))]


@given(params=_PARAMS, logits=_LOGITS, tokens=_SEQUENCE)
def test_probabilities_are_the_reference(
    params: SamplingParams, logits: np.ndarray, tokens: list[int]
) -> None:
    """Every mix of parameters, ties included."""
    got = sampler(params).probabilities(logits, tokens)
    assert got.dtype == np.float64
    np.testing.assert_allclose(got, reference(params, logits, tokens), atol=1e-12)


@given(params=_PARAMS, logits=_LOGITS, tokens=_SEQUENCE)
def test_a_draw_is_possible_and_repeats(
    params: SamplingParams, logits: np.ndarray, tokens: list[int]
) -> None:
    """A draw never leaves the support, and another sampler draws the same."""
    token = sampler(params).draw(logits, tokens)
    assert sampler(params).probabilities(logits, tokens)[token] > 0
    assert sampler(params).draw(logits.copy(), list(tokens)) == token


@given(
    params=_PARAMS,
    logits=_LOGITS,
    sequences=st.lists(_SEQUENCE, min_size=1, max_size=6),
)
def test_counts_follow_any_sequence(
    params: SamplingParams, logits: np.ndarray, sequences: list[list[int]]
) -> None:
    """Cut back, replaced, grown: a used sampler equals a fresh one."""
    used = sampler(params)
    for tokens in sequences:
        np.testing.assert_array_equal(
            used.probabilities(logits, tokens), sampler(params).probabilities(logits, tokens)
        )


@pytest.mark.parametrize(
    "params",
    [
        SamplingParams(seed=0),
        SamplingParams(seed=0, temperature=0.7, top_k=4),
        SamplingParams(seed=0, temperature=1.3, top_p=0.8, min_p=0.05),
    ],
)
def test_draws_over_seeds_follow_the_probabilities(params: SamplingParams) -> None:
    """Gumbel-max over many seeds: chi-square against the exact distribution."""
    logits = np.random.default_rng(3).normal(size=VOCAB).astype(np.float32) * 1.5
    p = sampler(params).probabilities(logits, [1, 2, 3])
    draws = Counter(
        sampler(SamplingParams(**{**vars(params), "seed": seed})).draw(logits, [1, 2, 3])
        for seed in range(4000)
    )
    assert all(p[token] > 0 for token in draws)
    possible = np.flatnonzero(p > 0)
    observed = [draws[int(i)] for i in possible]
    assert stats.chisquare(observed, 4000 * p[possible]).pvalue > 0.001


def test_noise_differs_by_position() -> None:
    """The same logits at another position are another draw."""
    flat = np.zeros(VOCAB, dtype=np.float32)
    one = sampler(SamplingParams(seed=5))
    assert len({one.draw(flat, [0] * n) for n in range(2, 30)}) > 5


@pytest.mark.parametrize("params", [SamplingParams(temperature=0), SamplingParams(seed=1)])
def test_padded_ids_are_never_emitted(params: SamplingParams) -> None:
    """Ids past the tokenizer's vocabulary lose even with the highest logit."""
    logits = np.zeros(VOCAB + 64, dtype=np.float32)
    logits[VOCAB:] = 1e6
    logits[4] = 50.0
    assert sampler(params).draw(logits, [0, 0]) == 4
    assert sampler(params).probabilities(logits, [0, 0]).shape == (VOCAB,)


@pytest.mark.parametrize("params", [SamplingParams(temperature=0), SamplingParams(seed=1)])
def test_missing_ids_are_impossible(params: SamplingParams) -> None:
    """A narrower row: its ids only."""
    logits = np.full(3, -50.0, dtype=np.float32)
    assert sampler(params).draw(logits, [0, 0]) < 3
    np.testing.assert_array_equal(sampler(params).probabilities(logits, [0, 0])[3:], 0.0)


def test_a_narrower_draft_draws_with_the_same_noise() -> None:
    """Coupling holds across widths: the same logits on the shared ids give the same draw."""
    logits = np.random.default_rng(0).normal(size=VOCAB).astype(np.float32)
    logits[8:] = -100
    for seed in range(50):
        one = sampler(SamplingParams(seed=seed))
        assert one.draw(logits, [0, 0, 0]) == one.draw(logits[:8], [0, 0, 0])


def test_greedy_takes_the_lowest_id_among_equals() -> None:
    logits = np.array([0, 3, 1, 3, 3, *[0] * 7], dtype=np.float32)
    assert sampler(SamplingParams(temperature=0)).draw(logits, [0, 0]) == 1


def test_top_k_ties_keep_the_lower_ids() -> None:
    logits = np.array([1, 2, 1, 1, 2, *[0] * 7], dtype=np.float32)
    p = sampler(SamplingParams(top_k=3)).probabilities(logits, [0, 0])
    assert np.flatnonzero(p).tolist() == [0, 1, 4]


def test_top_p_ties_keep_the_lower_ids() -> None:
    """Four equals and 0.7: three are needed, the first three."""
    logits = np.array([-99, 5, 5, 5, 5, *[-99] * 7], dtype=np.float32)
    p = sampler(SamplingParams(top_p=0.7)).probabilities(logits, [0, 0])
    assert np.flatnonzero(p).tolist() == [1, 2, 3]


def test_top_p_of_a_wide_flat_row_is_exact() -> None:
    """More ids than are sorted at first: the same as sorting all of them."""
    rng = np.random.default_rng(1)
    logits = np.round(rng.normal(size=20_000), 2).astype(np.float32)
    p = sampler(SamplingParams(top_p=0.9), vocab_size=20_000).probabilities(logits, [0, 0])
    order = np.argsort(-logits, kind="stable")
    weights = np.exp(logits.astype(np.float64) - logits.max())
    count = int(np.searchsorted(np.cumsum(weights[order]), 0.9 * weights.sum())) + 1
    assert count > 2048
    assert np.flatnonzero(p).tolist() == sorted(order[:count].tolist())


def test_min_tokens_and_bans() -> None:
    """End ids may not come before min_tokens of output; banned ids never."""
    logits = np.array([9, 8, 7, *[0] * 9], dtype=np.float32)
    one = sampler(SamplingParams(temperature=0), end_ids={0}, min_tokens=2, banned=[1, 999])
    assert one.draw(logits, [5, 5]) == 2
    assert one.draw(logits, [5, 5, 5]) == 2
    assert one.draw(logits, [5, 5, 5, 5]) == 0
    assert one.draw(logits, [5, 5, 5]) == 2
    assert logits[0] == 9, "the model's logits are left alone"


def test_ids_outside_the_vocabulary_have_no_penalty_to_pay() -> None:
    params = SamplingParams(temperature=0, presence_penalty=1, repetition_penalty=1.1)
    logits = np.arange(VOCAB, dtype=np.float32)
    assert sampler(params).draw(logits, [VOCAB + 5] * 4) == VOCAB - 1


def test_nothing_is_copied_without_need() -> None:
    """Greedy decoding must not pay for a copy of the row."""
    logits = np.zeros(VOCAB + 4, dtype=np.float32)
    assert np.shares_memory(sampler(SamplingParams()).adjusted(logits, [0, 0]), logits)


@pytest.mark.parametrize("temperature", [0.0, 1.0])
@pytest.mark.parametrize(
    ("row", "says"),
    [
        ([1.0, np.nan, 2.0], "NaN"),
        ([1.0, np.inf, 2.0], "inf"),
        ([-np.inf] * 3, "every logit is -inf"),
    ],
)
def test_broken_logits_are_a_model_error(temperature: float, row: list[float], says: str) -> None:
    one = sampler(SamplingParams(temperature=temperature, seed=1, top_k=2, top_p=0.5))
    with pytest.raises(ModelError, match=says):
        one.draw(np.array(row, dtype=np.float32), [0, 0])
    with pytest.raises(ModelError, match=says):
        one.probabilities(np.array(row, dtype=np.float32), [0, 0])


def test_extreme_temperatures() -> None:
    """Overflow on the way is not an error, and the limit is right."""
    logits = np.array([3e38, -3e38, 0, *[0] * 9], dtype=np.float32)
    p = sampler(SamplingParams(temperature=1e-300)).probabilities(logits, [0, 0])
    assert p.tolist() == [1.0] + [0.0] * 11


def test_impossible_ids_inside_top_k_stay_impossible() -> None:
    logits = np.array([1, 2, *[-np.inf] * 10], dtype=np.float32)
    p = sampler(SamplingParams(top_k=5, top_p=0.999999)).probabilities(logits, [0, 0])
    assert np.flatnonzero(p).tolist() == [0, 1]


def test_a_bias_for_an_unknown_id_is_refused_by_name() -> None:
    with pytest.raises(RequestError, match="token 12") as caught:
        sampler(SamplingParams(logit_bias={12: 1.0}))
    assert caught.value.param == "logit_bias"


def test_no_seed_no_replay() -> None:
    with pytest.raises(ValueError, match="seed"):
        sampler(SamplingParams()).draw(np.zeros(VOCAB, dtype=np.float32), [0, 0])
