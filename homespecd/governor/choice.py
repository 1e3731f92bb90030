"""The best block of one drafter: the most expected tokens per millisecond over the whole answer.

Pure arithmetic on expectations and prices. What it does not decide: whether speculation is trusted
at all (`switch`), and what is worth a probe.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from homespecd.governor.acceptance import Outlook

# The gain is a hump over k; after so many falling values in a row, the top is behind. Not 1:
# a measured curve has steps (a kernel that is as fast for 8 rows as for 5).
_PAST_THE_TOP = 3

_NO_LIMIT = float("inf")


@dataclass(frozen=True, slots=True)
class Block:
    """k tokens of one drafter: expected tokens committed by this slot, and what the round costs.

    ratio: its tokens per millisecond ÷ those of a plain step, everyone in the step counted.
    gain_ms: time it saves against a plain step, its further tokens valued at what tokens cost in
        this request lately. The greatest ratio would not do: a slow block that pays now may eat
        tokens which a quicker drafter would have had for next to nothing a moment later.
    """

    drafter: str | None
    k: int
    tokens: float
    ms: float
    ratio: float
    gain_ms: float


@dataclass(frozen=True, slots=True)
class Plain:
    """What the alternative is: one token of this slot, `other_tokens` of the others, in `ms`.

    fair_ms: how long the step may become without wronging one of the others.
    """

    ms: float
    other_tokens: float
    fair_ms: float = float("inf")

    @property
    def block(self) -> Block:
        return Block(None, 0, 1.0, self.ms, 1.0, 0.0)


def paid_back(read_ms: float, *, tokens: float, horizon: float) -> float:
    """The part of what a draft reads for `horizon` tokens that a block of so many of them bears."""
    return read_ms * min(1.0, tokens / horizon)


def best_block(
    *,
    drafter: str,
    outlook: Outlook,
    draft_ms: Callable[[int], float],
    step_ms: Sequence[float],
    row_ms: float,
    read_ms: float,
    proven: bool,
    horizon: float,
    plain: Plain,
    token_ms: float,
    stake_ms: float,
) -> tuple[Block, Block | None]:
    """The best k ≥ 1 if nothing were at stake, and the best of those that may be played.

    Args:
        outlook: for k = 0 … K, K ≥ 1.
        draft_ms: milliseconds of a proposal of k tokens.
        step_ms: milliseconds of the step with k more rows, k = 0 … K or more.
        row_ms: everything else that a proposed token costs (sampling, verification).
        read_ms: what the draft needs once to be up to date, paid back over `horizon` tokens (see
            `paid_back`).
        proven: that this is worth it has been measured, and is not at stake.
        plain: the round without a proposal.
        token_ms: what a token costs in this request, on average of late.
        stake_ms: what a block may lose, if all of it is rejected and at worst it does not pay.
    """
    expected, at_worst = outlook.expected, outlook.at_worst
    single_ms = step_ms[0]
    waiting = 1.0 + plain.other_tokens
    best_k, best_ms, best_gain_ms = 0, 0.0, -_NO_LIMIT
    may_k, may_ms, may_gain_ms = 0, 0.0, -_NO_LIMIT
    falling, before_ms = 0, 0.0
    for k in range(1, len(expected)):
        # Rows of prompt that the step carries anyway are nobody's price: only the difference is.
        more_ms = step_ms[k] - single_ms + draft_ms(k) + k * row_ms
        waited_ms = more_ms + read_ms
        at_stake_ms = more_ms if proven else waited_ms
        if read_ms:
            more_ms += paid_back(read_ms, tokens=1.0 + expected[k], horizon=horizon)
        # Everyone in the step waits for the block.
        gain_ms = expected[k] * token_ms - more_ms * waiting
        if gain_ms > best_gain_ms:
            best_k, best_ms, best_gain_ms = k, more_ms, gain_ms
        if (
            gain_ms > may_gain_ms
            and single_ms + waited_ms <= plain.fair_ms
            and (at_stake_ms <= stake_ms or at_worst[k] * token_ms >= more_ms * waiting)
        ):
            may_k, may_ms, may_gain_ms = k, more_ms, gain_ms
        falling = falling + 1 if gain_ms < before_ms else 0
        if falling == _PAST_THE_TOP:
            break
        before_ms = gain_ms
    assert best_k

    def block(k: int, more_ms: float, gain_ms: float) -> Block:
        tokens, ms = 1.0 + expected[k], plain.ms + more_ms
        ratio = (tokens + plain.other_tokens) / ms / (waiting / plain.ms)
        return Block(drafter, k, tokens, ms, ratio, gain_ms)

    best = block(best_k, best_ms, best_gain_ms)
    if may_k == best_k:
        return best, best
    return best, block(may_k, may_ms, may_gain_ms) if may_k else None
