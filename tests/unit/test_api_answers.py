"""A stream that waits for its first token, over a real connection."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager

import pytest
from aiohttp import ClientResponse, web
from aiohttp.test_utils import TestClient, TestServer

from homespecd.api import answers, sse
from homespecd.api.errors import error_response
from homespecd.api.ollama_answers import Lines, OllamaShape
from homespecd.api.responses import Chunks, Shape
from homespecd.api.service import Delta, Done, Event
from homespecd.errors import RequestError

DONE = Done(("stop",), {"prompt_tokens": 1, "completion_tokens": 1}, {})
TEXT = [Delta("Hi", 1), DONE]
FAULT = [RequestError("too long", status=400)]
SSE = Chunks(Shape.new("completion", model="m"))
NDJSON = Lines(OllamaShape("chat", "m"))


class SlowAnswer:
    """Says nothing until it is released, then everything at once."""

    id = "1"

    def __init__(self, events: Sequence[Event]) -> None:
        self.released = asyncio.Event()
        self.left = asyncio.Event()
        self._events = events

    async def events(self) -> Sequence[Event]:
        try:
            await self.released.wait()
        finally:
            self.left.set()
        return self._events

    def close(self) -> None:
        """Nothing goes on here."""


@asynccontextmanager
async def streaming(answer: SlowAnswer, wire: answers.Wire) -> AsyncIterator[TestClient]:  # type: ignore[type-arg]
    async def handle(request: web.Request) -> web.StreamResponse:
        try:
            return await answers.stream(request, answer, wire)
        except RequestError as error:
            return error_response(error)

    app = web.Application()
    app.router.add_get("/", handle)
    async with TestClient(TestServer(app, handler_cancellation=True)) as client:
        yield client


async def line(response: ClientResponse) -> bytes:
    return (await response.content.readline()).strip()


async def test_a_long_silence_is_filled_with_comments(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sse, "SILENCE_S", 0.01)
    answer = SlowAnswer(TEXT)
    async with streaming(answer, SSE) as client:
        response = await client.get("/")  # the head comes before any token
        assert response.status == 200
        for _ in range(3):
            assert await line(response) == b": keep-alive"
            assert await line(response) == b""
        answer.released.set()
        rest = await response.text()
    assert '"text":"Hi"' in rest
    assert rest.endswith("data: [DONE]\n\n")


async def test_lines_of_json_have_no_comments(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sse, "SILENCE_S", 0.01)
    answer = SlowAnswer(TEXT)
    async with streaming(answer, NDJSON) as client:
        response = await client.get("/")
        answer.released.set()
        assert (await line(response)).startswith(b'{"model":"m"')


async def test_a_fault_known_in_time_is_a_status() -> None:
    answer = SlowAnswer(FAULT)
    answer.released.set()
    async with streaming(answer, SSE) as client:
        response = await client.get("/")
        assert response.status == 400


async def test_a_fault_known_later_is_an_event(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sse, "SILENCE_S", 0.01)
    answer = SlowAnswer(FAULT)
    async with streaming(answer, SSE) as client:
        response = await client.get("/")
        assert await line(response) == b": keep-alive"
        answer.released.set()
        rest = await response.text()
    assert "event: error" in rest
    assert "finish_reason" not in rest
    assert "[DONE]" not in rest


async def test_a_client_that_leaves_early_ends_the_wait(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sse, "SILENCE_S", 0.01)
    answer = SlowAnswer(TEXT)
    async with streaming(answer, SSE) as client:
        response = await client.get("/")
        response.close()
        async with asyncio.timeout(60):
            await answer.left.wait()
    assert not answer.released.is_set()
