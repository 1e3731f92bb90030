"""Requests that cannot be read, over a real server in this process: each error is a JSON body."""

from __future__ import annotations

import asyncio
import gzip
import http.client
import io
import json
import zlib
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, cast

import pytest
from aiohttp import web

from homespecd.api.app import create_app
from homespecd.api.connections import Connections
from homespecd.api.content_encoding import Decoder
from homespecd.api.malformed import http_protocol
from homespecd.api.service import Service
from homespecd.errors import RequestError

OPENAI = b"POST /v1/chat/completions HTTP/1.1\r\nHost: x\r\n"
OLLAMA = b"POST /api/chat HTTP/1.1\r\nHost: x\r\n"
TWO = b"Content-Length: 2\r\n\r\n{}"


class _Nothing:
    """A service of which no more is asked than how much it takes."""

    max_body_bytes = 1000


@asynccontextmanager
async def serving(folder: Path) -> AsyncIterator[str]:
    connections = Connections()
    runner = web.AppRunner(
        create_app(cast("Service", _Nothing()), connections), shutdown_timeout=0.1
    )
    await runner.setup()
    assert runner.server is not None
    inner = http_protocol(runner.server, access_log=None)
    path = str(folder / "s")
    loop = asyncio.get_running_loop()
    server = await loop.create_unix_server(lambda: connections.protocol(inner), path)
    try:
        yield path
    finally:
        server.close()
        await runner.cleanup()


async def answer(path: str, sent: bytes) -> tuple[int, Mapping[str, str], bytes]:
    """Status, headers and body of the one response to what was sent."""
    reader, writer = await asyncio.open_unix_connection(path)
    try:
        async with asyncio.timeout(60):
            writer.write(sent)
            head = await reader.readuntil(b"\r\n\r\n")
            first, _, fields = head.partition(b"\r\n")
            headers = http.client.parse_headers(io.BytesIO(fields))
            body = await reader.readexactly(int(headers["Content-Length"]))
            return int(first.split()[1]), headers, body
    finally:
        writer.close()


MALFORMED = {
    "an unknown expectation": (OPENAI + b"Expect: a cake\r\n" + TWO, 417, "expectation_failed"),
    "an expectation in no encoding": (
        OPENAI + b"Expect: \xff\xfe\r\n" + TWO,
        417,
        "expectation_failed",
    ),
    "the same, no route": (
        b"GET /nowhere HTTP/1.1\r\nHost: x\r\nExpect: a cake\r\n\r\n",
        417,
        "expectation_failed",
    ),
    "an encoding": (OPENAI + b"Content-Encoding: zstd\r\n" + TWO, 415, "unsupported_encoding"),
    "not HTTP": (b"\x16\x03\x01\x02\x00hello\r\n\r\n", 400, "invalid_request"),
    "no path": (b"GET\r\n\r\n", 400, "invalid_request"),
    "a length": (OPENAI + b"Content-Length: x\r\n\r\n", 400, "invalid_request"),
    "a chunk": (
        OPENAI + b"Transfer-Encoding: chunked\r\n\r\nzz\r\n{}\r\n0\r\n\r\n",
        400,
        "invalid_request",
    ),
    "a long header": (OPENAI + b"X: " + b"a" * 9000 + b"\r\n\r\n", 431, "headers_too_large"),
    "a long path": (b"GET /" + b"a" * 9000 + b" HTTP/1.1\r\n\r\n", 431, "headers_too_large"),
    "many headers": (
        OPENAI + b"".join(b"X%d: 1\r\n" % index for index in range(200)) + b"\r\n",
        431,
        "headers_too_large",
    ),
    "not gzip": (OPENAI + b"Content-Encoding: gzip\r\n" + TWO, 400, "invalid_request"),
    "too large": (OPENAI + b"Content-Length: 2000\r\n\r\n", 413, "body_too_large"),
}


@pytest.mark.parametrize("what", MALFORMED)
async def test_it_is_refused_as_all_else_is(tmp_path: Path, what: str) -> None:
    sent, status, code = MALFORMED[what]
    async with serving(tmp_path) as path:
        given, headers, body = await answer(path, sent)
    error = json.loads(body)["error"]
    assert (given, headers["Content-Type"]) == (status, "application/json")
    assert (error["code"], error["param"]) == (code, None)
    assert error["type"] == "invalid_request_error"
    assert "\n" not in error["message"]
    assert headers["Accept-Encoding"] == ("gzip, deflate" if status == 415 else None)


@pytest.mark.parametrize(
    ("more", "status"),
    [(b"Expect: a cake\r\n", 417), (b"Content-Encoding: br\r\n", 415)],
    ids=["an expectation", "an encoding"],
)
async def test_ollamas_clients_get_their_shape(tmp_path: Path, more: bytes, status: int) -> None:
    async with serving(tmp_path) as path:
        given, _, body = await answer(path, OLLAMA + more + TWO)
    assert given == status
    assert isinstance(json.loads(body)["error"], str)


@pytest.mark.parametrize("encoding", ["gzip", "x-gzip", "GZip", "deflate", "identity", ""])
@pytest.mark.parametrize("piece", [1, 7, 10_000])
def test_a_body_is_unpacked(encoding: str, piece: int) -> None:
    body = json.dumps({"n": list(range(200))}).encode()
    sent = body
    if "zip" in encoding.lower():
        sent = gzip.compress(body)
    elif encoding == "deflate":
        sent = zlib.compress(body)
    decoder = Decoder(encoding, limit=len(body))
    for start in range(0, len(sent), piece):
        decoder.feed(sent[start : start + piece])
    assert decoder.whole() == body


@pytest.mark.parametrize(
    ("encoding", "sent", "status"),
    [
        ("gzip", gzip.compress(b"x" * 10_000_000), 413),
        ("gzip", gzip.compress(b"x" * 101), 413),
        ("", b"x" * 101, 413),
        ("gzip", gzip.compress(b"{}")[:-1], 400),
        ("gzip", gzip.compress(b"{}") + b"more", 400),
        ("gzip", b"", 400),
        ("deflate", b"{}", 400),
        ("br", b"{}", 415),
        ("gzip, gzip", b"{}", 415),
    ],
)
def test_a_body_that_is_not_what_it_says_is_refused(
    encoding: str, sent: bytes, status: int
) -> None:
    def decode() -> Any:
        decoder = Decoder(encoding, limit=100)
        decoder.feed(sent)
        return decoder.whole()

    with pytest.raises(RequestError) as refused:
        decode()
    assert refused.value.status == status
