"""How likely the target found the tokens that were committed, and what it liked as well.

These are the model's own: the logarithm of the softmax over the vocabulary's logits, before
penalties, bias, temperature and filters. So they say the same of a token whoever proposed it and
however it was drawn.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt


@dataclass(frozen=True, slots=True)
class TokenLogprob:
    """One committed token; `top` are the likeliest ids there, highest first, lower id first."""

    token: int
    logprob: float
    top: tuple[tuple[int, float], ...]


def token_logprobs(
    logits: npt.NDArray[np.floating], tokens: Sequence[int], *, vocab_size: int, top: int
) -> list[TokenLogprob]:
    """What each row says of the token that was committed after it.

    Args:
        logits: [rows, width], rows ≥ len(tokens); ids from vocab_size on are padding.
        tokens: ids below vocab_size.
        top: how many of the likeliest ids are wanted, 0 for none.
    """
    found = []
    for row, token in zip(logits, tokens, strict=False):
        values = row[:vocab_size].astype(np.float64)
        values -= values.max()
        values -= np.log(np.exp(values).sum())
        found.append(TokenLogprob(token, float(values[token]), _likeliest(values, top)))
    return found


def _likeliest(values: npt.NDArray[np.float64], count: int) -> tuple[tuple[int, float], ...]:
    count = min(count, values.size)
    if count == 0:
        return ()
    edge = np.partition(values, values.size - count)[values.size - count]
    ids = np.flatnonzero(values >= edge)
    # A stable sort keeps the lower id first among equals.
    ids = ids[np.argsort(-values[ids], kind="stable")][:count]
    return tuple((int(i), float(values[i])) for i in ids)
