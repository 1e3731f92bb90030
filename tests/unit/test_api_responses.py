"""The shapes of answers and errors, and the bytes of a stream."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from homespecd.api import sse
from homespecd.api.errors import config_error_response, error_response
from homespecd.api.gathering import gather
from homespecd.api.metrics import render
from homespecd.api.ollama_answers import Lines, OllamaShape
from homespecd.api.responses import Chunks, Kind, Shape
from homespecd.api.service import Delta, Done
from homespecd.daemon.timings import Timings
from homespecd.errors import ConfigError, Problem, RequestError

DONE = Done(
    ["stop"], {"prompt_tokens": 3, "completion_tokens": 2, "cached_tokens": 1}, {"mode": "x"}
)


def parsed(event: bytes) -> Any:
    assert event.startswith(b"data: ")
    assert event.endswith(b"\n\n")
    assert event.count(b"\n") == 2
    return json.loads(event[6:])


@pytest.mark.parametrize("kind", ["chat", "completion"])
@pytest.mark.parametrize(
    "text", ["plain", 'quo"te', "new\nline\r", "é🙂\u2028", "\\u0000", "\0text\0"]
)
def test_a_filled_template_equals_the_chunk_built_anew(kind: Kind, text: str) -> None:
    shape = Shape.new(kind, model="m", include_usage=False)
    [choice] = parsed(shape.text_chunks().fill(text))["choices"]
    assert (choice["delta"]["content"] if kind == "chat" else choice["text"]) == text
    assert choice["finish_reason"] is None


@given(st.text() | st.text(st.sampled_from('a\n\r\x0b\x0c\x1c\x1d\x1e\x85\u2028\u2029"\\')))
def test_nothing_in_a_text_ends_a_line(text: str) -> None:
    """However a reader splits lines: as bytes, or as Python's text does, and Ollama's client."""
    event = Shape.new("chat", model="m", include_usage=False).text_chunks().fill(text)
    assert event.decode().splitlines()[1:] == [""]
    assert parsed(event)["choices"][0]["delta"]["content"] == text
    lines = Lines(OllamaShape("generate", "m")).of([Delta(text, 1)]).decode().splitlines()
    assert [json.loads(one)["response"] for one in lines] == ([text] if text else [])


def test_usage_is_in_every_chunk_only_when_asked_for() -> None:
    plain = Shape.new("chat", model="m", include_usage=False)
    asked = Shape.new("chat", model="m", include_usage=True)
    assert "usage" not in parsed(plain.text_chunks().fill("a"))
    assert parsed(asked.text_chunks().fill("a"))["usage"] is None
    chunk = asked.usage_chunk(DONE)
    assert chunk["choices"] == []
    assert chunk["usage"] == {
        "prompt_tokens": 3,
        "completion_tokens": 2,
        "total_tokens": 5,
        "prompt_tokens_details": {"cached_tokens": 1},
    }


def test_who_speaks_comes_first_in_chats_only() -> None:
    first = Shape.new("chat", model="m", include_usage=False).first_chunk(0)
    assert first is not None
    assert first["choices"][0]["delta"] == {"role": "assistant", "content": ""}
    assert Shape.new("completion", model="m", include_usage=False).first_chunk(0) is None


def test_an_error_event_has_a_type_of_its_own() -> None:
    assert sse.error_event({"error": {"message": "no"}}) == (
        b'event: error\ndata: {"error":{"message":"no"}}\n\n'
    )


@pytest.mark.parametrize(
    ("status", "kind"),
    [
        (400, "invalid_request_error"),
        (401, "authentication_error"),
        (403, "permission_error"),
        (404, "invalid_request_error"),
        (429, "rate_limit_error"),
        (500, "server_error"),
        (503, "server_error"),
    ],
)
def test_errors_have_the_usual_body(status: int, kind: str) -> None:
    error = RequestError("bad", status=status, code="c", param="p", hint="h", retry_after_s=1.2)
    response = error_response(error)
    assert response.status == status
    assert response.headers["Retry-After"] == "2"
    assert isinstance(response.body, bytes)
    body = json.loads(response.body)
    assert body == {"error": {"message": "bad (h)", "type": kind, "param": "p", "code": "c"}}


def test_a_bad_reload_names_every_problem() -> None:
    problems = [Problem("f", 1, "a", "wrong", "so"), Problem("f", 2, "b", "worse")]
    response = config_error_response(ConfigError(problems))
    assert response.status == 422
    assert isinstance(response.body, bytes)
    body = json.loads(response.body)
    assert [(one["line"], one["key"]) for one in body["problems"]] == [(1, "a"), (2, "b")]
    assert body["error"]["code"] == "invalid_config"


def test_metrics_carry_the_totals_by_model() -> None:
    totals = dict.fromkeys(
        ("requests", "failures", "prompt_tokens", "completion_tokens", "rounds", "proposed"), 3
    )
    model = {
        "name": "m",
        "state": "ready",
        "active": 1,
        "waiting": 0,
        "memory_bytes": 9,
        "totals": {**totals, "accepted": 2},
        "loads": 4,
        "timings": Timings().as_dict(),
        "speculation": {
            "drafters": [{"name": "d", "speedup": 1.5, "acceptance_rate": None}, {"name": "e"}]
        },
    }
    model["timings"]["token_s"] = {"buckets": {"0.1": 2, "+Inf": 3}, "sum": 0.5}
    clients = [{"uid": None, "requests": 2, "completion_tokens": 7}]
    config = {"generation": 3, "last_error": "no"}
    memory = {"used_bytes": 9, "cap_bytes": 10}
    lag = {"buckets": {"0.05": 7, "+Inf": 8}, "sum": 0.25}
    snapshot = {"models": [model], "memory": memory, "uptime_s": 1.5, "loop_lag_s": lag}
    page = render({**snapshot, "clients": clients, "config": config}).decode()
    assert 'homespecd_loop_lag_seconds_bucket{le="0.05"} 7.0' in page
    assert 'homespecd_draft_tokens_accepted_total{model="m"} 2.0' in page
    assert 'homespecd_model_ready{model="m"} 1.0' in page
    assert "homespecd_memory_cap_bytes 10.0" in page
    assert 'homespecd_model_loads_total{model="m"} 4.0' in page
    assert 'homespecd_token_seconds_bucket{le="0.1",model="m"} 2.0' in page
    assert 'homespecd_token_seconds_count{model="m"} 3.0' in page
    assert 'homespecd_drafter_speedup{drafter="d",model="m"} 1.5' in page
    assert "homespecd_drafter_acceptance_rate{" not in page
    assert 'homespecd_client_completion_tokens_total{uid="tcp"} 7.0' in page
    assert "homespecd_config_generation 3.0" in page
    assert "homespecd_config_last_reload_successful 0.0" in page


def test_histograms_count_what_is_not_above_a_bound() -> None:
    timings = Timings()
    for ttft_ms, speed in ((10.0, 100.0), (10.1, None), (1e6, 1.0)):
        timings.add({"ttft_ms": ttft_ms, "decode_tok_s": speed})
    found = timings.as_dict()
    assert found["first_token_s"]["buckets"]["0.01"] == 1
    assert found["first_token_s"]["buckets"]["0.025"] == 2
    assert found["first_token_s"]["buckets"]["60"] == 2
    assert found["first_token_s"]["buckets"]["+Inf"] == 3
    assert found["token_s"]["buckets"]["+Inf"] == 2
    assert found["token_s"]["sum"] == 1.01


def test_calls_in_pieces_are_numbered_and_named_once() -> None:
    shape = Shape.new("chat", model="m")
    chunks = Chunks(shape)
    pieces = [
        {"index": 0, "id": "c", "name": "f", "arguments": ""},
        {"index": 0, "arguments": '{"a"'},
        {"index": 0, "arguments": ": 1}"},
        {"index": 1, "id": "d", "name": "g", "arguments": "{}"},
    ]
    deltas = [Delta("", 1, tool_calls=[one]) for one in pieces]
    sent = [parsed(chunks.of([one]))["choices"][0]["delta"] for one in deltas]
    first, second = {"name": "f", "arguments": ""}, {"name": "g", "arguments": "{}"}
    assert [one["tool_calls"] for one in sent] == [
        [{"index": 0, "id": "c", "type": "function", "function": first}],
        [{"index": 0, "function": {"arguments": '{"a"'}}],
        [{"index": 0, "function": {"arguments": ": 1}"}}],
        [{"index": 1, "id": "d", "type": "function", "function": second}],
    ]
    message = shape.whole(gather(deltas, 1), DONE)["choices"][0]["message"]
    assert [one["function"] for one in message["tool_calls"]] == [
        {"name": "f", "arguments": '{"a": 1}'},
        second,
    ]
    assert message["content"] is None
