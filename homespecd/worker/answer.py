"""From committed tokens to text: end ids, stop strings, lengths, and where an answer is cut."""

from __future__ import annotations

from collections import deque
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
    """What a round's tokens came to: the first `count` stand, the rest is as if never drawn.

    shown: how many tokens of the whole answer have a part in the text so far. Behind the count of
    all tokens while text is held back, and for good by those of a stop string.
    """

    count: int
    text: str
    finish_reason: str | None
    shown: int


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
        # Only stop strings hold whole tokens back: where the text of those begins, and how much
        # text came in and went out. What a later token completes begins where that one does.
        self._begins: deque[int] | None = deque() if stop else None
        self._pushed = self._emitted = 0
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
                text.append(self._flush())
                return self._kept(count, text, "stop")
            text.append(self._push(self._stream.push(token), begins=True))
            if self._stops.matched is not None:
                return self._kept(count, text, "stop")
            if self.room == 0:
                text.append(self._flush())
                reason = "length" if self._stops.matched is None else "stop"
                return self._kept(count, text, reason)
        return self._kept(len(tokens), text, None)

    def _push(self, text: str, *, begins: bool) -> str:
        """What may be emitted. begins: the text is a token's, else the end of an earlier one's."""
        if self._begins is None:
            return text
        if begins:
            self._begins.append(self._pushed)
        self._pushed += len(text)
        return self._stops.push(text)

    def _flush(self) -> str:
        """What was held back and can no longer become a stop string or a character."""
        tail = self._push(self._stream.finish(), begins=False)
        return tail + ("" if self._stops.matched is not None else self._stops.finish())

    def _kept(self, count: int, text: Sequence[str], finish_reason: str | None) -> Kept:
        said = "".join(text)
        shown = self.generated
        if self._begins is not None:
            self._emitted += len(said)
            while self._begins and self._begins[0] < self._emitted:
                self._begins.popleft()
            if finish_reason is None or self._stops.matched is not None:
                shown -= len(self._begins)
        return Kept(count, said, finish_reason, shown)
