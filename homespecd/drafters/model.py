"""A smaller model that drafts, token by token, with a cache of its own.

It keeps the tokens that its cache holds, and before each proposal compares them with what is
committed: whatever differs is rewound, whatever is missing is read. So it makes no difference what
was accepted, whether rounds went by without it, or whether the conversation was replaced.
"""

from __future__ import annotations

from collections.abc import Generator, Sequence

import numpy as np

from homespecd.decoding.sequences import common_prefix
from homespecd.drafters.protocol import (
    NO_PROPOSAL,
    Draw,
    Probabilities,
    Proposal,
    StepResult,
    Work,
)
from homespecd.errors import ModelError
from homespecd.runtime.step import AnyLogits, Model, Rows

# Rows per step while catching up: the size at which prefill was fastest on the machines measured,
# and short enough for other conversations to get their turn.
PREFILL_ROWS = 64


class DraftFailed(ModelError):  # noqa: N818 (the word that status and responses use)
    """A draft model failed; the target can go on without it. `where` names the drafter."""


class ModelDrafter:
    """Drafts with `model`, which other slots' drafters may share; implements `Drafter`.

    Invariant: the cache's first len(self._held) tokens are self._held. (It may hold more after a
    proposal was abandoned half-way; that is rewound by the next.)
    """

    def __init__(self, name: str, model: Model, *, prefill_rows: int = PREFILL_ROWS) -> None:
        self._name = name
        self._model = model
        self._prefill_rows = prefill_rows
        self._cache = model.new_cache()
        self._held: list[int] = []

    @property
    def name(self) -> str:
        return self._name

    @property
    def nbytes(self) -> int:
        """The cache only: the weights belong to the model, which may serve several slots."""
        return self._cache.nbytes

    def expected_length(self, committed: Sequence[int], k: int) -> int:
        """k, or less where the draft's own context ends.

        The last proposed token is never read by the draft, so it may lie one past the end.
        """
        if not committed:
            return 0
        return max(0, min(k, self._model.spec.context - len(committed) + 1))

    @property
    def match_length(self) -> None:
        """See `Drafter`: a model does not copy."""
        return None

    def unread(self, committed: Sequence[int]) -> int:
        """See `Drafter`. Between two rounds: then what it holds is a beginning of `committed`."""
        return max(0, len(committed) - 1 - len(self._held))

    def foresee(self, committed: Sequence[int]) -> None:  # noqa: ARG002
        """See `Drafter`: it would have to run the model."""
        return

    def hindsight(self, committed: Sequence[int], count: int) -> int:  # noqa: ARG002
        """See `Drafter`: it would have to run the model."""
        return 0

    def propose(
        self, committed: Sequence[int], k: int, draw: Draw
    ) -> Generator[Work, StepResult, Proposal]:
        """See `Drafter`. Reads what it has not seen yet first, in chunks.

        Raises:
            DraftFailed: the model failed (a ModelError thrown in at a yield, or raised by `draw`),
                or returned NaN. The drafter may be asked again, and then tries again.
        """
        count = self.expected_length(committed, k)
        if count == 0:
            return NO_PROPOSAL
        sequence = list(committed)
        unread = yield from self._catch_up(sequence)
        tokens: list[int] = []
        q: list[Probabilities] = []
        while True:
            logits = yield from self._step(unread, logits_from=len(unread) - 1)
            token, probabilities = self._draw(draw, logits, sequence)
            tokens.append(token)
            if probabilities is not None:
                q.append(probabilities)
            if len(tokens) == count:
                break
            sequence.append(token)
            unread = [token]
        assert len(q) in (0, count), "either every token was sampled or none"
        return Proposal(tokens=tuple(tokens), q=np.stack(q) if q else None)

    def rewind(self, valid: int) -> None:
        """See `Drafter`."""
        keep = min(valid, len(self._held))
        del self._held[keep:]
        self._cache.rewind_to(keep)

    def _catch_up(self, sequence: list[int]) -> Generator[Work, StepResult, list[int]]:
        """Bring the cache to a start of `sequence`; returns the rest, 1 … prefill_rows tokens."""
        # At least one token has to be read again to have logits.
        self.rewind(min(common_prefix(self._held, sequence), len(sequence) - 1))
        unread = sequence[len(self._held) :]
        while len(unread) > self._prefill_rows:
            chunk, unread = unread[: self._prefill_rows], unread[self._prefill_rows :]
            yield from self._step(chunk, logits_from=len(chunk))
        return unread

    def _step(
        self, tokens: list[int], *, logits_from: int
    ) -> Generator[Work, StepResult, AnyLogits]:
        """Logits [len(tokens) - logits_from, vocab]."""
        try:
            result = yield Work(self._model, Rows(self._cache, tokens, logits_from, anywhere=True))
        except ModelError as error:
            raise self._failed(error) from error
        self._held += tokens
        return result.logits

    def _draw(
        self, draw: Draw, logits: AnyLogits, sequence: list[int]
    ) -> tuple[int, Probabilities | None]:
        row = logits[-1]  # [vocab]
        # What of a row elsewhere is asked for is looked at by who asks.
        if isinstance(row, np.ndarray) and np.isnan(row).any():
            raise DraftFailed("the draft model returned NaN", where=self._name)
        try:
            return draw(row, sequence)
        except ModelError as error:
            raise self._failed(error) from error

    def _failed(self, error: ModelError) -> DraftFailed:
        return DraftFailed(
            error.message,
            where=self._name,
            hint=error.hint,
            out_of_memory=error.out_of_memory,
            device_lost=error.device_lost,
        )
