"""What a stream says: whole characters, usage where asked, errors as errors; and hang-ups."""

from __future__ import annotations

import json
import os
import signal
import socket
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from tests.integration.running_service import PATIENCE_S, wait_for
from tests.integration.service import (
    CHAT,
    COMPLETION,
    Served,
    Service,
    chat,
    chat_ids,
    complete,
    deltas,
    drafting,
    module_service,
    prompts,
    spoken,
    text_of,
)
from tests.oracle import ASSISTANT, Oracle, Toy, say

pytestmark = pytest.mark.integration

EMOJI = "a😀é€ 👩🏽‍🚀😀😀 日本語 ✓\u200d!"
EMOTIVE = Toy(script=say(EMOJI), script_after=ASSISTANT)
BYTES = Toy(alphabet="bytes")
FAILS_AT = 60
FAILING = Toy(fail_at=FAILS_AT)
NAN = Toy(nan_at=FAILS_AT)
LONG = Toy(context=1_000_000)
PLAIN = Toy()

running, service = module_service(
    Served("emotive", EMOTIVE, ("d1", "d3")),
    Served("bytes", BYTES, ("d1", "d3", "ngram")),
    Served("failing", FAILING, ("d1",)),
    Served("nan", NAN, ("ngram",)),
    Served("long", LONG, ("d3",), context=1_000_000),
    Served("plain", PLAIN, ("d1",)),
    blocks_as_asked=True,
)


@pytest.mark.parametrize("path", [CHAT, COMPLETION])
@pytest.mark.parametrize("draft", [None, "d1", "d3"])
def test_characters_are_whole(service: Service, path: str, draft: str | None) -> None:
    """D1: letters of one to four bytes, one to eight tokens, across the borders of blocks."""
    for k in (1, 2, 3, 5, 8):
        asked = drafting("emotive", draft, k)
        if path == CHAT:
            body = chat("emotive", "hi", **asked)
        else:
            body = complete("emotive", "<|assistant|>", max_tokens=200, **asked)
        parts = deltas(service.stream(path, body))
        assert "".join(parts) == EMOJI
        assert not any("\ufffd" in part for part in parts)
        assert text_of(service.ask(path, body)) == EMOJI


def test_a_stream_is_the_text_in_pieces(service: Service) -> None:
    """D4: 100 random sequences of ids, most of them no UTF-8."""
    drafts = ("d1", "d3", "ngram", None)
    replaced = 0
    for index, prompt in enumerate(prompts(100)):
        asked = drafting("bytes", drafts[index % 4], 1 + index % 8)
        body = complete("bytes", prompt, max_tokens=30, **asked)
        whole = text_of(service.ask(COMPLETION, body))
        assert whole == spoken(BYTES, prompt, 30)
        assert "".join(deltas(service.stream(COMPLETION, body))) == whole
        replaced += "\ufffd" in whole
    assert replaced > 50


@pytest.mark.parametrize("draft", [None, "d1"])
def test_usage_comes_when_asked_for(service: Service, draft: str | None) -> None:
    """D6: as its own last chunk without choices, equal to the whole answer's; else not at all."""
    body = chat("plain", "count", max_tokens=20, **drafting("plain", draft))
    whole = service.ask(CHAT, body)
    chunks = [data for _, data in service.stream(CHAT, body)]
    assert chunks.pop() == "[DONE]"
    assert all(chunk["choices"] and "usage" not in chunk for chunk in chunks)
    asked = {**body, "stream_options": {"include_usage": True}}
    chunks = [data for _, data in service.stream(CHAT, asked)]
    assert chunks.pop() == "[DONE]"
    last = chunks.pop()
    assert last["choices"] == []
    usage, expected = last["usage"], whole["usage"]
    for name in ("prompt_tokens", "completion_tokens", "total_tokens"):
        assert usage[name] == expected[name]
    assert usage["prompt_tokens"] == len(chat_ids("count"))
    assert all(chunk["choices"] and chunk["usage"] is None for chunk in chunks)


