"""Server-sent events. Each token passes here: what is the same in every chunk is encoded once."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from homespecd.api.lines import one_line

DONE = b"data: [DONE]\n\n"

# A comment: clients pass over it, and they and the proxies between see that somebody is there.
KEEP_ALIVE = b": keep-alive\n\n"

# How long a stream may have nothing to say before its first token.
SILENCE_S = 5.0

HEADERS = {
    "Content-Type": "text/event-stream; charset=utf-8",
    "Cache-Control": "no-cache",
    # A reverse proxy must not collect tokens before it passes them on.
    "X-Accel-Buffering": "no",
}


def event(data: Mapping[str, Any]) -> bytes:
    """One event whose data is a JSON object."""
    return f"data: {one_line(data)}\n\n".encode()


def error_event(body: Mapping[str, Any]) -> bytes:
    """An event of type `error`: what a stream that has begun ends with when it fails."""
    return f"event: error\ndata: {one_line(body)}\n\n".encode()


class TextTemplate:
    """A chunk with one hole for text: `HOLE` stands where the text goes."""

    # A text that no chunk holds otherwise.
    HOLE = "\0text\0"

    def __init__(self, chunk: Mapping[str, Any]) -> None:
        before, hole, after = event(chunk).partition(one_line(self.HOLE).encode())
        assert hole, "the chunk has no hole"
        self._before = before
        self._after = after

    def fill(self, text: str) -> bytes:
        return b"".join((self._before, one_line(text).encode(), self._after))
