"""Which form each matrix of a model gets: the source's own blocks where they fit, else rounded."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Literal

from homespecd.bundle.gguf_blocks import FLOAT_TYPES, KEPT_BITS
from homespecd.bundle.gguf_file import GgufTensor
from homespecd.bundle.quantise import BlockCodes, kept_codes, rounded_codes

Precision = Literal["int4", "int8", "fp32"]
PRECISIONS: tuple[Precision, ...] = ("int4", "int8", "fp32")


@dataclass(frozen=True)
class BlockSizes:
    """Inputs per scale at 4 and at 8 bits, as this machine's kernels want them: 16 or 32."""

    int4: int = 32
    int8: int = 32

    def of(self, bits: int) -> int:
        return self.int4 if bits == 4 else self.int8


@dataclass(frozen=True)
class PrecisionRule:
    """How many bits matrices get in one import.

    precision: what was asked for.
    source_is_four_bit: the file has 4-bit matrices; then what it holds in more bits it holds so
        on purpose (K-quant mixtures do), and an int4 import keeps that at 8.
    """

    precision: Precision
    source_is_four_bit: bool

    @classmethod
    def for_tensors(cls, precision: Precision, types: Iterable[str]) -> PrecisionRule:
        return cls(precision, any(KEPT_BITS.get(name) == 4 for name in types))

    def bits(self, tensors: Sequence[GgufTensor]) -> int:
        """4, 8 or 32 for a matrix made of these; parts of one matrix share the widest form."""
        if self.precision == "fp32":
            return 32
        if self.precision == "int8":
            return 8
        if not self.source_is_four_bit:
            return 4
        narrow = all(
            KEPT_BITS.get(tensor.type_name) == 4 or tensor.type_name in FLOAT_TYPES
            for tensor in tensors
        )
        return 4 if narrow else 8

    def codes(self, tensor: GgufTensor, bits: int, *, means: bool) -> tuple[BlockCodes, bool]:
        """A tensor's codes, and whether they are the file's own numbers.

        Args:
            means: the matrix may have mean columns. A table that rows are looked up in may not.
        """
        if self._kept(tensor, bits, means=means):
            return kept_codes(tensor, bits), True
        return rounded_codes(tensor.float32(), bits), False

    def _kept(self, tensor: GgufTensor, bits: int, *, means: bool) -> bool:
        own = KEPT_BITS.get(tensor.type_name)
        if own is None or own > bits:
            return False
        # Offsets cost mean columns. At 8 bits rounding them to whole steps loses less than they
        # cost, so an int8 import keeps only what has none; a 4-bit import keeps all it can.
        return own == bits or tensor.type_name == "Q4_0" or (means and self.precision == "int4")
