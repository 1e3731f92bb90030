"""Log-probabilities on their way to the client: ids spelled out, in OpenAI's form."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from homespecd.bundle.tokenizer import Tokenizer
from homespecd.decoding.logprobs import token_logprobs
from homespecd.runtime.step import Logits

# JSON has no -inf; OpenAI writes this for a token that is all but impossible.
_IMPOSSIBLE = -9999.0


class LogprobNotes:
    """The log-probabilities of one answer. A round adds, whoever sends the text takes.

    Args:
        top: how many alternatives are listed at each position.
    """

    def __init__(self, tokenizer: Tokenizer, *, vocab_size: int, top: int) -> None:
        self._tokenizer = tokenizer
        self._vocab_size = vocab_size
        self._top = top
        self._notes: list[dict[str, Any]] = []
        self._taken = 0
        self._shown = 0

    def add(self, logits: Logits, tokens: Sequence[int], *, shown: int) -> None:
        """Committed tokens, and the rows they were chosen from: [≥ len(tokens), width].

        shown: how many tokens of the answer can be seen in its text by now (`answer.Kept`).
        """
        self._shown = shown
        for one in token_logprobs(logits, tokens, vocab_size=self._vocab_size, top=self._top):
            note = self._spelled(one.token, one.logprob)
            note["top_logprobs"] = [self._spelled(*other) for other in one.top]
            self._notes.append(note)

    def take(self) -> list[dict[str, Any]]:
        """Of the tokens that can be seen, those that were not taken yet."""
        due = self._shown - self._taken
        notes, self._notes = self._notes[:due], self._notes[due:]
        self._taken += len(notes)
        return notes

    def _spelled(self, token: int, logprob: float) -> dict[str, Any]:
        own = self._tokenizer.token_bytes(token)
        return {
            "token": own.decode("utf-8", "replace"),
            "logprob": max(logprob, _IMPOSSIBLE),
            "bytes": list(own),
        }
