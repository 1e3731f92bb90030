"""Counter-based Gumbel noise."""

from __future__ import annotations

import numpy as np
import pytest
from scipy import stats

from homespecd.decoding.noise import gumbel


def test_is_a_function_of_seed_position_and_id() -> None:
    """The same call gives the same noise; another seed or position gives other noise."""
    base = gumbel(7, 3, 100)
    np.testing.assert_array_equal(gumbel(7, 3, 100), base)
    for other in (
        gumbel(8, 3, 100),
        gumbel(7, 4, 100),
        gumbel(-7, 3, 100),
        gumbel(7 + 2**64, 3, 100),
    ):
        assert not np.any(other == base)


def test_an_ids_noise_does_not_depend_on_the_vocabulary() -> None:
    """A draft with a narrower vocabulary shares the target's noise."""
    wide = gumbel(1, 2, 1001)
    for vocab in (1, 2, 3, 4, 5, 1000):
        np.testing.assert_array_equal(gumbel(1, 2, vocab), wide[:vocab])


def test_can_be_had_for_some_ids() -> None:
    ids = np.array([3, 17, 99])
    np.testing.assert_array_equal(gumbel(1, 2, 100, ids=ids), gumbel(1, 2, 100)[ids])


def test_is_pinned_to_the_algorithm() -> None:
    """Seeds keep their meaning from release to release (Philox 4x64, 52 bits, −ln(−ln u))."""
    raw = np.random.Philox(key=[5, 0], counter=[0, 9, 0, 0]).random_raw(4)
    expected = [-np.log(-np.log((int(r) // 4096 + 0.5) / 2**52)) for r in raw]
    np.testing.assert_allclose(gumbel(5, 9, 4), expected, rtol=1e-14)
    assert [int(r) for r in raw] == PINNED_WORDS


# Philox 4x64-10, key (5, 0), counter (1, 9, 0, 0): numpy counts up before the first block.
PINNED_WORDS = [18267234882360752271, 602385674820760337, 16819738620196279565, 1899387716288107809]


def test_neighbouring_positions_do_not_overlap() -> None:
    """However large the vocabulary, no position reuses another's bits."""
    assert np.intersect1d(gumbel(0, 0, 50_000), gumbel(0, 1, 50_000)).size == 0


def test_is_finite_at_the_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    """All-zero and all-one bits map inside (0, 1)."""

    class Extremes:
        def __init__(self, **_: object) -> None: ...

        def random_raw(self, size: int) -> np.ndarray:
            assert size == 2
            return np.array([0, 2**64 - 1], dtype=np.uint64)

    monkeypatch.setattr(np.random, "Philox", Extremes)
    low, high = gumbel(0, 0, 2)
    assert -3.7 < low < -3.5
    assert 36.7 < high < 36.8


def test_is_standard_gumbel() -> None:
    """Along ids, and along positions for one id."""
    assert stats.kstest(gumbel(42, 0, 20_000), "gumbel_r").pvalue > 0.001
    along = [gumbel(42, position, 3)[2] for position in range(3_000)]
    assert stats.kstest(along, "gumbel_r").pvalue > 0.001
