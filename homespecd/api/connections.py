"""Connections on the Unix socket: who is at the other end, and when they are gone.

aiohttp closes a connection as soon as it reads the end of it. A client that only shut down its
sending side (`nc -N`, `printf … | socat`) still waits for the answer, so this protocol stands
between the socket and aiohttp's and tells the two apart: for a Unix socket the kernel reports a
hang-up only when the other end is closed for good.
"""

from __future__ import annotations

import asyncio
import contextlib
import select
import socket
import struct
from collections.abc import Callable, Iterator
from pathlib import Path

from aiohttp import web

from homespecd.api.service import Peer

_CREDENTIALS = struct.Struct("3i")  # pid, uid, gid

# A half-closed connection on which nothing is being answered is closed within this time.
_IDLE_CHECK_S = 1.0

_TCP_PEER = Peer()


def peer_of(sock: socket.socket) -> Peer:
    """The credentials that the kernel noted when the peer connected."""
    raw = sock.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size)
    pid, uid, gid = _CREDENTIALS.unpack(raw)
    try:
        comm = Path(f"/proc/{pid}/comm").read_text(errors="replace").strip()
    except OSError:  # gone already, or in another pid namespace
        comm = ""
    return Peer(uid=uid, gid=gid, pid=pid, comm=comm)


class Connections:
    """The open connections of the Unix socket."""

    def __init__(self) -> None:
        self._open: dict[asyncio.BaseTransport, UnixConnection] = {}

    def protocol(self, inner: Callable[[], asyncio.Protocol]) -> UnixConnection:
        """A protocol for one new connection, in front of aiohttp's."""
        return UnixConnection(inner(), self._open)

    def peer(self, request: web.Request) -> Peer:
        connection = self._of(request)
        return _TCP_PEER if connection is None else connection.peer

    def is_tcp(self, request: web.Request) -> bool:
        return self._of(request) is None

    @contextlib.contextmanager
    def answering(self, request: web.Request) -> Iterator[None]:
        """While a request is answered its half-closed connection stays open."""
        connection = self._of(request)
        if connection is None:
            yield
            return
        connection.busy += 1
        try:
            yield
        finally:
            connection.busy -= 1

    def _of(self, request: web.Request) -> UnixConnection | None:
        return None if request.transport is None else self._open.get(request.transport)


class UnixConnection(asyncio.Protocol):
    """One connection: passes everything to aiohttp's protocol, except the end of what is sent."""

    def __init__(
        self,
        inner: asyncio.Protocol,
        registry: dict[asyncio.BaseTransport, UnixConnection],
    ) -> None:
        self._inner = inner
        self._registry = registry
        self._watch: select.epoll | None = None
        self.peer = Peer()
        self.busy = 0

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport
        self.peer = peer_of(transport.get_extra_info("socket"))
        self._registry[transport] = self
        self._inner.connection_made(transport)

    def data_received(self, data: bytes) -> None:
        self._inner.data_received(data)

    def pause_writing(self) -> None:
        self._inner.pause_writing()

    def resume_writing(self) -> None:
        self._inner.resume_writing()

    def eof_received(self) -> bool:
        """True = keep the sending side open."""
        watch = select.epoll()
        # No events asked for: a hang-up is reported nevertheless, and nothing else.
        watch.register(self._transport.get_extra_info("socket").fileno(), 0)
        if watch.poll(timeout=0):
            watch.close()
            return False
        self._watch = watch
        loop = asyncio.get_running_loop()
        loop.add_reader(watch.fileno(), self._transport.abort)
        loop.call_later(_IDLE_CHECK_S, self._close_when_idle)
        return True

    def connection_lost(self, exc: Exception | None) -> None:
        self._registry.pop(self._transport, None)
        if self._watch is not None:
            asyncio.get_running_loop().remove_reader(self._watch.fileno())
            self._watch.close()
            self._watch = None
        self._inner.connection_lost(exc)

    def _close_when_idle(self) -> None:
        if self._watch is None:
            return
        if self.busy == 0:
            self._transport.close()
        else:
            asyncio.get_running_loop().call_later(_IDLE_CHECK_S, self._close_when_idle)
