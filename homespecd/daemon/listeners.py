"""What accepts connections: the sockets of the service, and the protocol spoken on them."""

from __future__ import annotations

import asyncio
import logging
import os
import socket
import sys
from collections.abc import Callable
from typing import Any

from aiohttp import web
from aiohttp.http_exceptions import HttpProcessingError

from homespecd.api.connections import Connection, Connections
from homespecd.api.malformed import http_protocol
from homespecd.config.schema import ServerConfig
from homespecd.daemon.sockets import (
    BoundSocket,
    SocketError,
    bind_unix,
    group_exists,
    inherited_sockets,
)

_log = logging.getLogger(__name__)


class Listeners:
    """Everything that accepts connections."""

    def __init__(self, runner: web.AppRunner, connections: Connections, *, backlog: int) -> None:
        self._runner = runner
        self._connections = connections
        self._backlog = backlog
        self._servers: list[asyncio.Server] = []
        self._sockets: list[socket.socket] = []
        self._bound: BoundSocket | None = None

    def bind(self, server: ServerConfig) -> None:
        """Sockets from systemd if there are any, else the configured one."""
        self._sockets = inherited_sockets(os.environ)
        if self._sockets:
            _log.info("listening on %d sockets of the service manager", len(self._sockets))
        else:
            self._bound = bind_unix(server.socket, mode=server.socket_mode, group=_group(server))
            self._sockets = [self._bound.sock]
            _log.info("listening on %s", server.socket)

    async def accept(self, server: ServerConfig) -> None:
        """Begin to serve, on all addresses too."""
        protocol = self._protocol()
        for address in server.listen:
            try:
                self._servers.append(
                    await asyncio.get_running_loop().create_server(
                        protocol,
                        address.host,
                        address.port,
                        backlog=self._backlog,
                    )
                )
            except OSError as error:
                raise SocketError(
                    f"cannot listen here: {error.strerror or error}", where=str(address)
                ) from error
            _log.info("listening on %s", address)
        while self._sockets:
            await self._accept(self._sockets.pop())

    def close(self) -> None:
        """Accept nothing more, and take the socket's file away. Idempotent."""
        if self._bound is not None:
            self._bound.remove()
            self._bound = None
        for server in self._servers:
            server.close()
        for sock in self._sockets:
            sock.close()
        self._servers.clear()
        self._sockets.clear()

    async def _accept(self, sock: socket.socket) -> None:
        loop, protocol = asyncio.get_running_loop(), self._protocol()
        # asyncio listens again, with a backlog of 100 unless it is told otherwise.
        if sock.family == socket.AF_UNIX:
            # From Python 3.13 on asyncio takes the file away, which is systemd's, or ours to do.
            keep: dict[str, Any] = {"cleanup_socket": False} if sys.version_info >= (3, 13) else {}
            server = await loop.create_unix_server(
                protocol, sock=sock, backlog=self._backlog, **keep
            )
        else:
            server = await loop.create_server(protocol, sock=sock, backlog=self._backlog)
        self._servers.append(server)

    def _protocol(self) -> Callable[[], Connection]:
        """Makes the protocol of a new connection."""
        assert self._runner.server is not None
        inner = http_protocol(self._runner.server, access_log=None, logger=_quiet_http_log())
        return lambda: self._connections.protocol(inner)


def _group(server: ServerConfig) -> str:
    """The socket's group. The default one is made by install.sh; a service that was started by hand
    does without it, which only narrows who may connect. Any other must exist."""
    group = server.socket_group
    if group == ServerConfig.model_fields["socket_group"].default and not group_exists(group):
        _log.warning("there is no group %s: the socket keeps the service's own group", group)
        return ""
    return group


def _quiet_http_log() -> logging.Logger:
    """aiohttp's own log, in which a request that is not HTTP is one line: anybody can send one."""

    def one_line(record: logging.LogRecord) -> bool:
        error = record.exc_info[1] if record.exc_info else None
        if isinstance(error, HttpProcessingError | web.RequestPayloadError):
            record.levelno, record.levelname = logging.WARNING, "WARNING"
            record.msg, record.args = "a request that is not HTTP was refused", ()
            record.exc_info = None
        return True

    log = logging.getLogger("homespecd.http")
    log.filters[:] = [one_line]
    return log
