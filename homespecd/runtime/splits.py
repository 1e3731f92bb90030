"""Measures whether a model's logits depend on how rows are split into steps."""

from __future__ import annotations

import numpy as np

from homespecd.errors import ModelError
from homespecd.runtime.step import Logits, Model, Rows, whole

# One sequence of 24 rows as single rows and as blocks of odd and even widths, with and without a
# past: kernels that change their path by width do so for some of these.
_WIDTHS = ((1,) * 24, (24,), (3, 1, 7, 2, 5, 6), (16, 8), (9, 4, 11))


def is_width_invariant(model: Model) -> bool:
    """Whether a few splits of one sequence give bit-identical logits.

    False as well where the model has logits for the last row only, or fails on the tokens tried.
    """
    spec = model.spec
    if spec.logits_last_only:
        return False
    tokens = [(7 + 31 * i) % spec.vocab_size for i in range(min(24, spec.context))]
    try:
        reference = _logits(model, tokens, _WIDTHS[0])
        return all(
            np.array_equal(reference, _logits(model, tokens, widths), equal_nan=True)
            for widths in _WIDTHS[1:]
        )
    except ModelError:
        return False


def _logits(model: Model, tokens: list[int], widths: tuple[int, ...]) -> Logits:
    cache = model.new_cache()
    found = []
    start = 0
    for width in widths:
        part = tokens[start : start + width]
        if part:
            found.append(np.array(whole(model.step([Rows(cache, part, 0)])[0])))
        start += width
    return np.concatenate(found)
