"""Weights as blocks of small codes, and their packing for MatMulNBits.

`BlockCodes` is the one form in between: w = scale · code + offset, one scale and one offset per
block of 32 inputs. Q4_0, Q4_1, Q4_K and Q8_0 tensors turn into it without a value being rounded;
floats are rounded into it. `pack` lays it out for onnxruntime's MatMulNBits, whose offset is an
integer zero point times the scale. What an integer zero point leaves over is kept as well: it is
one number per block, and its part of the product is that number times the mean of the block's
inputs, so it becomes extra 4-bit columns of the same matrix ("mean columns") and the graph appends
the block means to the inputs.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from homespecd.bundle.gguf_blocks import KEPT_BITS, SOURCE_BLOCK, read_blocks
from homespecd.bundle.gguf_file import GgufTensor

# An offset this close to a whole number of scales (relative to the scale) is one: float32 dust.
_DUST = 1e-5

Codes = npt.NDArray[np.uint8]
Floats = npt.NDArray[np.float32]


@dataclass(frozen=True)
class BlockCodes:
    """w[n, i] = scales[n, b] · codes[n, i] + offsets[n, b], b = i // 32.

    codes: uint8 [out, in], below 2**bits. scales, offsets: float32 [out, in / 32].
    """

    bits: int
    codes: Codes
    scales: Floats
    offsets: Floats

    def rows(self, order: npt.NDArray[np.intp]) -> BlockCodes:
        """The same with its outputs in another order."""
        return BlockCodes(self.bits, self.codes[order], self.scales[order], self.offsets[order])

    def float32(self) -> Floats:
        """The weights, float32 [out, in]."""
        out, width = self.codes.shape
        blocks = self.codes.reshape(out, -1, SOURCE_BLOCK).astype(np.float32)
        return (blocks * self.scales[..., None] + self.offsets[..., None]).reshape(out, width)


@dataclass(frozen=True)
class PackedWeights:
    """Operands of one MatMulNBits.

    codes: uint8 [out, blocks, block_size · bits / 8], low bits first.
    scales: float32 [out, blocks].
    zero_points: uint8 [out, ceil(blocks · bits / 8)], None = 2**(bits - 1) everywhere.
    in_features: inputs without the mean columns.
    mean_columns: block means that follow the inputs; zeros fill up to a whole block after them.
    """

    bits: int
    block_size: int
    in_features: int
    mean_columns: int
    codes: Codes
    scales: Floats
    zero_points: Codes | None

    @property
    def out_features(self) -> int:
        return int(self.codes.shape[0])

    @property
    def width(self) -> int:
        """Inputs of the operator: features, mean columns and the fill."""
        return int(self.codes.shape[1]) * self.block_size


def kept_codes(tensor: GgufTensor, bits: int) -> BlockCodes:
    """The blocks of a Q4_0, Q4_1, Q4_K or Q8_0 tensor, taken over exactly.

    Four-bit codes are eight-bit codes too, for a matrix whose other parts need eight.
    """
    assert bits >= KEPT_BITS[tensor.type_name]
    out, width = tensor.shape
    raw = np.ascontiguousarray(tensor.data).view(np.uint8).reshape(out, -1)
    codes, scales, offsets = read_blocks(tensor.type_name, raw)
    return BlockCodes(
        bits,
        codes.reshape(out, width),
        scales.reshape(out, width // SOURCE_BLOCK),
        offsets.reshape(out, width // SOURCE_BLOCK),
    )


def rounded_codes(weights: Floats, bits: int) -> BlockCodes:
    """Round float32 [out, in] to codes, by block whichever is closer: around zero or min to max.

    At 8 bits the offset is a whole number of scales (no mean columns); at 4 bits it is free.
    """
    out, width = weights.shape
    blocks = weights.reshape(out, -1, SOURCE_BLOCK)
    around_zero = _around_zero(blocks, bits)
    between = _between(blocks, bits)
    errors = [
        np.square(codes * scales[..., None] + offsets[..., None] - blocks).sum(axis=-1)
        for codes, scales, offsets in (around_zero, between)
    ]
    closer = errors[1] < errors[0]  # [out, blocks]
    return BlockCodes(
        bits,
        np.where(closer[..., None], between[0], around_zero[0])
        .astype(np.uint8)
        .reshape(out, width),
        np.where(closer, between[1], around_zero[1]),
        np.where(closer, between[2], around_zero[2]),
    )


def joined(parts: Sequence[BlockCodes]) -> BlockCodes:
    """Several matrices over the same inputs as one (fused projections). All of the same bits."""
    assert len({part.bits for part in parts}) == 1
    return BlockCodes(
        parts[0].bits,
        np.concatenate([part.codes for part in parts]),
        np.concatenate([part.scales for part in parts]),
        np.concatenate([part.offsets for part in parts]),
    )


def pack(codes: BlockCodes, block_size: int) -> PackedWeights:
    """Lay codes out for MatMulNBits.

    Args:
        block_size: inputs per scale in the result. 16 holds blocks of 32 exactly, by saying every
            scale twice.
    """
    assert SOURCE_BLOCK % block_size == 0
    out, width = codes.codes.shape
    steps = np.rint(_ratio(-codes.offsets, codes.scales))
    zero_points: Floats = np.clip(steps, 0, 2**codes.bits - 1).astype(np.float32)
    leftover: Floats = codes.offsets + zero_points * codes.scales
    leftover[np.abs(leftover) <= _DUST * np.abs(codes.scales)] = 0
    repeat = SOURCE_BLOCK // block_size
    matrix, scales = codes.codes, np.repeat(codes.scales, repeat, axis=1)
    points = np.repeat(zero_points.astype(np.uint8), repeat, axis=1)
    mean_columns = 0
    if leftover.any():
        mean_columns = leftover.shape[1]
        # The graph appends means, not sums: one pooling operator makes them.
        extra, extra_scales, extra_points = _columns(
            leftover * SOURCE_BLOCK, bits=codes.bits, block_size=block_size
        )
        matrix = np.concatenate([matrix, extra], axis=1)
        scales = np.concatenate([scales, extra_scales], axis=1)
        points = np.concatenate([points, extra_points], axis=1)
    plain = bool((points == 2 ** (codes.bits - 1)).all())
    return PackedWeights(
        bits=codes.bits,
        block_size=block_size,
        in_features=width,
        mean_columns=mean_columns,
        codes=_dense(matrix, codes.bits).reshape(out, -1, block_size * codes.bits // 8),
        scales=np.ascontiguousarray(scales, dtype=np.float32),
        zero_points=None if plain else _dense(points, codes.bits),
    )


def unpack(packed: PackedWeights) -> Floats:
    """What the operator multiplies with, mean columns folded back: float32 [out, in_features]."""
    out, width = packed.out_features, packed.width
    codes = _sparse(packed.codes.reshape(out, -1), packed.bits)[:, :width]
    blocks = width // packed.block_size
    if packed.zero_points is None:
        points = np.full((out, blocks), 2 ** (packed.bits - 1), dtype=np.uint8)
    else:
        points = _sparse(packed.zero_points, packed.bits)[:, :blocks]
    values = codes.reshape(out, blocks, packed.block_size).astype(np.float32)
    matrix = ((values - points[..., None]) * packed.scales[..., None]).reshape(out, width)
    weights = matrix[:, : packed.in_features]
    if packed.mean_columns:
        end = packed.in_features + packed.mean_columns
        means = matrix[:, packed.in_features : end] / SOURCE_BLOCK
        weights = weights + np.repeat(means, SOURCE_BLOCK, axis=1)
    return np.ascontiguousarray(weights, dtype=np.float32)


def _columns(weights: Floats, *, bits: int, block_size: int) -> tuple[Codes, Floats, Codes]:
    """Round [out, n] to codes with whole zero points, filled up with zeros to whole blocks."""
    out, count = weights.shape
    filled = np.zeros((out, -(-count // block_size) * block_size), dtype=np.float32)
    filled[:, :count] = weights
    blocks = filled.reshape(out, -1, block_size)
    top = 2**bits - 1
    low = np.minimum(blocks.min(axis=-1), 0)
    scales = (np.maximum(blocks.max(axis=-1), 0) - low) / top
    points = np.clip(np.rint(_ratio(-low, scales)), 0, top)
    codes = np.clip(np.rint(_ratio(blocks, scales[..., None])) + points[..., None], 0, top)
    return codes.astype(np.uint8).reshape(out, -1), scales, points.astype(np.uint8)


def _around_zero(blocks: Floats, bits: int) -> tuple[Codes, Floats, Floats]:
    """Codes with the zero point in the middle. blocks: [..., 32]."""
    middle = 2 ** (bits - 1)
    # The extreme value takes the code 0, the only one without a counterpart (as Q4_0 does).
    position = np.abs(blocks).argmax(axis=-1, keepdims=True)
    scales = np.take_along_axis(blocks, position, axis=-1)[..., 0] / np.float32(-middle)
    codes = np.clip(np.rint(_ratio(blocks, scales[..., None])) + middle, 0, 2**bits - 1)
    return codes.astype(np.uint8), scales, scales * np.float32(-middle)


def _between(blocks: Floats, bits: int) -> tuple[Codes, Floats, Floats]:
    """Codes from the block's least value to its greatest. blocks: [..., 32]."""
    top = 2**bits - 1
    low, high = blocks.min(axis=-1), blocks.max(axis=-1)
    if bits == 8:  # whole zero points: zero is one of the values
        low, high = np.minimum(low, 0), np.maximum(high, 0)
    scales = (high - low) / np.float32(top)
    offsets = low
    if bits == 8:
        offsets = -np.clip(np.rint(_ratio(-low, scales)), 0, top) * scales
    codes = np.clip(np.rint(_ratio(blocks - offsets[..., None], scales[..., None])), 0, top)
    return codes.astype(np.uint8), scales, offsets.astype(np.float32)


def _ratio(above: Floats, below: Floats) -> Floats:
    """above / below, 0 where below is 0."""
    shape = np.broadcast_shapes(above.shape, below.shape)
    return np.divide(above, below, out=np.zeros(shape, np.float32), where=below != 0)


def _dense(codes: Codes, bits: int) -> Codes:
    """[out, n] codes to bytes [out, ceil(n · bits / 8)], low bits first."""
    if bits == 8:
        return np.ascontiguousarray(codes)
    if codes.shape[1] % 2:
        codes = np.pad(codes, ((0, 0), (0, 1)))
    return np.ascontiguousarray(codes[:, 0::2] | (codes[:, 1::2] << 4))


def _sparse(packed: Codes, bits: int) -> Codes:
    """The reverse of `_dense`, with the fill still on."""
    if bits == 8:
        return packed
    return np.stack([packed & 15, packed >> 4], axis=-1).reshape(packed.shape[0], -1)
