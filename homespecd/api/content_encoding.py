"""Bodies that come compressed.

Not left to aiohttp: which encodings it takes depends on what is installed beside it, and what it
does not take it refuses before the route is known.
"""

from __future__ import annotations

import zlib

from homespecd.errors import RequestError

# For the header of a 415: what may be sent.
ACCEPTED = "gzip, deflate"

_GZIP_BITS = 16 + zlib.MAX_WBITS


class Decoder:
    """A body from its pieces.

    Args:
        encoding: the request's Content-Encoding.
        limit: bytes that the decoded body may have.

    Raises:
        RequestError: 415, nobody here can decode that.
    """

    def __init__(self, encoding: str, *, limit: int) -> None:
        self._encoding = encoding.strip().lower()
        self._limit = limit
        self._body = bytearray()
        self._inflate = _inflate(self._encoding)

    def feed(self, data: bytes) -> None:
        """Add a piece as it was sent. Past the limit no more of it is unpacked.

        Raises:
            RequestError: 400, it is not what the header says; 413, more than the limit.
        """
        room = self._limit - len(self._body)
        if self._inflate is None:
            self._body += data
        else:
            try:
                self._body += self._inflate.decompress(data, room + 1)
            except zlib.error:
                raise self._broken() from None
            if self._inflate.unused_data:
                raise self._broken()
        if len(self._body) > self._limit:
            raise too_large(self._limit)

    def whole(self) -> bytes:
        """The body, when all pieces are there. Raises RequestError: 400, it is cut."""
        if self._inflate is not None and not self._inflate.eof:
            raise self._broken()
        return bytes(self._body)

    def _broken(self) -> RequestError:
        return RequestError(f"the body cannot be read: it is not whole and valid {self._encoding}")


def too_large(limit: int) -> RequestError:
    """413, for a body of more bytes than `limit`."""
    return RequestError(
        f"the body is larger than {limit} bytes",
        status=413,
        code="body_too_large",
        hint="raise server.max_body in the configuration",
    )


def _inflate(encoding: str) -> zlib._Decompress | None:
    if encoding in ("", "identity"):
        return None
    if encoding in ("gzip", "x-gzip"):
        return zlib.decompressobj(_GZIP_BITS)
    if encoding == "deflate":
        return zlib.decompressobj()
    raise RequestError(
        f"a body with Content-Encoding {encoding[:100]!r} cannot be read here",
        status=415,
        code="unsupported_encoding",
        hint=f"send it as it is, or as one of {ACCEPTED}",
    )
