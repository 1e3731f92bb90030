"""GGUF's block formats that are taken over as they are: bytes to codes, scales and offsets.

Of every format here w = scale · code + offset, with one scale and one offset per 32 inputs.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

SOURCE_BLOCK = 32  # inputs per scale in every format here

# Types whose blocks are taken over as they are, with the bits that takes.
KEPT_BITS = {"Q4_0": 4, "Q4_1": 4, "Q4_K": 4, "Q8_0": 8}
FLOAT_TYPES = frozenset({"F32", "F16", "BF16"})

Codes = npt.NDArray[np.uint8]
Floats = npt.NDArray[np.float32]


def read_blocks(type_name: str, raw: Codes) -> tuple[Codes, Floats, Floats]:
    """Codes, scales and offsets of a tensor's bytes, uint8 [out, row_bytes], in reading order.

    The three arrays have as many elements as the tensor (codes) and as it has blocks of 32; their
    shapes are the formats' own.
    """
    readers = {"Q4_0": _q4_0, "Q4_1": _q4_1, "Q4_K": _q4_k, "Q8_0": _q8_0}
    return readers[type_name](raw)


def _q4_0(raw: Codes) -> tuple[Codes, Floats, Floats]:
    """18 bytes for 32 values: float16 d, 16 bytes of codes. w = d · (q - 8)."""
    blocks = raw.reshape(-1, 18)
    scales = _float16(blocks[:, :2])
    return _low_then_high(blocks[:, 2:]), scales, scales * np.float32(-8)


def _q4_1(raw: Codes) -> tuple[Codes, Floats, Floats]:
    """20 bytes for 32 values: float16 d and m, 16 bytes of codes. w = d · q + m."""
    blocks = raw.reshape(-1, 20)
    return _low_then_high(blocks[:, 4:]), _float16(blocks[:, :2]), _float16(blocks[:, 2:4])


def _q8_0(raw: Codes) -> tuple[Codes, Floats, Floats]:
    """34 bytes for 32 values: float16 d, 32 int8. w = d · q."""
    blocks = raw.reshape(-1, 34)
    scales = _float16(blocks[:, :2])
    return blocks[:, 2:] ^ np.uint8(128), scales, scales * np.float32(-128)


def _q4_k(raw: Codes) -> tuple[Codes, Floats, Floats]:
    """144 bytes for 256 values: float16 d and dmin, 8 six-bit scales and 8 six-bit minima in 12
    bytes, 128 bytes of codes. w = (d · scale) · q - dmin · minimum, in sub-blocks of 32."""
    blocks = raw.reshape(-1, 144)
    small = blocks[:, 4:16].reshape(-1, 3, 4)
    low, middle, high = small[:, 0], small[:, 1], small[:, 2]
    scale_codes = np.concatenate([low & 63, (high & 15) | ((low >> 6) << 4)], axis=1)
    minimum_codes = np.concatenate([middle & 63, (high >> 4) | ((middle >> 6) << 4)], axis=1)
    scales = _float16(blocks[:, :2])[:, None] * scale_codes.astype(np.float32)
    offsets = -_float16(blocks[:, 2:4])[:, None] * minimum_codes.astype(np.float32)
    pairs = blocks[:, 16:].reshape(-1, 4, 32)  # sub-block 2i in the low halves, 2i + 1 in the high
    return np.stack([pairs & 15, pairs >> 4], axis=2).reshape(-1, 256), scales, offsets


def _low_then_high(packed: Codes) -> Codes:
    """[blocks, 16] bytes: the low halves are values 0 … 15, the high halves 16 … 31."""
    return np.concatenate([packed & 15, packed >> 4], axis=1)


def _float16(raw: Codes) -> Floats:
    """[blocks, 2] bytes as float32 [blocks]."""
    return np.ascontiguousarray(raw).view("<f2").reshape(-1).astype(np.float32)
