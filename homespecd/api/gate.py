"""Who may talk to the service over TCP. (On the Unix socket file permissions have decided.)

Two kinds of strangers come to a loopback address: programs of other users, and web pages, through
the browser of somebody who is allowed. Keys keep out the former. A page gives itself away by the
`Origin` or `Sec-Fetch-Site` that its browser adds; and where no key is needed, a page that reaches
us by a name of its own that resolves to this machine (DNS rebinding) by the `Host` it asks for.
"""

from __future__ import annotations

import hmac
import ipaddress
from collections.abc import Sequence

from aiohttp import web

from homespecd.errors import RequestError

# The process answers, and whether it is ready: nobody learns more from these.
_OPEN_ROUTES = ("/healthz", "/readyz")


def check_tcp(request: web.Request, keys: Sequence[str]) -> None:
    """Raises RequestError (401, 403) for whoever does not belong."""
    _check_no_page(request)
    if not keys:
        _check_host(request)
    elif request.path not in _OPEN_ROUTES:
        _check_key(request, keys)


def _check_no_page(request: web.Request) -> None:
    site = request.headers.get("Sec-Fetch-Site", "none")
    if "Origin" in request.headers or site != "none":
        raise RequestError("web pages may not use this service", status=403, code="no_web_pages")


def _check_host(request: web.Request) -> None:
    host = request.headers.get("Host", "")
    name = host[1:].partition("]")[0] if host.startswith("[") else host.partition(":")[0]
    if name.lower() == "localhost":
        return
    try:
        ipaddress.ip_address(name)
    except ValueError:
        raise RequestError(
            f"this service is not called {name[:100]!r}",
            status=403,
            code="unknown_host",
            hint="ask for the address itself, or set server.api_keys_file",
        ) from None


def _check_key(request: web.Request, keys: Sequence[str]) -> None:
    scheme, _, given = request.headers.get("Authorization", "").partition(" ")
    # Every key is compared in full, so that time says nothing about any of them.
    sent = given.strip().encode(errors="surrogateescape")
    matches = [hmac.compare_digest(sent, key.encode()) for key in keys]
    if scheme.lower() != "bearer" or not any(matches):
        raise RequestError(
            "an API key is needed on this address",
            status=401,
            code="invalid_api_key",
            hint="send it as `Authorization: Bearer KEY`",
        )
