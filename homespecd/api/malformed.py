"""What never reaches a route: heads of requests that are not HTTP, or too long.

aiohttp answers these by itself, in plain text. Here they get the body of all other errors. Of a
head that cannot be read the path is not known either, so its error has OpenAI's shape.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

from aiohttp import web
from aiohttp.http_exceptions import LineTooLong
from aiohttp.web_protocol import RequestHandler

from homespecd.api.errors import error_response
from homespecd.errors import RequestError

# What aiohttp calls a head with more fields than it takes; it has no type of its own.
_TOO_MANY = "Too many headers"


def http_protocol(server: web.Server, **options: Any) -> Callable[[], asyncio.Protocol]:
    """Makes aiohttp's protocol for one connection to `server`, with errors of our own.

    Args:
        options: aiohttp's for a protocol. It passes bodies on as they were sent.
    """
    loop = asyncio.get_running_loop()
    return lambda: _Protocol(server, loop=loop, auto_decompress=False, **options)


def malformed(status: int, error: BaseException | None, message: str | None) -> RequestError:
    """The error for what could not be read, or not be answered, before any route was asked.

    Args:
        status: aiohttp's, which is 400 for all that a client did wrong.
        message: aiohttp's, over several lines.
    """
    if status >= 500:
        return RequestError("the service failed on this", status=status)
    first_line = (message or "").strip().partition("\n")[0].rstrip(":. ")
    if isinstance(error, LineTooLong):
        return RequestError(
            "the first line of the request, or one of its headers, is too long",
            status=431,
            code="headers_too_large",
        )
    if first_line.startswith(_TOO_MANY):
        return RequestError(
            "the request has too many headers", status=431, code="headers_too_large"
        )
    return RequestError(f"this is not a valid HTTP request: {first_line[:200] or 'unreadable'}")


class _Protocol(RequestHandler):
    def handle_error(
        self,
        request: web.BaseRequest,
        status: int = 500,
        exc: BaseException | None = None,
        message: str | None = None,
    ) -> web.StreamResponse:
        if isinstance(exc, UnicodeEncodeError) and not request.headers.get("Expect", "").isascii():
            # aiohttp quotes what it does not know, and cannot write that down.
            error = RequestError("what the request expects is not readable", status=417)
        else:
            # It writes the log, and raises when an answer has begun already.
            super().handle_error(request, status, exc, message)
            error = malformed(status, exc, message)
        response = error_response(error, ollama=request.path.startswith("/api/"))
        response.force_close()
        return response
