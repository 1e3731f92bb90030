"""Matrices of a bundle: how each is held, and its arrays in the weights file."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from homespecd.bundle.quantise import PackedWeights
from homespecd.bundle.weights import WeightsWriter

FLOAT_BITS = 32


@dataclass(frozen=True)
class Linear:
    """What a graph has to know of one matrix to multiply by it.

    bits: 4 or 8 (MatMulNBits) or 32 (floats).
    width: inputs of the operator: features, mean columns, fill (`PackedWeights`).
    rows_first: a float matrix held [out, in], shared with the embedding, instead of [in, out].
    """

    name: str
    bits: int
    block_size: int
    in_features: int
    out_features: int
    mean_columns: int = 0
    width: int = 0
    has_zero_points: bool = False
    rows_first: bool = False


def write_packed(weights: WeightsWriter, name: str, packed: PackedWeights) -> Linear:
    """Add `name.codes`, `name.scales` and, where they are not the default, `name.zero_points`."""
    weights.add(f"{name}.codes", packed.codes)
    weights.add(f"{name}.scales", packed.scales)
    if packed.zero_points is not None:
        weights.add(f"{name}.zero_points", packed.zero_points)
    return Linear(
        name=name,
        bits=packed.bits,
        block_size=packed.block_size,
        in_features=packed.in_features,
        out_features=packed.out_features,
        mean_columns=packed.mean_columns,
        width=packed.width,
        has_zero_points=packed.zero_points is not None,
    )


def write_floats(weights: WeightsWriter, name: str, matrix: npt.NDArray[np.float32]) -> Linear:
    """Add float32 [out, in] as `name`, turned to [in, out] as MatMul wants it."""
    out_features, in_features = matrix.shape
    weights.add(name, matrix.T)
    return Linear(
        name=name,
        bits=FLOAT_BITS,
        block_size=0,
        in_features=in_features,
        out_features=out_features,
        width=in_features,
    )


def write_table(weights: WeightsWriter, name: str, packed: PackedWeights) -> Linear:
    """Add an 8-bit matrix that is looked up by row as well: the tied embedding, held once.

    The lookup wants one more axis on the scales than the product does: the same bytes again.
    """
    table = write_packed(weights, name, packed)
    blocks = packed.scales.shape[1]
    weights.alias(f"{name}.row_scales", f"{name}.scales", (packed.out_features, blocks, 1))
    if packed.zero_points is not None:
        shape = (packed.out_features, blocks, 1)
        weights.alias(f"{name}.row_zero_points", f"{name}.zero_points", shape)
    return table


def write_float_table(weights: WeightsWriter, name: str, matrix: npt.NDArray[np.float32]) -> Linear:
    """Add float32 [out, in] as it is: looked up by row, and multiplied by transposed."""
    out_features, in_features = matrix.shape
    weights.add(name, matrix)
    return Linear(
        name=name,
        bits=FLOAT_BITS,
        block_size=0,
        in_features=in_features,
        out_features=out_features,
        width=in_features,
        rows_first=True,
    )
