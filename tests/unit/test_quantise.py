"""Blocks of codes: what a file holds is kept exactly, and packing loses only what it says."""

from __future__ import annotations

import gguf
import numpy as np
import numpy.typing as npt
import pytest

from homespecd.bundle.gguf_blocks import KEPT_BITS, SOURCE_BLOCK
from homespecd.bundle.gguf_file import GgufTensor
from homespecd.bundle.quantise import (
    BlockCodes,
    joined,
    kept_codes,
    pack,
    rounded_codes,
    unpack,
)

Floats = npt.NDArray[np.float32]
OUT, WIDTH = 24, 512


def normal(seed: int = 0, *, shift: float = 0.0) -> Floats:
    random = np.random.default_rng(seed)
    return (random.normal(shift, 0.05, (OUT, WIDTH))).astype(np.float32)


def tensor(kind: str) -> GgufTensor:
    """A tensor of that type: rounded normal values, or random bits where gguf cannot round."""
    number = gguf.GGMLQuantizationType[kind]
    if kind == "Q4_K":
        data = np.random.default_rng(1).integers(0, 256, (OUT, WIDTH // 256, 144), dtype=np.uint8)
        # The two float16 at the head of a block, kept small and finite.
        data[..., [1, 3]] = 0x20
        data[..., 4:16] |= 0x11  # no scale of zero, which has no zero point
        data = data.reshape(OUT, -1)
    else:
        data = gguf.quants.quantize(normal(), number)
    return GgufTensor("t", kind, (OUT, WIDTH), data)


@pytest.mark.parametrize("kind", sorted(KEPT_BITS))
def test_a_kept_tensor_is_what_the_file_says(kind: str) -> None:
    one = tensor(kind)
    codes = kept_codes(one, KEPT_BITS[kind])
    assert codes.codes.max() < 2**codes.bits
    np.testing.assert_allclose(codes.float32(), one.float32(), rtol=1e-6, atol=1e-7)


@pytest.mark.parametrize("block_size", [16, 32])
@pytest.mark.parametrize(("kind", "bits"), [("Q4_0", 4), ("Q4_0", 8), ("Q8_0", 8)])
def test_tensors_around_zero_pack_without_rounding(kind: str, bits: int, block_size: int) -> None:
    """Negative scales, which Q4_0 has, included; nothing is left over for mean columns."""
    one = tensor(kind)
    packed = pack(kept_codes(one, bits), block_size)
    assert packed.mean_columns == 0
    assert packed.width == WIDTH
    assert np.array_equal(unpack(packed), one.float32())
    assert (packed.zero_points is None) == (KEPT_BITS[kind] == bits)


@pytest.mark.parametrize("block_size", [16, 32])
@pytest.mark.parametrize("kind", ["Q4_1", "Q4_K"])
def test_what_an_offset_leaves_over_goes_into_mean_columns(kind: str, block_size: int) -> None:
    """Only the left-over is rounded, to a fifteenth of the span it has: far below the step."""
    one = tensor(kind)
    codes = kept_codes(one, 4)
    packed = pack(codes, block_size)
    assert packed.mean_columns == WIDTH // SOURCE_BLOCK
    assert packed.width % block_size == 0
    error = np.abs(unpack(packed) - one.float32())
    with_zero_points = np.clip(np.rint(-codes.offsets / codes.scales), 0, 15)
    leftover = codes.offsets + with_zero_points * codes.scales
    span = np.maximum(leftover.max(axis=1), 0) - np.minimum(leftover.min(axis=1), 0)
    # Half a step, and as much again for the step that holds zero exactly.
    assert (error <= span[:, None] / 15 + 1e-6).all()
    assert error.mean() < np.abs(leftover).mean() / 4


def test_block_sizes_hold_the_same_weights() -> None:
    """Blocks of 16 say every scale twice."""
    codes = kept_codes(tensor("Q4_0"), 4)
    assert np.array_equal(unpack(pack(codes, 16)), unpack(pack(codes, 32)))


@pytest.mark.parametrize("shift", [0.0, 0.2])
@pytest.mark.parametrize(("bits", "steps"), [(4, 15), (8, 255)])
def test_rounding_is_within_half_a_step(bits: int, steps: int, shift: float) -> None:
    weights = normal(2, shift=shift)
    blocks = weights.reshape(OUT, -1, SOURCE_BLOCK)
    # At 8 bits the offset is rounded too, and a block may lie all on one side of zero.
    span = np.maximum(blocks.max(-1), 0) - np.minimum(blocks.min(-1), 0)
    error = np.abs(rounded_codes(weights, bits).float32() - weights)
    assert (error.reshape(blocks.shape) <= 1.05 * span[..., None] / steps).all()


def test_zero_points_are_used_where_they_lower_the_error() -> None:
    """Weights on one side of zero: rounding around zero would waste half of the codes."""
    lopsided = np.abs(normal(3))
    packed = pack(rounded_codes(lopsided, 8), 32)
    assert packed.zero_points is not None
    assert packed.zero_points.dtype == np.uint8
    around_zero = np.abs(lopsided).reshape(OUT, -1, SOURCE_BLOCK).max(-1) / 128
    error = np.abs(unpack(packed) - lopsided).reshape(OUT, -1, SOURCE_BLOCK).max(-1)
    assert (error < 0.51 * around_zero).all()


def test_eight_bits_need_no_mean_columns() -> None:
    assert pack(rounded_codes(normal(4, shift=0.03), 8), 32).mean_columns == 0


@pytest.mark.parametrize("bits", [4, 8])
def test_blocks_of_zeros_stay_zero(bits: int) -> None:
    weights = normal(5)
    weights[:, :SOURCE_BLOCK] = 0
    weights[3] = 0
    result = unpack(pack(rounded_codes(weights, bits), 32))
    assert not result[3].any()
    assert np.isfinite(result).all()
    # With mean columns in the matrix a block's offset may carry their rounding.
    assert np.abs(result[:, :SOURCE_BLOCK]).max() < 1e-3


def test_joined_parts_lie_below_each_other() -> None:
    parts = [kept_codes(tensor("Q4_1"), 4), kept_codes(tensor("Q4_0"), 4)]
    both = joined(parts)
    assert np.array_equal(both.float32(), np.concatenate([part.float32() for part in parts]))


def test_reordered_rows_take_their_scales_along() -> None:
    codes = kept_codes(tensor("Q4_1"), 4)
    order = np.random.default_rng(0).permutation(OUT)
    assert np.array_equal(codes.rows(order).float32(), codes.float32()[order])


def test_an_odd_number_of_blocks_packs() -> None:
    """Two 4-bit zero points share a byte; the last one has its own."""
    codes = BlockCodes(
        4,
        np.full((2, 96), 3, dtype=np.uint8),
        np.ones((2, 3), dtype=np.float32),
        np.full((2, 3), -5, dtype=np.float32),
    )
    packed = pack(codes, 32)
    assert packed.zero_points is not None
    assert packed.zero_points.shape == (2, 2)
    assert (unpack(packed) == -2).all()
