"""From an answer's events to the response, streamed or whole."""

from __future__ import annotations

import logging

from aiohttp import web

from homespecd.api import sse
from homespecd.api.errors import error_body, json_response
from homespecd.api.responses import Shape
from homespecd.api.service import Answer, Delta, Done
from homespecd.errors import RequestError


async def whole(answer: Answer, shape: Shape) -> web.Response:
    """Collect the answer. Raises the RequestError it ends with, if it does."""
    texts: list[str] = []
    while True:
        for event in await answer.events():
            if isinstance(event, Delta):
                texts.append(event.text)
            elif isinstance(event, Done):
                return json_response(shape.whole("".join(texts), event))
            else:
                raise event


async def stream(request: web.Request, answer: Answer, shape: Shape) -> web.StreamResponse:
    """Send the answer as it comes.

    The head of the response waits for the first event, so that what is wrong with the request is
    still an ordinary status. An error later on becomes an `error` event and the stream ends without
    a finish_reason and without `[DONE]`.
    """
    batch = await answer.events()
    if isinstance(batch[0], RequestError):
        raise batch[0]
    response = web.StreamResponse(headers=sse.HEADERS)
    await response.prepare(request)
    template = shape.text_chunks()
    first = shape.first_chunk()
    pending = b"" if first is None else sse.event(first)
    try:
        while True:
            text = "".join([event.text for event in batch if isinstance(event, Delta)])
            if text:
                pending += template.fill(text)
            last = batch[-1]
            if isinstance(last, Done):
                pending += _ending(shape, last)
            elif isinstance(last, RequestError):
                pending += sse.error_event(error_body(last))
            if pending:
                await response.write(pending)
                pending = b""
            if not isinstance(last, Delta):
                break
            batch = await answer.events()
    except ConnectionResetError:
        return response  # the client is gone, and closing the answer stops it
    except Exception:
        logging.getLogger(__name__).exception("a stream failed")
        failure = RequestError("the service failed to go on with this answer", status=500)
        await response.write(sse.error_event(error_body(failure)))
    await response.write_eof()
    return response


def _ending(shape: Shape, done: Done) -> bytes:
    ending = sse.event(shape.last_chunk(done))
    if shape.include_usage:
        ending += sse.event(shape.usage_chunk(done))
    return ending + sse.DONE
