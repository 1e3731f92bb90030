"""What Ollama's requests mean, and what is refused by name."""

from __future__ import annotations

import json
from typing import Any

import pytest

from homespecd.api.gathering import Gathered
from homespecd.api.ollama import parse_chat, parse_generate, parse_show
from homespecd.api.ollama_answers import Lines, OllamaShape
from homespecd.api.ollama_models import resolved
from homespecd.api.service import Delta, Done
from homespecd.api.values import FOR_EVER_S
from homespecd.errors import RequestError

USER = {"role": "user", "content": "hi"}
DONE = Done(
    ("tool_calls",),
    {"prompt_tokens": 3, "completion_tokens": 2, "cached_tokens": 1},
    {"ttft_ms": 5.0, "prefill_ms": 4.0, "decode_ms": 2.5},
)


def chat(**fields: Any) -> bytes:
    return json.dumps({"model": "m", "messages": [USER], **fields}).encode()


def generate(**fields: Any) -> bytes:
    return json.dumps({"model": "m", "prompt": "hi", **fields}).encode()


BAD: list[tuple[bytes, str | None]] = [
    (b"{", None),
    (b"[]", None),
    (chat(model=""), "model"),
    (chat(messages="hi"), "messages"),
    (chat(messages=[{"role": "boss", "content": ""}]), "messages[0].role"),
    (chat(messages=[{**USER, "images": ["aGk="]}]), "messages[0].images"),
    (chat(messages=[{**USER, "content": [{"type": "text"}]}]), "messages[0].content"),
    (chat(stream="no"), "stream"),
    (chat(format="yaml"), "format"),
    (chat(format=[1]), "format"),
    (chat(think=True), "think"),
    (chat(keep_alive="soon"), "keep_alive"),
    (chat(keep_alive=True), "keep_alive"),
    (chat(keep_alive="5m3"), "keep_alive"),
    (chat(options={"temperature": 3}), "options.temperature"),
    (chat(options={"temprature": 1}), "options.temprature"),
    (chat(options={"num_predict": -3}), "options.num_predict"),
    (chat(options={"num_ctx": "big"}), "options.num_ctx"),
    (chat(options={"mirostat": 2}), "options.mirostat"),
    (chat(options={"repeat_last_n": 64}), "options.repeat_last_n"),
    (chat(options=[1]), "options"),
    (chat(tools=[{"type": "function"}]), "tools[0].function"),
    (chat(other=1), "other"),
]


@pytest.mark.parametrize(("body", "param"), BAD)
def test_what_is_refused_is_named(body: bytes, param: str | None) -> None:
    with pytest.raises(RequestError) as caught:
        parse_chat(body)
    assert (caught.value.status, caught.value.param) == (400, param)


@pytest.mark.parametrize(
    ("more", "param"),
    [
        ({"suffix": "x"}, "suffix"),
        ({"context": [1, 2]}, "context"),
        ({"template": "x"}, "template"),
        ({"images": ["x"]}, "images"),
        ({"raw": True, "system": "x"}, "system"),
    ],
)
def test_what_generate_refuses(more: dict[str, Any], param: str) -> None:
    with pytest.raises(RequestError) as caught:
        parse_generate(generate(**more))
    assert caught.value.param == param


def test_everything_reaches_the_generation_request() -> None:
    options = {
        "temperature": 0, "top_k": 3, "top_p": 0.5, "min_p": 0.1, "seed": 4, "num_predict": 9,
        "repeat_penalty": 1.2, "presence_penalty": 1, "frequency_penalty": -1, "stop": ["x"],
        "num_ctx": 8192, "num_gpu": 1, "use_mmap": True,
    }  # fmt: skip
    schema = {"type": "object"}
    asked = parse_chat(
        chat(options=options, format=schema, keep_alive="1h30m", logprobs=True, top_logprobs=2)
    )
    request = asked.generation
    assert request is not None
    sampling = request.sampling
    assert (asked.stream, asked.keep_alive_s) == (True, 5400.0)
    assert (sampling.temperature, sampling.top_k, sampling.top_p, sampling.min_p) == (
        0,
        3,
        0.5,
        0.1,
    )
    assert (sampling.seed, sampling.repetition_penalty) == (4, 1.2)
    assert (sampling.presence_penalty, sampling.frequency_penalty) == (1.0, -1.0)
    assert (request.max_tokens, request.stop, request.logprobs) == (9, ("x",), 2)
    assert request.grammar is not None
    assert json.loads(request.grammar.text) == schema