@pytest.mark.parametrize("draft", [None, "d1"])
def test_a_failure_after_some_tokens_is_an_error(service: Service, draft: str | None) -> None:
    """D8: the graph fails at run time; the next request is answered."""
    prompt = prompts(1, length=FAILS_AT - 20)[0]
    body = complete("failing", prompt, max_tokens=100, **drafting("failing", draft, 4))
    events = service.stream(COMPLETION, body)
    kind, last = events[-1]
    assert kind == "error"
    assert last["error"]["message"]
    assert all(data["choices"][0]["finish_reason"] is None for _, data in events[:-1])
    said = "".join(deltas(events[:-1]))
    assert said
    assert spoken(PLAIN, prompt, 100).startswith(said)
    if draft is None:
        assert said == spoken(PLAIN, prompt, 21)
    response = service.post(COMPLETION, body)
    assert response.status_code == 500
    assert set(response.json()["error"]) == {"message", "type", "param", "code"}
    answer = service.complete("failing", prompt, max_tokens=10, **drafting("failing", draft, 4))
    assert text_of(answer) == spoken(PLAIN, prompt, 10)
    assert service.model("failing")["loads"] == 1


def test_logits_that_are_no_numbers_cost_their_request_an_error(service: Service) -> None:
    prompt = prompts(1, length=FAILS_AT - 9)[0]
    response = service.post(COMPLETION, complete("nan", prompt, max_tokens=100))
    assert response.status_code == 500
    assert "NaN" in response.json()["error"]["message"]
    events = service.stream(COMPLETION, complete("nan", prompt, max_tokens=100))
    assert events[-1][0] == "error"
    assert "".join(deltas(events[:-1])) == spoken(PLAIN, prompt, 10)
    assert text_of(service.complete("nan", prompt, max_tokens=8)) == spoken(PLAIN, prompt, 8)


@pytest.mark.parametrize("stream", [True, False])
@pytest.mark.parametrize("draft", [None, "d3"])
def test_a_hang_up_stops_the_work(service: Service, stream: bool, draft: str | None) -> None:
    """K1: the model has one slot, so the next request shows that it was given up."""
    body = complete(
        "long", "endless", max_tokens=500_000, stream=stream, **drafting("long", draft, 4)
    )
    with raw_request(service, body) as connection:
        if stream:
            seen = b""
            while seen.count(b"data: ") < 5:
                piece = connection.recv(4096)
                assert piece
                seen += piece
        wait_for(lambda: service.model("long")["active"] == 1, what=service.log)
    wait_for(lambda: service.status()["queue"] == {"active": 0, "waiting": 0}, what=service.log)
    answer = service.complete("long", "next", max_tokens=5)
    assert text_of(answer) == spoken(LONG, list(b"next"), 5)
    assert service.model("long")["loads"] == 1


def raw_request(service: Service, body: dict[str, Any]) -> socket.socket:
    """A request on a connection of its own, which the caller may hang up."""
    data = json.dumps(body).encode()
    head = f"POST {COMPLETION} HTTP/1.1\r\nHost: h\r\nContent-Length: {len(data)}\r\n\r\n"
    connection = socket.socket(socket.AF_UNIX)
    connection.settimeout(PATIENCE_S)
    connection.connect(str(service.socket))
    connection.sendall(head.encode() + data)
    return connection


def test_a_killed_worker_costs_its_own_requests_only(service: Service) -> None:
    """An error event for who was served by it; another model goes on, and the next one is well."""
    body = complete("long", "endless", max_tokens=500_000, **drafting("long", "d3", 4))
    other = complete("plain", "hello", max_tokens=400, **drafting("plain", "d1", 2))
    service.complete("plain", "hello", max_tokens=1)
    service.complete("long", "hello", max_tokens=1)
    loads = service.model("plain")["loads"]
    with (
        ThreadPoolExecutor(1) as pool,
        service.http.stream("POST", COMPLETION, json={**body, "stream": True}) as response,
    ):
        lines = response.iter_lines()
        for _ in range(8):
            next(lines)
        beside = pool.submit(service.ask, COMPLETION, other)
        os.kill(service.model("long")["pid"], signal.SIGKILL)
        rest = [line for line in lines if line]
        assert text_of(beside.result()) == spoken(PLAIN, list(b"hello"), 400)
    assert rest[-2] == "event: error"
    error = json.loads(rest[-1].removeprefix("data: "))["error"]
    assert error["code"] == "worker_died"
    assert "SIGKILL" in error["message"]
    reasons = [json.loads(line.removeprefix("data: ")) for line in rest if '"choices"' in line]
    assert all(chunk["choices"][0]["finish_reason"] is None for chunk in reasons)
    answer = service.complete("long", "next", max_tokens=5)
    assert text_of(answer) == Oracle.text(Oracle(LONG).greedy(list(b"next"), 5))
    assert service.model("plain")["loads"] == loads
