"""What blocks are worth on this target where it runs now: bit for bit, near-ties, or nothing.

It belongs to a provider and a device as much as to a model, so it is shown with them, and kept with
the costs that were learned there.
"""

from __future__ import annotations

from typing import Any, Literal

from homespecd.runtime.step import ModelSpec
from homespecd.worker.checks import Exactness

Guarantee = Literal["bit_exact", "near_ties", "not_block_causal"]


def place(spec: ModelSpec) -> str:
    """Provider and device as one word for keys: costs and bits are others elsewhere."""
    return "cpu" if spec.provider == "cpu" else f"{spec.provider} {spec.device}".strip()


def guarantee(exactness: Exactness, spec: ModelSpec) -> Guarantee:
    """bit_exact: the same logits however rows are grouped. near_ties: tokens may differ where the
    two best are nearly equal. not_block_causal: blocks are not verified at all."""
    if not exactness.block_causal:
        return "not_block_causal"
    return "bit_exact" if spec.width_invariant and exactness.bit_identical else "near_ties"


def verdict(exactness: Exactness | None, spec: ModelSpec) -> dict[str, Any] | None:
    """As the snapshot and the ledger have it; None when nothing was measured."""
    if exactness is None:
        return None
    return {
        "block_causal": exactness.block_causal,
        "max_logit_diff": exactness.max_logit_diff,
        "near_tie_flips": exactness.near_tie_flips,
        "rows": exactness.rows,
        "width_invariant": spec.width_invariant,
        "guarantee": guarantee(exactness, spec),
        "place": place(spec),
    }
