"""Connections that say nothing, too slowly, or too often, over a real server in this process."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web

from homespecd.api import answers
from homespecd.api.connections import Connections, Standing, to_close
from homespecd.api.responses import Chunks, Shape
from homespecd.api.service import Delta, Done, Event
from homespecd.daemon.streams import RequestStream
from homespecd.errors import RequestError

HEAD = b"GET /%s HTTP/1.1\r\nHost: x\r\n"
DONE = Done(("stop",), {"prompt_tokens": 1, "completion_tokens": 1}, {})


@pytest.mark.parametrize(
    ("standing", "chosen"),
    [
        ([], None),
        ([(1, None), (2, None)], None),
        ([(1, 5.0), (1, 3.0), (1, 4.0)], (1, 3.0)),
        # Who has most gives one, busy ones counted too; others' old ones stay.
        ([(1, 1.0), (2, 5.0), (2, None), (2, 4.0)], (2, 4.0)),
        ([(1, 1.0), (2, None), (2, None)], (1, 1.0)),
        # A connection that is kept for the next request is worth more than one that never had any.
        ([(1, 1.0, True), (1, 3.0, False), (1, 4.0, False)], (1, 3.0, False)),
        ([(1, 2.0, True), (1, 1.0, True)], (1, 1.0, True)),
    ],
)
def test_which_connection_goes(
    standing: list[tuple[Any, ...]], chosen: tuple[Any, ...] | None
) -> None:
    found = to_close(Standing(*one) for one in standing)
    assert found == (None if chosen is None else Standing(*chosen))


@dataclass
class Serving:
    path: str
    connections: Connections

    async def open(self) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        return await asyncio.open_unix_connection(self.path)

    async def until(self, condition: Callable[[], bool]) -> None:
        async with asyncio.timeout(60):
            while not condition():
                await asyncio.sleep(0.01)


class Endless:
    """An answer that has more for whoever takes it."""

    id = "1"

    def __init__(self) -> None:
        self.asked = 0

    async def events(self) -> list[Event]:
        self.asked += 1
        return [Delta("x" * 100_000, 1)]

    def close(self) -> None:
        """Nothing goes on here."""


@asynccontextmanager
async def serving(
    folder: Path, *, most: int = 100, idle_s: float = 30.0
) -> AsyncIterator[tuple[Serving, Endless]]:
    connections = Connections(most=most, idle_s=idle_s)
    answer = Endless()

    async def handle(request: web.Request) -> web.StreamResponse:
        with connections.answering(request):
            if request.path == "/endless":
                return await answers.stream(
                    request, answer, Chunks(Shape.new("completion", model="m"))
                )
            if request.path == "/slow":
                await asyncio.sleep(1.5 * connections.idle_s)
            return web.Response(text=str(connections.is_tcp(request)))

    app = web.Application()
    app.router.add_get("/{path}", handle)
    runner = web.AppRunner(app, shutdown_timeout=0.1)
    await runner.setup()
    http = runner.server
    assert http is not None
    path = str(folder / "s")
    server = await asyncio.get_running_loop().create_unix_server(
        lambda: connections.protocol(http), path
    )
    try:
        yield Serving(path, connections), answer
    finally:
        server.close()
        await runner.cleanup()


@pytest.mark.parametrize("sent", [b"", b"GET /x HT", HEAD % b"x" + b"X-Slow: 1\r\n"])
async def test_a_head_that_does_not_come_ends_the_connection(tmp_path: Path, sent: bytes) -> None:
    async with serving(tmp_path, idle_s=0.1) as (one, _):
        reader, writer = await one.open()
        writer.write(sent)
        async with asyncio.timeout(60):
            assert await reader.read() == b""
        await one.until(lambda: len(one.connections) == 0)
        writer.close()


async def test_drops_of_a_head_keep_nothing_open(tmp_path: Path) -> None:
    async with serving(tmp_path, idle_s=0.15) as (one, _):
        reader, writer = await one.open()
        for drop in HEAD % b"x" * 100:
            if reader.at_eof() or writer.is_closing():
                break
            writer.write(bytes([drop]))
            await asyncio.sleep(0.01)
        await one.until(lambda: len(one.connections) == 0)
        writer.close()


async def test_what_is_being_answered_is_not_idle(tmp_path: Path) -> None:
    async with serving(tmp_path, idle_s=0.4) as (one, _):
        reader, writer = await one.open()
        writer.write(HEAD % b"slow" + b"\r\n")
        answer = await reader.readuntil(b"False")
        assert answer.startswith(b"HTTP/1.1 200")
        assert await reader.read() == b""  # and then it is
        writer.close()


async def test_too_many_take_each_others_place(tmp_path: Path) -> None:
    """The oldest idle one goes; who came last is answered."""
    async with serving(tmp_path, most=10) as (one, _):
        opened = await asyncio.gather(*(one.open() for _ in range(40)))
        reader, writer = opened[-1]
        writer.write(HEAD % b"x" + b"\r\n")
        assert (await reader.readline()).startswith(b"HTTP/1.1 200")
        assert len(one.connections) == 10
        async with asyncio.timeout(60):
            assert [await reader.read() for reader, _ in opened[:30]] == [b""] * 30
        for _, writer in opened:
            writer.close()


async def test_a_client_that_takes_nothing_is_cut_off(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(answers, "STALLED_S", 0.1)
    async with serving(tmp_path) as (one, answer):
        _, writer = await one.open()
        writer.transport.pause_reading()  # type: ignore[attr-defined]
        writer.write(HEAD % b"endless" + b"\r\n")
        await one.until(lambda: answer.asked > 0)
        await one.until(lambda: len(one.connections) == 0)
        assert answer.asked < 50  # what was made for it is bounded by what the socket holds
        writer.close()


async def test_what_nobody_takes_is_one_event_per_choice() -> None:
    over: list[bool] = []
    stream = RequestStream(cancel=lambda: None)
    for index in range(1000):
        note = {"token": str(index)}
        stream.push(Delta("ab", 1, index % 2, [note]))
    stream.when_over(lambda: over.append(True))
    assert not over
    stream.push(DONE)
    assert over == [True]  # known before anybody takes it
    first, second, end = await stream.events()
    assert isinstance(first, Delta)
    assert isinstance(second, Delta)
    assert (first.text, first.tokens, first.index) == ("ab" * 500, 500, 0)
    assert [one["token"] for one in second.logprobs or ()] == [str(i) for i in range(1, 1000, 2)]
    assert end is DONE


async def test_pieces_of_a_call_that_nobody_takes_become_one() -> None:
    stream = RequestStream(cancel=lambda: None)
    stream.push(Delta("", 1, tool_calls=[{"index": 0, "id": "a", "name": "f", "arguments": ""}]))
    for piece in ("{", '"a":', "1}"):
        stream.push(Delta("", 1, tool_calls=[{"index": 0, "arguments": piece}]))
    stream.push(Delta("x", 1))
    stream.push(Delta("", 1, tool_calls=[{"index": 1, "id": "b", "name": "g", "arguments": ""}]))
    stream.push(RequestError("gone", status=503))
    delta, error = await stream.events()
    assert isinstance(delta, Delta)
    assert delta.text == "x"
    assert [dict(one) for one in delta.tool_calls or ()] == [
        {"index": 0, "id": "a", "name": "f", "arguments": '{"a":1}'},
        {"index": 1, "id": "b", "name": "g", "arguments": ""},
    ]
    assert isinstance(error, RequestError)


async def test_an_end_that_came_first_is_told_at_once() -> None:
    over: list[bool] = []
    stream = RequestStream(cancel=lambda: None)
    stream.push(RequestError("gone", status=503))
    stream.when_over(lambda: over.append(True))
    assert over == [True]
