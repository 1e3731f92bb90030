"""Bodies whose parts lie in each other many times."""

from __future__ import annotations

import json
from typing import Any

import pytest

from homespecd.api import ollama, openai
from homespecd.api.bodies import MAX_DEPTH, parse_json
from homespecd.errors import RequestError
from homespecd.worker.messages import GenerationRequest, pack

# In a chat, the value of a tool's `const` lies so deep: body, tools, tool, function, parameters.
_AROUND_CONST = 5


def nested(depth: int) -> bytes:
    return b"[" * depth + b"]" * depth


def chat(depth: int) -> bytes:
    body: dict[str, Any] = {
        "model": "m",
        "messages": [{"role": "user", "content": "x"}],
        "tools": [{"type": "function", "function": {"name": "f", "parameters": {"const": "HOLE"}}}],
    }
    return json.dumps(body).encode().replace(b'"HOLE"', nested(depth))


@pytest.mark.parametrize("depth", [MAX_DEPTH + 1, 300, 480, 700, 950, 5_000])
def test_what_is_nested_too_deeply_is_refused(depth: int) -> None:
    for parse in (parse_json, openai.parse_chat, ollama.parse_chat):
        with pytest.raises(RequestError, match="nested too deeply") as refused:
            parse(nested(depth) if parse is parse_json else chat(depth))
        assert (refused.value.status, refused.value.code) == (400, "invalid_json")


def test_what_is_let_through_can_be_handed_on() -> None:
    asked = openai.parse_chat(chat(MAX_DEPTH - _AROUND_CONST))
    frame = json.loads(pack({"request": asked.generation.to_frame()})[4:])
    assert GenerationRequest.from_frame(frame["request"]) == asked.generation
    with pytest.raises(RequestError, match="nested too deeply"):
        openai.parse_chat(chat(MAX_DEPTH - _AROUND_CONST + 1))


def test_many_are_not_deep() -> None:
    assert parse_json(b"[" + b"[[]]," * 5_000 + b"[]]")[-1] == []
    assert parse_json(b'"' + b"[" * 1_000 + b'"') == "[" * 1_000
