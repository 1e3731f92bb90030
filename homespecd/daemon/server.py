"""The service as a whole: sockets, HTTP, supervisor, signals; and the order in which it ends."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import signal
import socket
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from aiohttp import web
from aiohttp.http_exceptions import HttpProcessingError

from homespecd.api.app import create_app
from homespecd.api.connections import Connection, Connections
from homespecd.api.malformed import http_protocol
from homespecd.config.schema import Config, ServerConfig
from homespecd.config.watch import QUIET_S
from homespecd.daemon import descriptors
from homespecd.daemon.health import Patience
from homespecd.daemon.notify import Notifier
from homespecd.daemon.sockets import (
    BoundSocket,
    SocketError,
    bind_unix,
    group_exists,
    inherited_sockets,
)
from homespecd.daemon.supervisor import Supervisor
from homespecd.errors import ConfigError

# After SIGTERM running answers get this long to end by themselves. Longer delays a shutdown of the
# machine; shorter cuts more answers.
STREAM_GRACE_S = 10.0

# How long handlers get to write down that they were cut.
_FLUSH_S = 0.5

_POLL_S = 0.05

# While pinned models load, systemd is asked for more time so often, for three times as much.
_EXTEND_INTERVAL_S = 5.0

WORKER_COMMAND = (sys.executable, "-m", "homespecd.worker")

_log = logging.getLogger(__name__)


async def serve(
    config: Config,
    *,
    path: Path,
    command: Sequence[str],
    notifier: Notifier,
    patience: Patience | None = None,
    quiet_s: float = QUIET_S,
) -> None:
    """Run until SIGTERM or SIGINT.

    Args:
        command: how to start a worker; its socket's number is appended.
        patience: from when a worker hangs; None = the usual.
        quiet_s: edits of the configuration closer together than this are one.

    Raises:
        SocketError: a socket cannot be made.
        ConfigError: the keys file cannot be used.
    """
    loop = asyncio.get_running_loop()
    stop, hurry, reread = asyncio.Event(), asyncio.Event(), asyncio.Event()
    supervisor = Supervisor(
        config,
        path=path,
        command=command,
        on_status=lambda line: notifier.send(f"STATUS={line}"),
        patience=patience or Patience(),
        quiet_s=quiet_s,
    )
    share = descriptors.share(descriptors.raised())
    connections = Connections(most=share.connections)
    runner = web.AppRunner(
        create_app(supervisor, connections),
        handler_cancellation=True,
        shutdown_timeout=_FLUSH_S,
    )
    listeners = _Listeners(runner, connections, backlog=share.backlog)
    tasks: set[asyncio.Task[None]] = set()

    def on_stop() -> None:
        (hurry if stop.is_set() else stop).set()

    try:
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, on_stop)
        loop.add_signal_handler(signal.SIGHUP, reread.set)
        await runner.setup()
        # First what can fail for want of a socket; who connects already waits for `accept`.
        listeners.bind(config.server)
        await supervisor.start()
        await listeners.accept(config.server)
        tasks.add(loop.create_task(_say_ready(supervisor, notifier)))
        tasks.add(loop.create_task(_reload_when_told(supervisor, notifier, reread)))
        if notifier.watchdog_s is not None:
            tasks.add(loop.create_task(_feed_watchdog(notifier, notifier.watchdog_s)))
        await stop.wait()
        _log.info("stopping")
        notifier.send("STOPPING=1")
        listeners.close()
        supervisor.refuse_new()
        await _let_finish(supervisor, hurry)
    finally:
        listeners.close()
        supervisor.refuse_new()
        supervisor.cut()
        await asyncio.gather(runner.cleanup(), supervisor.close())
        for task in tasks:
            task.cancel()
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
            loop.remove_signal_handler(number)
            # What ends in order is not ended by a signal that comes late.
            signal.signal(number, signal.SIG_IGN)
    _log.info("stopped")


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


async def _let_finish(supervisor: Supervisor, hurry: asyncio.Event) -> None:
    """Wait for running answers, as long as they may; a second signal ends the wait."""
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(STREAM_GRACE_S):
            while supervisor.running and not hurry.is_set():
                await asyncio.sleep(_POLL_S)
    if supervisor.running:
        _log.warning("%d answers are cut off", supervisor.running)


async def _say_ready(supervisor: Supervisor, notifier: Notifier) -> None:
    """Tell systemd once no pinned model is still loading; none takes too long for it."""
    extended_s = float("-inf")
    while supervisor.still_loading():
        if time.monotonic() - extended_s >= _EXTEND_INTERVAL_S:
            extended_s = time.monotonic()
            notifier.extend_timeout(3 * _EXTEND_INTERVAL_S)
        await asyncio.sleep(_POLL_S)
    notifier.ready()


async def _reload_when_told(
    supervisor: Supervisor, notifier: Notifier, told: asyncio.Event
) -> None:
    """However often it is told during a reload, one more follows, which sees it all."""
    while True:
        await told.wait()
        told.clear()
        notifier.reloading()
        try:
            await supervisor.reload()
        except ConfigError:
            pass  # every problem is in the log, and the status shows that there were some
        except Exception:
            _log.exception("the configuration was not read again")
        finally:
            notifier.ready()


async def _feed_watchdog(notifier: Notifier, interval_s: float) -> None:
    """An event loop that hangs stops feeding."""
    while True:
        notifier.send("WATCHDOG=1")
        await asyncio.sleep(interval_s)


def _group(server: ServerConfig) -> str:
    """The socket's group. The default one is made by install.sh; a service that was started by hand
    does without it, which only narrows who may connect. Any other must exist."""
    group = server.socket_group
    if group == ServerConfig.model_fields["socket_group"].default and not group_exists(group):
        _log.warning("there is no group %s: the socket keeps the service's own group", group)
        return ""
    return group


class _Listeners:
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
