"""Whatever is sent is either understood or refused: no other exception leaves the parsers."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from homespecd.api import ollama, openai, tokens
from homespecd.errors import RequestError
from homespecd.worker.messages import GenerationRequest, pack

PARSERS: list[Callable[[bytes], Any]] = [
    openai.parse_chat,
    openai.parse_completion,
    ollama.parse_chat,
    ollama.parse_generate,
    ollama.parse_show,
    tokens.parse_tokenize,
    tokens.parse_detokenize,
]
KEYS = [
    "model", "messages", "prompt", "stream", "stream_options", "max_tokens",
    "max_completion_tokens", "temperature", "top_p", "top_k", "min_p", "seed", "stop",
    "presence_penalty", "frequency_penalty", "repetition_penalty", "logit_bias", "logprobs",
    "top_logprobs", "n", "response_format", "grammar", "tools", "tool_choice",
    "parallel_tool_calls", "ignore_eos", "homespec", "format", "options", "keep_alive", "system",
    "raw", "content", "tokens", "add_special", "echo", "user", "images", "think",
]  # fmt: skip

scalars = (
    st.none()
    | st.booleans()
    | st.integers(-3, 2**65)
    | st.floats()
    | st.text(max_size=8)
    | st.sampled_from(["none", "auto", "required", "json", "5m", "system", "user", "tool", "text"])
)
values = st.recursive(
    scalars,
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(
            st.sampled_from(
                ["type", "function", "name", "role", "content", "text", "json_schema", "schema"]
            )
            | st.text(max_size=3),
            inner,
            max_size=4,
        )
    ),
    max_leaves=12,
)
messages = st.lists(
    st.fixed_dictionaries(
        {"role": st.sampled_from(["system", "user", "assistant", "tool", "developer"])},
        optional={"content": values, "tool_calls": values, "name": values, "images": values},
    ),
    max_size=3,
)
bodies = st.dictionaries(st.sampled_from(KEYS), values, max_size=6)


def check(parse: Callable[[bytes], Any], body: bytes) -> None:
    try:
        asked = parse(body)
    except RequestError as error:
        refused = error
    else:
        refused = None
    if refused is not None:
        assert refused.status == 400
        assert str(refused)
        return
    request = getattr(asked, "generation", None)
    if request is not None:
        frame = json.loads(pack({"request": request.to_frame()})[4:])
        assert GenerationRequest.from_frame(frame["request"]) == request


@pytest.mark.parametrize("parse", PARSERS, ids=lambda one: f"{one.__module__}.{one.__name__}")
@settings(max_examples=60)
@given(bodies, messages)
def test_any_object(parse: Callable[[bytes], Any], body: dict[str, Any], said: Any) -> None:
    check(parse, json.dumps({"model": "m", "messages": said, "prompt": "x", **body}).encode())
    check(parse, json.dumps(body).encode())


@pytest.mark.parametrize("parse", PARSERS, ids=lambda one: f"{one.__module__}.{one.__name__}")
@settings(max_examples=60)
@given(st.binary(max_size=60) | values.map(lambda value: json.dumps(value).encode()))
def test_any_bytes(parse: Callable[[bytes], Any], body: bytes) -> None:
    check(parse, body)
