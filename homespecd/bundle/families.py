"""The decoder families that can be built, as a table of differences.

A family says how a GGUF file of that architecture departs from the plain pre-norm decoder with
RMS norms, rotary grouped-query attention and a gated SiLU MLP; the graph builder reads the row
and has no names in it. An architecture without a row is refused by name.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from homespecd.bundle.gguf_file import GgufFile
from homespecd.errors import BundleError


@dataclass(frozen=True)
class Family:
    """One row of the table.

    interleaved_rope: the file's query and key rows are ordered for rotating neighbours (2i, 2i+1);
        they are put back into halves (i, i + head_dim/2), which is what the graph rotates.
    """

    architecture: str
    interleaved_rope: bool


FAMILIES: Mapping[str, Family] = {
    family.architecture: family for family in (Family("llama", interleaved_rope=True),)
}

# What changes the computation and is not built: refused, never ignored.
_UNSUPPORTED_COUNTS = ("expert_count", "attention.sliding_window")


@dataclass(frozen=True)
class Dimensions:
    """Sizes of one model. `norm_epsilon` is the RMS norms'; `rope_base` the rotary base."""

    layers: int
    heads: int
    kv_heads: int
    head_dim: int
    hidden: int
    feed_forward: int
    vocab: int
    context: int
    norm_epsilon: float
    rope_base: float
    rope_scale: float = 1.0


def family_of(file: GgufFile) -> Family:
    """The family of a file. Raises BundleError naming an architecture that is not known."""
    architecture = file.text("general.architecture")
    family = FAMILIES.get(architecture)
    if family is None:
        known = ", ".join(sorted(FAMILIES))
        raise BundleError(
            f"the architecture {architecture or '(not stated)'!r} is not supported",
            where=str(file.path),
            hint=f"supported: {known}",
        )
    return family


def dimensions_of(file: GgufFile) -> Dimensions:
    """Read and check the sizes. Raises BundleError for what is missing or cannot be built."""
    prefix = file.text("general.architecture")
    where = str(file.path)

    def number(key: str, default: float | None = None) -> float:
        value = file.metadata.get(f"{prefix}.{key}", default)
        if isinstance(value, bool) or not isinstance(value, int | float):
            problem = "is missing" if value is None else f"is not a number: {value!r}"
            raise BundleError(f"the metadata key {prefix}.{key} {problem}", where=where)
        return value

    for key in _UNSUPPORTED_COUNTS:
        if number(key, 0):
            raise BundleError(f"the file sets {prefix}.{key}, which is not supported", where=where)

    hidden, heads = int(number("embedding_length")), int(number("attention.head_count"))
    if heads <= 0 or hidden <= 0:
        raise BundleError("the file states a model without heads or width", where=where)
    head_dim = int(number("attention.key_length", hidden // heads))
    kv_heads = int(number("attention.head_count_kv", heads))
    if kv_heads <= 0 or heads % kv_heads:
        raise BundleError(f"{heads} heads cannot share {kv_heads} key heads", where=where)
    for key in ("rope.dimension_count", "attention.value_length"):
        if int(number(key, head_dim)) != head_dim:
            raise BundleError(
                f"{prefix}.{key} is not the head size {head_dim}, which is not supported",
                where=where,
            )
    return Dimensions(
        layers=int(number("block_count")),
        heads=heads,
        kv_heads=kv_heads,
        head_dim=head_dim,
        hidden=hidden,
        feed_forward=int(number("feed_forward_length")),
        vocab=file.tensor("token_embd.weight").shape[0],
        context=int(number("context_length")),
        norm_epsilon=float(number("attention.layer_norm_rms_epsilon")),
        rope_base=float(number("rope.freq_base", 10000.0)),
        rope_scale=_rope_scale(file, prefix, number("rope.scaling.factor", 1.0)),
    )


def _rope_scale(file: GgufFile, prefix: str, factor: float) -> float:
    kind = file.text(f"{prefix}.rope.scaling.type") or "none"
    if kind == "none":
        return 1.0
    if kind == "linear" and factor > 0:
        return float(factor)
    raise BundleError(f"the rope scaling {kind!r} is not supported", where=str(file.path))


def rope_tables(
    dimensions: Dimensions, factors: npt.NDArray[np.float32] | None
) -> tuple[npt.NDArray[np.float32], npt.NDArray[np.float32]]:
    """Cosines and sines, float32 [context + 1, head_dim / 2].

    One position more than the context, so that the row that pads the attention has one too.
    Computed in float64: at long contexts the angle in float32 is off by more than its cosine.

    Args:
        factors: divisors of the frequencies, [head_dim / 2] (Llama 3's `rope_freqs`), or None.
    """
    half = dimensions.head_dim // 2
    exponents = np.arange(half, dtype=np.float64) / half
    frequencies = dimensions.rope_base**-exponents / dimensions.rope_scale
    if factors is not None:
        frequencies = frequencies / factors.astype(np.float64)
    angles = np.arange(dimensions.context + 1, dtype=np.float64)[:, None] * frequencies[None, :]
    return np.cos(angles).astype(np.float32), np.sin(angles).astype(np.float32)


def halves_order(heads: int, head_dim: int) -> npt.NDArray[np.intp]:
    """Row order [heads * head_dim] that turns neighbour-rotated rows into half-rotated ones."""
    rows = np.arange(heads * head_dim).reshape(heads, head_dim // 2, 2)
    return rows.swapaxes(1, 2).reshape(-1)
