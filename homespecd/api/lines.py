"""JSON on one line, for streams in which a line is a message."""

from __future__ import annotations

import json
from typing import Any

_encode = json.JSONEncoder(ensure_ascii=False, separators=(",", ":")).encode

# JSON may hold these as they are, but many readers take them for the end of a line: all that split
# lines as Python's text does, httpx and with it Ollama's client among them.
_BREAKS = str.maketrans({one: f"\\u{ord(one):04x}" for one in "\x85\u2028\u2029"})


def one_line(value: Any) -> str:
    """`value` as JSON in which no reader finds the end of a line."""
    text = _encode(value)
    return text if text.isascii() else text.translate(_BREAKS)
