"""Log-probabilities against a softmax written out, with ties, padding and impossible ids."""

from __future__ import annotations

import math

import numpy as np
import pytest

from homespecd.decoding.logprobs import token_logprobs


def softmax_log(values: list[float]) -> list[float]:
    total = math.fsum(math.exp(value) for value in values)
    return [value - math.log(total) for value in values]


def test_they_are_the_softmax_over_the_vocabulary_alone() -> None:
    row = [0.5, -1.0, 2.0, 1.25]
    logits = np.array([[*row, 50.0, 60.0]], dtype=np.float32)  # padded ids, higher than all
    [found] = token_logprobs(logits, [1], vocab_size=4, top=2)
    expected = softmax_log(row)
    assert found.token == 1
    assert found.logprob == pytest.approx(expected[1], abs=1e-12)
    assert [token for token, _ in found.top] == [2, 3]
    assert [value for _, value in found.top] == pytest.approx([expected[2], expected[3]])


def test_only_rows_of_committed_tokens_are_looked_at() -> None:
    logits = np.array([[0.0, 1.0], [math.nan, math.nan]])
    assert len(token_logprobs(logits, [0], vocab_size=2, top=1)) == 1


def test_among_equals_the_lower_id_comes_first() -> None:
    logits = np.array([[1.0, 3.0, 3.0, 3.0, 0.0]])
    [found] = token_logprobs(logits, [3], vocab_size=5, top=2)
    assert [token for token, _ in found.top] == [1, 2]
    [everything] = token_logprobs(logits, [3], vocab_size=5, top=20)
    assert [token for token, _ in everything.top] == [1, 2, 3, 0, 4]


def test_an_impossible_token_and_huge_logits_stay_numbers_or_minus_infinity() -> None:
    logits = np.array([[3e4, -np.inf, 2.9e4]], dtype=np.float32)
    [found] = token_logprobs(logits, [1], vocab_size=3, top=3)
    assert found.logprob == -math.inf
    assert [token for token, _ in found.top] == [0, 2, 1]
    assert found.top[0][1] == 0.0


def test_no_alternatives_are_an_empty_list() -> None:
    [found] = token_logprobs(np.zeros((1, 4)), [2], vocab_size=4, top=0)
    assert found.top == ()
    assert found.logprob == pytest.approx(-math.log(4))
