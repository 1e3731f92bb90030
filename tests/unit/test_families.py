"""What changes the computation is read or refused, never ignored."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from homespecd.bundle.families import Dimensions, dimensions_of, halves_order, rope_tables
from homespecd.bundle.gguf_file import GgufFile
from homespecd.errors import BundleError
from tests.tiny_gguf import TinyLlama


def tiny(folder: Path, **metadata: object) -> GgufFile:
    file = GgufFile(TinyLlama().write(folder / "tiny.gguf"))
    stated = {f"llama.{key.replace('__', '.')}": value for key, value in metadata.items()}
    file.metadata = {**file.metadata, **stated}
    return file


@pytest.mark.parametrize(
    ("metadata", "message"),
    [
        ({"expert_count": 8}, "llama.expert_count"),
        ({"attention__sliding_window": 512}, "llama.attention.sliding_window"),
        ({"rope__dimension_count": 8}, "llama.rope.dimension_count"),
        ({"attention__head_count_kv": 3}, "4 heads cannot share 3"),
        ({"attention__head_count": 0}, "without heads"),
        ({"rope__scaling__type": "yarn"}, "rope scaling 'yarn'"),
        ({"block_count": "two"}, "llama.block_count is not a number: 'two'"),
        ({"context_length": None}, "llama.context_length is missing"),
    ],
)
def test_what_is_not_built_is_refused(
    tmp_path: Path, metadata: dict[str, object], message: str
) -> None:
    with pytest.raises(BundleError, match=r"tiny\.gguf") as caught:
        dimensions_of(tiny(tmp_path, **metadata))
    assert message in str(caught.value)


def test_linear_rope_scaling_stretches_positions(tmp_path: Path) -> None:
    plain = dimensions_of(tiny(tmp_path))
    scaled = dimensions_of(tiny(tmp_path, rope__scaling__type="linear", rope__scaling__factor=4.0))
    for one, four in zip(rope_tables(plain, None), rope_tables(scaled, None), strict=True):
        assert np.array_equal(one[:64], four[: 4 * 64 : 4])


def test_rope_factors_divide_frequencies() -> None:
    """Llama 3 stores them as a tensor."""
    sizes = Dimensions(1, 1, 1, 8, 8, 8, 8, 30, 1e-5, 10000.0)
    factors = np.array([1, 1, 8, 8], dtype=np.float32)
    plain, divided = rope_tables(sizes, None)[1], rope_tables(sizes, factors)[1]
    assert plain.shape == (31, 4)
    assert np.array_equal(divided[:, :2], plain[:, :2])
    np.testing.assert_allclose(divided[8, 2:], plain[1, 2:], rtol=1e-6)


def test_neighbours_become_halves() -> None:
    """Rows (0, 1), (2, 3) of each head are the pairs; afterwards (0, 2), (1, 3) are."""
    assert halves_order(2, 4).tolist() == [0, 2, 1, 3, 4, 6, 5, 7]
