"""What a target is measured to be before its blocks are trusted."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest

from homespecd.runtime.step import Logits, Rows
from homespecd.worker.checks import CAUSAL_TOLERANCE, compare, is_block_causal, logits_in_blocks
from tests.fakes import FakeModel, HistoryLogits

VOCAB = 16
TOKENS = [(5 * i + i // 7) % VOCAB for i in range(24)]


class Wobbly(FakeModel):
    """Off by `error` in blocks: always alike (`leak` False), or as the last row says."""

    def __init__(self, error: float, *, leak: bool) -> None:
        super().__init__(HistoryLogits(VOCAB, seed=1))
        self._error = error
        self._leak = leak

    def step(self, rows: Sequence[Rows]) -> list[Logits]:
        results = super().step(rows)
        for entry, logits in zip(rows, results, strict=True):
            if len(entry.tokens) > 1 and len(logits):
                shift = self._error * (1 + entry.tokens[-1] if self._leak else 1)
                logits[:, :2] += np.float32(shift)
        return results


def test_blocks_of_any_widths_give_every_position_once() -> None:
    model = FakeModel(HistoryLogits(VOCAB, seed=1))
    single = logits_in_blocks(model, TOKENS, [1])

    assert single.shape == (len(TOKENS), VOCAB)
    for widths in ([2], [5], [3, 1, 4], [100]):
        assert np.array_equal(logits_in_blocks(model, TOKENS, widths), single)
    assert [step[0][1] for step in model.steps[-1:]] == [24]


def test_an_invariant_target_is_exact() -> None:
    found = compare(FakeModel(HistoryLogits(VOCAB, seed=1)), TOKENS, width=8)

    assert found.block_causal
    assert found.bit_identical
    assert (found.max_logit_diff, found.near_tie_flips, found.rows) == (0.0, 0, 24)


def test_a_target_whose_blocks_are_merely_inexact_is_causal_and_measured() -> None:
    found = compare(Wobbly(0.5, leak=False), TOKENS, width=8)

    assert found.block_causal
    assert not found.bit_identical
    assert found.max_logit_diff == pytest.approx(0.5, rel=1e-5)
    assert found.near_tie_flips > 0


def test_a_target_whose_rows_see_later_ones_is_not_causal() -> None:
    assert not compare(Wobbly(0.5, leak=True), TOKENS, width=8).block_causal
    assert not is_block_causal(Wobbly(0.5, leak=True), TOKENS[:2])


def test_the_tolerance_is_a_share_of_the_spread() -> None:
    """A leak of a tenth of it passes, one of ten times does not."""
    spread = float(np.ptp(logits_in_blocks(FakeModel(HistoryLogits(VOCAB, seed=1)), TOKENS, [1])))
    first, last = TOKENS[0], TOKENS[-1]
    step = CAUSAL_TOLERANCE * spread / abs(last - first)

    assert is_block_causal(Wobbly(0.1 * step, leak=True), TOKENS)
    assert not is_block_causal(Wobbly(10 * step, leak=True), TOKENS)
