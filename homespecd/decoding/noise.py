"""Gumbel noise that is a function of (seed, position, id) and of nothing else.

Adding standard Gumbel noise to log-probabilities and taking the argmax draws from the distribution
(the Gumbel-max trick). When the noise depends on the seed and the position alone, the draw at a
position is fixed before any draft is looked at, which is what the coupled verifier needs (Daliri et
al. 2024, arXiv 2408.07978).

The bits come from Philox 4x64, a counter-based generator: the seed is its key, the position a word
of its counter. Only `random_raw` is used: its stream is the algorithm's own and does not change
with numpy's versions, as its distributions may.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

_WORD = (1 << 64) - 1
_EXPONENT_OF_ONE = np.uint64(0x3FF0_0000_0000_0000)


def gumbel(
    seed: int, position: int, vocab: int, *, ids: npt.NDArray[np.int64] | None = None
) -> npt.NDArray[np.float64]:
    """Standard Gumbel noise for every id at one absolute position.

    Args:
        seed: any integer; negative ones are taken modulo 2**128.
        position: index in the sequence of the token to be drawn, ≥ 0.
        vocab: number of ids. The noise of an id does not depend on it.
        ids: only for these (< vocab); saves the logarithms of the others.

    Returns:
        float64 [vocab] or [len(ids)], finite: between −3.7 and 36.8.
    """
    key = np.array([seed & _WORD, (seed >> 64) & _WORD], dtype=np.uint64)
    # The lowest word counts blocks of four ids, so positions never overlap.
    counter = np.array([0, position, 0, 0], dtype=np.uint64)
    bits = np.random.Philox(key=key, counter=counter).random_raw(vocab)  # [vocab] uint64
    if ids is not None:
        bits = bits[ids]
    # 52 bits m become u = (m + 1/2) / 2**52, exactly, so that u is never 0 or 1. Written into the
    # mantissa of a double in [1, 2) they need no conversion, which takes as long as all the rest.
    bits >>= np.uint64(12)
    bits |= _EXPONENT_OF_ONE
    noise = bits.view(np.float64)
    noise -= 1.0
    noise += 2.0**-53
    np.log(noise, out=noise)
    np.negative(noise, out=noise)
    np.log(noise, out=noise)
    return np.negative(noise, out=noise)
