"""From an answer's events to the response, streamed or whole."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Mapping, Sequence
from typing import Protocol

from aiohttp import web

from homespecd.api import sse
from homespecd.api.errors import json_response
from homespecd.api.gathering import gather
from homespecd.api.responses import Shape
from homespecd.api.service import Answer, Delta, Done, Event
from homespecd.errors import RequestError

# A client that takes nothing for so long has been stopped, or forgotten: its connection goes.
STALLED_S = 300.0


async def collected(answer: Answer) -> tuple[list[Delta], Done]:
    """All of an answer. Raises the RequestError it ends with, if it does."""
    deltas: list[Delta] = []
    while True:
        for event in await answer.events():
            if isinstance(event, Delta):
                deltas.append(event)
            elif isinstance(event, Done):
                return deltas, event
            else:
                raise event


async def whole(answer: Answer, shape: Shape) -> web.Response:
    """Collect the answer. Raises the RequestError it ends with, if it does."""
    deltas, done = await collected(answer)
    return json_response(shape.whole(gather(deltas, shape.choices), done))


class Wire(Protocol):
    """How a stream is written down."""

    @property
    def headers(self) -> Mapping[str, str]: ...

    @property
    def keep_alive(self) -> bytes:
        """What readers pass over; b"" = there is no such thing."""
        ...

    def opening(self) -> bytes: ...

    def of(self, deltas: Sequence[Delta]) -> bytes: ...

    def ending(self, done: Done) -> bytes: ...

    def failure(self, error: RequestError) -> bytes: ...


class _StalledError(Exception):
    """The client takes nothing any more."""


async def stream(request: web.Request, answer: Answer, wire: Wire) -> web.StreamResponse:
    """Send the answer as it comes.

    The head of the response waits for the first event, so that what is wrong with the request is
    still an ordinary status; but not for ever: a client that hears nothing gives up. An error later
    on becomes an error in the stream, which then ends without anything that looks like success.
    """
    first = asyncio.ensure_future(answer.events())
    try:
        await asyncio.wait([first], timeout=sse.SILENCE_S)
        if first.done() and isinstance(error := first.result()[0], RequestError):
            raise error
        response = web.StreamResponse(headers=wire.headers)
        await response.prepare(request)
        while not first.done():
            if wire.keep_alive:
                await response.write(wire.keep_alive)
            await asyncio.wait([first], timeout=sse.SILENCE_S)
        await _send(response, answer, wire, first.result())
    except ConnectionResetError:
        return response  # the client is gone, and closing the answer stops it
    except _StalledError:
        if request.transport is not None:
            request.transport.abort()
        return response
    finally:
        first.cancel()
    await response.write_eof()
    return response


async def _write(response: web.StreamResponse, data: bytes) -> None:
    """Write, and wait until there is room for more; not for ever."""
    try:
        async with asyncio.timeout(STALLED_S):
            await response.write(data)
    except TimeoutError:
        raise _StalledError from None


async def _send(
    response: web.StreamResponse, answer: Answer, wire: Wire, batch: Sequence[Event]
) -> None:
    pending = wire.opening()
    try:
        while True:
            pending += wire.of([event for event in batch if isinstance(event, Delta)])
            last = batch[-1]
            if isinstance(last, Done):
                pending += wire.ending(last)
            elif isinstance(last, RequestError):
                pending += wire.failure(last)
            if pending:
                await _write(response, pending)
                pending = b""
            if not isinstance(last, Delta):
                return
            batch = await answer.events()
    except (ConnectionResetError, _StalledError):
        raise
    except Exception:
        logging.getLogger(__name__).exception("a stream failed")
        failure = RequestError("the service failed to go on with this answer", status=500)
        await response.write(wire.failure(failure))
