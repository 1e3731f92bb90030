"""What a target is measured to be before its blocks are trusted.

Speculation is exact only if the logits of a row do not depend on the rows after it. Some exports
break that (per-tensor dynamic quantization takes its scale over the whole block), so it is probed.
How far a block is from single steps is measured too: zero on width-invariant graphs, and elsewhere
the number that tells how often a near-tie may fall the other way.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from homespecd.runtime.step import Logits, Model, Rows, whole

# A leak moves logits by whole units (10–20 were measured on dynamic int8); kernels that merely sum
# in another order move them by 1e-5 … 1 depending on quantization, but then equally with any later
# rows. 1 % of the logits' spread separates the two by an order of magnitude on either side.
CAUSAL_TOLERANCE = 0.01


@dataclass(frozen=True)
class Exactness:
    """Block logits against single-step logits on the same tokens.

    near_tie_flips: rows of `rows` whose most likely token differs.
    """

    block_causal: bool
    max_logit_diff: float
    near_tie_flips: int
    rows: int

    @property
    def bit_identical(self) -> bool:
        return self.max_logit_diff == 0.0


def logits_in_blocks(model: Model, tokens: Sequence[int], widths: Sequence[int]) -> Logits:
    """Logits of every position, float32 [len(tokens), vocab], fed in blocks of cycling widths."""
    cache, parts, start, turn = model.new_cache(), [], 0, 0
    while start < len(tokens):
        block = tokens[start : start + widths[turn % len(widths)]]
        (logits,) = model.step([Rows(cache, block, logits_from=0)])
        parts.append(np.array(whole(logits)))
        start, turn = start + len(block), turn + 1
    return np.concatenate(parts)


def is_block_causal(model: Model, tokens: Sequence[int]) -> bool:
    """Whether the first half of a block keeps its logits when the second half changes."""
    half = len(tokens) // 2
    assert half >= 1
    other = [*tokens[:half], *([tokens[0]] * (len(tokens) - half))]
    a = logits_in_blocks(model, tokens, [len(tokens)])[:half]
    b = logits_in_blocks(model, other, [len(tokens)])[:half]
    spread = float(a.max() - a.min())
    return bool(np.abs(a - b).max() <= CAUSAL_TOLERANCE * max(spread, 1e-6))


def compare(model: Model, tokens: Sequence[int], width: int) -> Exactness:
    """Blocks of `width` against single steps. Costs `len(tokens)` single steps."""
    single = logits_in_blocks(model, tokens, [1])
    block = logits_in_blocks(model, tokens, [width])
    return Exactness(
        block_causal=is_block_causal(model, tokens[:16]),
        max_logit_diff=float(np.abs(single - block).max()),
        near_tie_flips=int((single.argmax(axis=1) != block.argmax(axis=1)).sum()),
        rows=len(tokens),
    )
