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


def gumbel(seed: int, position: int, vocab: int) -> npt.NDArray[np.float64]:
    """Standard Gumbel noise for every id at one absolute position.

    Args:
        seed: any integer; negative ones are taken modulo 2**128.
        position: index in the sequence of the token to be drawn, ≥ 0.
        vocab: number of ids. The noise of an id does not depend on it.

    Returns:
        float64 [vocab], finite: between −3.7 and 36.8.
    """
    key = np.array([seed & _WORD, (seed >> 64) & _WORD], dtype=np.uint64)
    # The lowest word counts blocks of four ids, so positions never overlap.
    counter = np.array([0, position, 0, 0], dtype=np.uint64)
    bits = np.random.Philox(key=key, counter=counter).random_raw(vocab)  # [vocab] uint64
    # 52 bits and a half fill a double exactly: u lies in [2**-53, 1 - 2**-53], never 0 or 1.
    noise = (bits >> np.uint64(12)).astype(np.float64)
    noise += 0.5
    noise *= 2.0**-52
    np.log(noise, out=noise)
    np.negative(noise, out=noise)
    np.log(noise, out=noise)
    np.negative(noise, out=noise)
    return noise