def test_defaults_are_ollamas() -> None:
    request = parse_chat(chat(options=None, tools=None)).generation
    assert request is not None
    sampling = request.sampling
    assert (sampling.temperature, sampling.top_k, sampling.top_p) == (0.8, 40, 0.9)
    assert (sampling.seed, request.max_tokens, request.grammar) == (None, None, None)


def test_generate_is_a_chat_unless_it_is_raw() -> None:
    asked = parse_generate(generate(system="be brief")).generation
    assert asked is not None
    assert asked.messages == ({"role": "system", "content": "be brief"}, USER)
    raw = parse_generate(generate(raw=True)).generation
    assert raw is not None
    assert (raw.prompt, raw.messages) == ("hi", None)


@pytest.mark.parametrize("body", [chat(messages=[]), json.dumps({"model": "m"}).encode()])
def test_nothing_to_say_is_nothing_to_generate(body: bytes) -> None:
    assert parse_chat(body).generation is None
    assert parse_generate(json.dumps({"model": "m"}).encode()).generation is None


@pytest.mark.parametrize(
    ("given", "seconds"),
    [(0, 0.0), (90, 90.0), (-1, FOR_EVER_S), ("0", 0.0), ("-1", FOR_EVER_S), ("5m", 300.0),
     ("1.5s", 1.5), ("300ms", 0.3), ("-1m", FOR_EVER_S)],
)  # fmt: skip
def test_keep_alive(given: Any, seconds: float) -> None:
    assert parse_chat(chat(keep_alive=given)).keep_alive_s == pytest.approx(seconds)


def test_calls_of_earlier_turns_are_written_as_templates_read_them() -> None:
    call = {"function": {"name": "f", "arguments": {"é": 1}}}
    said = [
        USER,
        {"role": "assistant", "content": "", "tool_calls": [call], "thinking": ""},
        {"role": "tool", "content": "3", "tool_name": "f"},
    ]
    request = parse_chat(chat(messages=said)).generation
    assert request is not None
    assert request.messages is not None
    [made] = request.messages[1]["tool_calls"]
    assert json.loads(made["function"]["arguments"]) == {"é": 1}
    assert request.messages[2] == {"role": "tool", "content": "3", "name": "f"}


def test_names() -> None:
    assert resolved("m:latest", ["m"]) == "m"
    assert resolved("m:latest", ["m:latest", "m"]) == "m:latest"
    assert resolved("m", ["m"]) == "m"
    assert parse_show(b'{"name": "m"}') == parse_show(b'{"model": "m"}') == "m"


def test_a_stream_is_an_object_a_line() -> None:
    lines = Lines(OllamaShape("chat", "m"))
    data = lines.of([Delta("a\nb", 1), Delta("c", 1)])
    assert data.endswith(b"\n")
    assert data.count(b"\n") == 1
    part = json.loads(data)
    assert part["message"]["content"] == "a\nbc"
    assert part["done"] is False
    assert lines.of([Delta("", 1)]) == b""
    end = json.loads(lines.ending(DONE))
    assert (end["done"], end["done_reason"]) == (True, "stop")
    assert (end["prompt_eval_count"], end["eval_count"]) == (3, 2)
    assert (end["prompt_eval_duration"], end["total_duration"]) == (4_000_000, 7_500_000)
    assert json.loads(lines.failure(RequestError("no"))) == {"error": "no"}


def test_calls_go_out_whole_and_what_is_none_is_text() -> None:
    """Arguments come in pieces, and are an object here; those of an answer that was cut off are
    none."""
    lines = Lines(OllamaShape("chat", "m"))
    pieces = [
        [{"index": 0, "id": "c", "name": "f", "arguments": ""}],
        [{"index": 0, "arguments": '{"a"'}],
        [
            {"index": 0, "arguments": ": 1}"},
            {"index": 1, "id": "d", "name": "g", "arguments": '{"b'},
        ],
    ]
    for piece in pieces:
        assert lines.of([Delta("", 1, tool_calls=piece)]) == b""
    calls, end = map(json.loads, lines.ending(DONE).splitlines())
    assert calls["message"]["tool_calls"] == [
        {"id": "c", "function": {"name": "f", "arguments": {"a": 1}}}
    ]
    assert calls["message"]["content"] == '{"name": "g", "arguments": {"b'
    assert (calls["done"], end["done"]) == (False, True)


def test_generate_answers_in_its_own_field() -> None:
    gathered = Gathered(texts=["a", "b"])
    whole = OllamaShape("generate", "m").whole(gathered, DONE)
    assert whole["response"] == "ab"
    assert "message" not in whole
