"""Open connections: who is at the other end, when they are gone, and how many there may be.

aiohttp closes a connection as soon as it reads the end of it. A client that only shut down its
sending side (`nc -N`, `printf … | socat`) still waits for the answer, so this protocol stands
between the socket and aiohttp's and tells the two apart: for a Unix socket the kernel reports a
hang-up only when the other end is closed for good.

It also ends what aiohttp would wait for: heads of requests that never come, drop by drop or not at
all, and clients that do not take what they asked for; and it keeps the number of connections below
what a process may have open, at the cost of idle ones.
"""

from __future__ import annotations

import asyncio
import contextlib
import select
import socket
import struct
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

from aiohttp import web

from homespecd.api.service import Peer

_CREDENTIALS = struct.Struct("3i")  # pid, uid, gid

# A half-closed connection on which nothing is being answered is closed within this time.
_IDLE_CHECK_S = 1.0

# A connection on which nothing is being answered for so long is closed: nobody is there, or
# somebody who sends a head of a request, or takes an answer, as slowly as if nobody were.
IDLE_S = 60.0

# The limit of open files is raised for so many; where that is not allowed, fewer are taken.
MOST_CONNECTIONS = 512

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


@dataclass(frozen=True)
class Standing:
    """One connection when there are too many. idle_since_s None = something is being answered;
    answered: something was."""

    uid: int | None
    idle_since_s: float | None
    answered: bool = False


def to_close(connections: Iterable[Standing]) -> Standing | None:
    """Which connection goes: of the users with an idle one, the one with the most connections gives
    the one that has been idle for longest, of those on which nothing was ever answered if it can.
    None when all are busy."""
    standing = tuple(connections)
    counts = Counter(one.uid for one in standing)
    idle = [
        ((-counts[one.uid], one.answered, one.idle_since_s), one)
        for one in standing
        if one.idle_since_s is not None
    ]
    return min(idle, key=lambda keyed: keyed[0])[1] if idle else None


class Connections:
    """The open connections.

    Args:
        most: how many there may be.
        idle_s: how long one may have nothing that is being answered.
    """

    def __init__(self, *, most: int = MOST_CONNECTIONS, idle_s: float = IDLE_S) -> None:
        self._open: dict[asyncio.BaseTransport, Connection] = {}
        self._most = most
        self.idle_s = idle_s

    def __len__(self) -> int:
        return len(self._open)

    def protocol(self, inner: Callable[[], asyncio.Protocol]) -> Connection:
        """A protocol for one new connection, in front of aiohttp's."""
        return Connection(inner(), self)

    def peer(self, request: web.Request) -> Peer:
        connection = self._of(request)
        return _TCP_PEER if connection is None else connection.peer

    def is_tcp(self, request: web.Request) -> bool:
        connection = self._of(request)
        return connection is None or not connection.local

    @contextlib.contextmanager
    def answering(self, request: web.Request) -> Iterator[None]:
        """While a request is answered its connection stays open, also half-closed."""
        connection = self._of(request)
        if connection is None:
            yield
            return
        connection.begin()
        try:
            yield
        finally:
            connection.end()

    def opened(self, connection: Connection) -> None:
        """One more; if that is one too many, somebody's goes, maybe this very one."""
        self._open[connection.transport] = connection
        if len(self._open) <= self._most:
            return
        standing = {one.standing: one for one in self._open.values()}
        chosen = to_close(one.standing for one in self._open.values())
        going = connection if chosen is None else standing[chosen]
        # Not when it is closed, which is later: the next one would choose it again.
        self.closed(going)
        going.transport.abort()

    def closed(self, connection: Connection) -> None:
        self._open.pop(connection.transport, None)

    def _of(self, request: web.Request) -> Connection | None:
        return None if request.transport is None else self._open.get(request.transport)


class Connection(asyncio.Protocol):
    """One connection: passes everything to aiohttp's protocol, except the end of what is sent."""

    transport: asyncio.Transport

    def __init__(self, inner: asyncio.Protocol, among: Connections) -> None:
        self._inner = inner
        self._among = among
        self._watch: select.epoll | None = None
        self._alarm: asyncio.TimerHandle | None = None
        self._busy = 0
        self._answered = False
        self._idle_since_s = 0.0
        self.local = False
        self.peer = _TCP_PEER

    @property
    def standing(self) -> Standing:
        since_s = None if self._busy else self._idle_since_s
        return Standing(self.peer.uid, since_s, self._answered)

    def begin(self) -> None:
        """Something is being answered."""
        self._busy += 1

    def end(self) -> None:
        """It was, and what is left of it may be on its way."""
        self._busy -= 1
        self._answered = True
        self._idle_since_s = asyncio.get_running_loop().time()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self.transport = transport
        sock = transport.get_extra_info("socket")
        self.local = sock.family == socket.AF_UNIX
        if self.local:
            self.peer = peer_of(sock)
        loop = asyncio.get_running_loop()
        self._idle_since_s = loop.time()
        self._alarm = loop.call_later(self._among.idle_s, self._close_if_idle_for_long)
        self._inner.connection_made(transport)
        self._among.opened(self)

    def data_received(self, data: bytes) -> None:
        self._inner.data_received(data)

    def pause_writing(self) -> None:
        self._inner.pause_writing()

    def resume_writing(self) -> None:
        self._inner.resume_writing()

    def eof_received(self) -> bool | None:
        """True = keep the sending side open."""
        if not self.local:
            return self._inner.eof_received()
        watch = select.epoll()
        # No events asked for: a hang-up is reported nevertheless, and nothing else.
        watch.register(self.transport.get_extra_info("socket").fileno(), 0)
        if watch.poll(timeout=0):
            watch.close()
            return False
        self._watch = watch
        loop = asyncio.get_running_loop()
        loop.add_reader(watch.fileno(), self.transport.abort)
        loop.call_later(_IDLE_CHECK_S, self._close_when_idle)
        return True

    def connection_lost(self, exc: Exception | None) -> None:
        self._among.closed(self)
        if self._alarm is not None:
            self._alarm.cancel()
        if self._watch is not None:
            asyncio.get_running_loop().remove_reader(self._watch.fileno())
            self._watch.close()
            self._watch = None
        self._inner.connection_lost(exc)

    def _close_if_idle_for_long(self) -> None:
        loop, idle_s = asyncio.get_running_loop(), self._among.idle_s
        due_s = loop.time() + idle_s if self._busy else self._idle_since_s + idle_s
        if due_s <= loop.time():
            self.transport.abort()
        else:
            self._alarm = loop.call_at(due_s, self._close_if_idle_for_long)

    def _close_when_idle(self) -> None:
        if self._watch is None:
            return
        if self._busy == 0:
            self.transport.close()
        else:
            asyncio.get_running_loop().call_later(_IDLE_CHECK_S, self._close_when_idle)
