"""What of a proposal is kept, and the token that follows it.

`p` is the target's distribution after all sampling parameters, `q` the draft's, both float64
[vocab] per position. A proposal has k tokens; position i is judged given the proposal before it, so
p has k + 1 positions and q has k. All three verifiers are exact: what a round emits (the kept
tokens and the final one) is distributed as if the target had been sampled token by token.

This module knows nothing of logits, caches or text; chance comes in through `Chance`, so that a
test can enumerate what would be drawn.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import numpy.typing as npt

Probabilities = npt.NDArray[np.float64]


@dataclass(frozen=True)
class Verdict:
    """The first `accepted` tokens stand; `final` follows them (correction or bonus)."""

    accepted: int
    final: int


class Chance(Protocol):
    """The two questions that a verifier leaves to chance."""

    def happens(self, probability: float) -> bool:
        """True with this probability (≥ 1: always, ≤ 0: never)."""
        ...

    def pick(self, weights: Probabilities) -> int:
        """An index, with probability in proportion to its weight (≥ 0, not all 0)."""
        ...


class Dice:
    """Chance from uniform numbers in [0, 1), for example `numpy.random.default_rng().random`."""

    def __init__(self, uniform: Callable[[], float]) -> None:
        self._uniform = uniform

    def happens(self, probability: float) -> bool:
        return self._uniform() < probability

    def pick(self, weights: Probabilities) -> int:
        cumulative = np.cumsum(weights)
        # side="right" passes over entries of weight 0, which repeat the sum before them.
        index = int(np.searchsorted(cumulative, self._uniform() * cumulative[-1], side="right"))
        # A sum that is subnormal can round the product up to itself.
        return index if index < weights.size else int(np.flatnonzero(weights)[-1])


def verify_replay(draw: Callable[[int], int], proposal: Sequence[int]) -> Verdict:
    """Coupled verification, of which greedy is a case (Daliri et al. 2024, arXiv 2408.07978).

    `draw(i)` is the target's own draw at position i of the block given the proposal before it; it
    is fixed by the seed, so a proposed token stands iff it is that draw. Stops at the first other
    one: positions after it are never drawn.
    """
    for i, token in enumerate(proposal):
        own = draw(i)
        if own != token:
            return Verdict(accepted=i, final=own)
    return Verdict(accepted=len(proposal), final=draw(len(proposal)))


def verify_rejection(
    p: Callable[[int], Probabilities],
    proposal: Sequence[int],
    q: Probabilities | None,
    chance: Chance,
) -> Verdict:
    """Token by token (Leviathan et al. 2023, arXiv 2211.17192; Chen et al. 2023, 2302.01318).

    Token x stands with probability min(1, p(x) / q(x)); the first that does not is replaced by a
    draw from norm(max(p − q, 0)). Positions after it are never asked for.

    Args:
        p: position 0 … k → float64 [vocab].
        proposal: k tokens, each drawn from its row of q; k may be 0 (a plain draw).
        q: float64 [k, vocab], or None when the proposal is deterministic (q = one-hot).
    """
    for i, token in enumerate(proposal):
        target = p(i)  # [vocab]
        draft = _one_hot(token, target.size) if q is None else q[i]  # [vocab]
        if not chance.happens(_ratio(float(target[token]), float(draft[token]))):
            return Verdict(accepted=i, final=chance.pick(_residual(target, draft)))
    return Verdict(accepted=len(proposal), final=chance.pick(p(len(proposal))))


def verify_block(
    p: Callable[[int], Probabilities],
    proposal: Sequence[int],
    q: Probabilities | None,
    chance: Chance,
) -> Verdict:
    """The block as a whole (Sun et al. 2024, arXiv 2403.10444, Alg. 2); keeps at least as many
    tokens in expectation as `verify_rejection`, and takes the same arguments.

    With weight_0 = 1 and weight_i = min(1, weight_{i-1} · p(x_i) / q(x_i)), the first i tokens can
    stand with probability

        stand_i = S_i / (S_i + 1 − weight_i),  S_i = Σ max(weight_i · p − q, 0) after x_1 … x_i
        stand_k = weight_k

    and the longest that does is kept, followed by a draw from norm(max(weight_i · p − q, 0)), or
    from p after all k.
    """
    if q is None:
        # One-hot drafts: weight_i = p(x_1) … p(x_i) is all that any verifier can keep, and token by
        # token reaches it without looking at positions after the first rejection.
        return verify_rejection(p, proposal, q, chance)
    weights = [1.0]
    targets: list[Probabilities] = []  # [vocab] after x_1 … x_i
    for i, token in enumerate(proposal):
        targets.append(p(i))
        weights.append(min(1.0, weights[i] * _ratio(float(targets[i][token]), float(q[i, token]))))
        if weights[-1] == 0.0:  # nothing that holds this token can stand
            break
    if len(weights) == len(proposal) + 1 and chance.happens(weights[-1]):
        return Verdict(accepted=len(proposal), final=chance.pick(p(len(proposal))))
    for i in range(len(targets) - 1, 0, -1):
        surplus = float(np.maximum(weights[i] * targets[i] - q[i], 0.0).sum())
        if chance.happens(_ratio(surplus, surplus + 1.0 - weights[i])):
            break
    else:
        i = 0
    return Verdict(accepted=i, final=chance.pick(_residual(targets[i], q[i], weights[i])))


def _ratio(numerator: float, denominator: float) -> float:
    """A quotient of non-negative numbers; n / 0 is what it tends to: inf, or 0 for 0 / 0."""
    if denominator > 0.0:
        return numerator / denominator
    return math.inf if numerator > 0.0 else 0.0


def _residual(target: Probabilities, draft: Probabilities, weight: float = 1.0) -> Probabilities:
    """max(weight · p − q, 0), not normalised: [vocab].

    Where p and q are equal up to rounding nothing may be left though a token was rejected; p itself
    is then the right distribution, up to rounding.
    """
    left = np.maximum(weight * target - draft, 0.0)
    return left if left.any() else target


def _one_hot(token: int, size: int) -> Probabilities:
    hot = np.zeros(size)
    hot[token] = 1.0
    return hot
