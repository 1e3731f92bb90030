"""What a drafter is: something that proposes tokens for one slot, and can be wrong for free.

A drafter belongs to one slot. It sees committed tokens only, never the target's logits, and is told
nothing of verification: after a round it is given the committed sequence again and catches up by
itself, so "all accepted, the draft is one behind" is no special case. The same list, given again,
has only grown, unless `rewind` said otherwise; another list may differ anywhere.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import numpy.typing as npt

from homespecd.decoding.distant import DistantRow
from homespecd.runtime.step import AnyLogits, Logits, Model, Rows

Probabilities = npt.NDArray[np.float64]


@dataclass(frozen=True)
class Work:
    """Rows that a conversation wants run through a model; whoever drives it may batch them."""

    model: Model
    rows: Rows


@dataclass(frozen=True)
class StepResult:
    """What a `Work` comes back with.

    logits: float32 [wanted, vocab]. ms: wall time of the whole step, total_rows: all of its rows,
    other conversations' included, proposed_rows: those of proposals among them; lanes: how many
    sequences shared it.
    """

    logits: AnyLogits
    ms: float
    total_rows: int
    lanes: int
    proposed_rows: int = 0


@dataclass(frozen=True)
class Proposal:
    """Up to k tokens, and the distributions they were drawn from.

    q: float64 [len(tokens), vocab] when tokens were sampled; None when the proposal is
    deterministic (n-gram lookup, greedy or coupled drafting), which is q = one-hot.
    """

    tokens: tuple[int, ...]
    q: Probabilities | None = None


NO_PROPOSAL = Proposal(tokens=())

# Draws the draft's token for one absolute position from the draft's logits [vocab]. Returns the
# token and the distribution it was drawn from, or None when the draw is deterministic.
Draw = Callable[[Logits | DistantRow, Sequence[int]], tuple[int, Probabilities | None]]


class Drafter(Protocol):
    """Proposes tokens for one slot."""

    @property
    def name(self) -> str: ...

    def expected_length(self, committed: Sequence[int], k: int) -> int:
        """How many tokens it could propose now, without doing the work (0 … k)."""
        ...

    @property
    def match_length(self) -> int | None:
        """How many of the last tokens back what it would propose; None where that means nothing."""
        ...

    def unread(self, committed: Sequence[int]) -> int:
        """Tokens that it must read before it can propose, the last one not counted."""
        ...

    def foresee(self, committed: Sequence[int]) -> int | None:
        """The first token it would propose, if saying so costs nothing; else None.

        A round that did without this drafter then still tells whether it would have been right.
        """
        ...

    def hindsight(self, committed: Sequence[int], count: int) -> int:
        """How many of the last `count` tokens it would have foreseen, each from those before it.

        0 where saying so costs something, as with `foresee`.
        """
        ...

    def propose(
        self, committed: Sequence[int], k: int, draw: Draw
    ) -> Generator[Work, StepResult, Proposal]:
        """Propose up to k tokens to follow `committed`.

        `draw(logits, sequence)` picks the token that follows `sequence` (committed plus what was
        proposed so far). Yields the draft model's work, if it has any.
        """
        ...

    def rewind(self, valid: int) -> None:
        """Of what the cache holds, only the first `valid` tokens of the sequence still stand."""
        ...

    @property
    def nbytes(self) -> int: ...
