"""Text out of tokens, one token at a time, never half a character.

The `tokenizers` library has a `DecodeStream` for this, but it says nothing more while its window
ends in a byte that is invalid, and it has no end at which to say what was held: of random ids a
quarter of the texts came out short. Bytes and Python's incremental UTF-8 decoder do it in constant
time per token and for any ids.
"""

from __future__ import annotations

import codecs
from typing import Protocol

from homespecd.bundle.pieces import Pieces


class TokenSource(Protocol):
    """Where a stream gets its tokens' bytes."""

    @property
    def pieces(self) -> Pieces: ...

    def is_special(self, token_id: int) -> bool: ...

    def token_bytes(self, token_id: int) -> bytes: ...

    def first_bytes(self, token_id: int) -> bytes: ...

    def knows(self, token_id: int) -> bool: ...


class TextStream:
    """One text being put together. Joined pushes plus `finish` equal `decode` of all ids."""

    def __init__(self, source: TokenSource, *, skip_special: bool = True) -> None:
        self._source = source
        self._skip_special = skip_special
        self._utf8 = codecs.getincrementaldecoder("utf-8")("replace")
        self._first = True
        self._to_strip = source.pieces.strip_start

    def push(self, token_id: int) -> str:
        """Add a token; return the text that is now certain ("" while a character is open).

        Bytes that can never become a character turn into U+FFFD. Ids without a token (padded
        logits) and, unless asked for, special tokens have no text.
        """
        source = self._source
        if not source.knows(token_id) or (self._skip_special and source.is_special(token_id)):
            return ""
        if self._first:
            self._first = False
            piece = source.first_bytes(token_id)
        else:
            piece = source.pieces.separator + source.token_bytes(token_id)
        if self._to_strip:
            piece = self._strip(piece)
        return self._utf8.decode(piece)

    def finish(self) -> str:
        """The end of the text: U+FFFD for a character that was never completed, else ""."""
        return self._utf8.decode(b"", final=True)

    def _strip(self, piece: bytes) -> bytes:
        mark = self._source.pieces.strip_byte
        while self._to_strip and piece.startswith(mark):
            piece = piece[1:]
            self._to_strip -= 1
        if piece:
            self._to_strip = 0
        return piece
