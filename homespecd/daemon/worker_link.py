"""The process of a worker and the socket between it and us: bytes to frames, and no more."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Sequence
from typing import Any, Protocol

from homespecd.worker.messages import Unpacker


class Receiver(Protocol):
    """Whoever is told what comes over a worker's socket."""

    def connected(self, transport: asyncio.Transport) -> None: ...

    def received(self, frame: dict[str, Any]) -> None: ...

    def disconnected(self) -> None: ...


class FrameProtocol(asyncio.Protocol):
    """Bytes to frames."""

    def __init__(self, receiver: Receiver) -> None:
        self._receiver = receiver
        self._unpacker = Unpacker()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._receiver.connected(transport)

    def data_received(self, data: bytes) -> None:
        for frame in self._unpacker.feed(data):
            self._receiver.received(frame)

    def connection_lost(self, exc: Exception | None) -> None:  # noqa: ARG002
        self._receiver.disconnected()


async def spawn(command: Sequence[str]) -> tuple[asyncio.subprocess.Process, socket.socket]:
    """Start a process that inherits one end of a new socket pair; the other end is ours.

    Args:
        command: what to run; the number of the inherited socket is appended.

    Raises:
        OSError: it cannot be started; nothing is left of it.
    """
    ours, theirs = socket.socketpair()
    try:
        process = await asyncio.create_subprocess_exec(
            *command,
            str(theirs.fileno()),
            pass_fds=[theirs.fileno()],
            stdin=asyncio.subprocess.DEVNULL,
            # Ctrl-C in a terminal is for the supervisor, which then ends its workers.
            start_new_session=True,
        )
    except OSError:
        ours.close()
        raise
    finally:
        theirs.close()
    return process, ours
