"""The service as a whole: sockets, HTTP, supervisor, signals; and the order in which it ends."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import signal
import sys
import time
from collections.abc import Sequence
from pathlib import Path

from aiohttp import web

from homespecd.api.app import create_app
from homespecd.api.connections import Connections
from homespecd.config.schema import Config
from homespecd.config.watch import QUIET_S
from homespecd.daemon import descriptors
from homespecd.daemon.health import Patience
from homespecd.daemon.listeners import Listeners
from homespecd.daemon.notify import Notifier
from homespecd.daemon.signals import handled
from homespecd.daemon.supervisor import Supervisor
from homespecd.daemon.tasks import Tasks

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
    stop, hurry = asyncio.Event(), asyncio.Event()
    ready, reread = asyncio.Event(), asyncio.Event()
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
    listeners = Listeners(runner, connections, backlog=share.backlog)
    feeding, telling = Tasks(), Tasks()

    def on_stop() -> None:
        (hurry if stop.is_set() else stop).set()

    on_signal = {signal.SIGTERM: on_stop, signal.SIGINT: on_stop, signal.SIGHUP: reread.set}
    with handled(on_signal):
        try:
            await runner.setup()
            # First what can fail for want of a socket; who connects already waits for `accept`.
            listeners.bind(config.server)
            await supervisor.start()
            await listeners.accept(config.server)
            if notifier.watchdog_s is not None:
                feeding.start(_feed_watchdog(notifier, notifier.watchdog_s))
            telling.start(_say_ready(supervisor, notifier, ready))
            telling.start(_reload_when_told(supervisor, notifier, reread, ready))
            await stop.wait()
            _log.info("stopping")
            await telling.cancel()
            notifier.send("STOPPING=1")
            listeners.close()
            supervisor.refuse_new()
            await _let_finish(supervisor, hurry)
        finally:
            listeners.close()
            supervisor.refuse_new()
            supervisor.cut()
            await asyncio.gather(runner.cleanup(), supervisor.close())
            await telling.cancel()
            await feeding.cancel()
    _log.info("stopped")


async def _let_finish(supervisor: Supervisor, hurry: asyncio.Event) -> None:
    """Wait for running answers, as long as they may; a second signal ends the wait."""
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(STREAM_GRACE_S):
            while supervisor.running and not hurry.is_set():
                await asyncio.sleep(_POLL_S)
    if supervisor.running:
        _log.warning("%d answers are cut off", supervisor.running)


async def _say_ready(supervisor: Supervisor, notifier: Notifier, ready: asyncio.Event) -> None:
    """Tell systemd once no pinned model is still loading; none takes too long for it."""
    extended_s = float("-inf")
    while supervisor.still_loading():
        if time.monotonic() - extended_s >= _EXTEND_INTERVAL_S:
            extended_s = time.monotonic()
            notifier.extend_timeout(3 * _EXTEND_INTERVAL_S)
        await asyncio.sleep(_POLL_S)
    notifier.ready()
    ready.set()


async def _reload_when_told(
    supervisor: Supervisor, notifier: Notifier, told: asyncio.Event, ready: asyncio.Event
) -> None:
    """However often it is told during a reload, one more follows, which sees it all.

    systemd hears of it only once the start is over: until then READY=1 would end the start.
    """
    while True:
        await told.wait()
        told.clear()
        started = ready.is_set()
        if started:
            notifier.reloading()
        with contextlib.suppress(Exception):  # it is in the log, and in the status
            await supervisor.reload()
        if started:
            notifier.ready()


async def _feed_watchdog(notifier: Notifier, interval_s: float) -> None:
    """An event loop that hangs stops feeding."""
    while True:
        notifier.send("WATCHDOG=1")
        await asyncio.sleep(interval_s)
