"""Server-sent events. Each token passes here: what is the same in every chunk is encoded once."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

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

_encode = json.JSONEncoder(ensure_ascii=False, separators=(",", ":")).encode


def event(data: Mapping[str, Any]) -> bytes:
    """One event whose data is a JSON object."""
    return f"data: {_encode(data)}\n\n".encode()


def error_event(body: Mapping[str, Any]) -> bytes:
    """An event of type `error`: what a stream that has begun ends with when it fails."""
    return f"event: error\ndata: {_encode(body)}\n\n".encode()


class TextTemplate:
    """A chunk with one hole for text: `HOLE` stands where the text goes."""

    # A text that no chunk holds otherwise.
    HOLE = "\0text\0"

    def __init__(self, chunk: Mapping[str, Any]) -> None:
        before, hole, after = event(chunk).partition(_encode(self.HOLE).encode())
        assert hole, "the chunk has no hole"
        self._before = before
        self._after = after

    def fill(self, text: str) -> bytes:
        return b"".join((self._before, _encode(text).encode(), self._after))
