"""From committed tokens to text: end ids, stop strings, lengths, and where an answer is cut."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from homespecd.decoding.stops import StopStrings


class TextStream(Protocol):
    """Incremental detokenisation (`bundle.tokenizer`)."""

    def push(self, token: int) -> str: ...

    def finish(self) -> str: ...


@dataclass(frozen=True)
class Kept:
    """What a round's tokens came to: the first `count` stand, the rest is as if never drawn."""

    count: int
    text: str
    finish_reason: str | None


class Answer:
    """One answer in the making.

    Args:
        end_ids: end-of-text ids; empty when the request ignores them.
        max_tokens: how many tokens may be committed, ≥ 1.
    """

    def __init__(
        self,
        *,
        stream: TextStream,
        stop: Sequence[str],
        end_ids: frozenset[int],
        max_tokens: int,
    ) -> None:
        self._stream = stream
        self._stops = StopStrings(stop)
        self._end_ids = end_ids
        self._max_tokens = max_tokens
        self.generated = 0

    @property
    def room(self) -> int:
        """Tokens that may still be committed."""
        return self._max_tokens - self.generated

    def commit(self, tokens: Sequence[int]) -> Kept:
        """Take tokens one by one until something ends the answer."""
        text: list[str] = []
        for count, token in enumerate(tokens, start=1):
            self.generated += 1
            if token in self._end_ids:
                return Kept(count, "".join(text) + self._flush(), "stop")
            text.append(self._stops.push(self._stream.push(token)))
            if self._stops.matched is not None:
                return Kept(count, "".join(text), "stop")
            if self.room == 0:
                tail = self._flush()
                reason = "length" if self._stops.matched is None else "stop"
                return Kept(count, "".join(text) + tail, reason)
        return Kept(len(tokens), "".join(text), None)

    def _flush(self) -> str:
        """What was held back and can no longer become a stop string or a character."""
        tail = self._stops.push(self._stream.finish())
        return tail + ("" if self._stops.matched is not None else self._stops.finish())
