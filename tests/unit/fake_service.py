"""A service on a Unix socket that answers what a test says and remembers what it was asked."""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from aiohttp import web


@dataclass(frozen=True)
class Events:
    """A server-sent stream. `cut` ends the connection without the closing `[DONE]`."""

    events: Sequence[Mapping[str, Any]]
    cut: bool = False


@dataclass
class FakeService:
    """Answers by "METHOD /path": a JSON value, a (status, JSON) pair, or `Events`."""

    answers: dict[str, Any] = field(default_factory=dict)
    asked: list[tuple[str, Any]] = field(default_factory=list)

    async def handle(self, request: web.Request) -> web.StreamResponse:
        body = await request.read()
        what = f"{request.method} {request.path}"
        if what == "GET /healthz":
            return web.json_response({"status": "ok"})
        self.asked.append((what, json.loads(body) if body else None))
        answer = self.answers.get(what, (404, {"error": {"message": f"no route {what}"}}))
        if isinstance(answer, Events):
            return await self._stream(request, answer)
        status, value = answer if isinstance(answer, tuple) else (200, answer)
        return web.json_response(value, status=status)

    async def _stream(self, request: web.Request, answer: Events) -> web.StreamResponse:
        response = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
        await response.prepare(request)
        for event in answer.events:
            await response.write(b"data: " + json.dumps(event).encode() + b"\n\n")
        if not answer.cut:
            await response.write(b"data: [DONE]\n\n")
        return response


@contextmanager
def serving(path: Path) -> Iterator[FakeService]:
    """The service on `path`, in a thread of its own, for as long as the block runs."""
    service = FakeService()
    loop = asyncio.new_event_loop()
    ready = threading.Event()
    stop = asyncio.Event()

    async def serve() -> None:
        app = web.Application()
        app.router.add_route("*", "/{path:.*}", service.handle)
        runner = web.AppRunner(app)
        await runner.setup()
        await web.UnixSite(runner, str(path)).start()
        ready.set()
        await stop.wait()
        await runner.cleanup()

    thread = threading.Thread(target=lambda: loop.run_until_complete(serve()))
    thread.start()
    try:
        assert ready.wait(60)
        yield service
    finally:
        loop.call_soon_threadsafe(stop.set)
        thread.join(60)
        loop.close()
