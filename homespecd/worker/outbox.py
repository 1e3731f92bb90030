"""The worker's end of the socket to the supervisor: frames out, from any thread."""

from __future__ import annotations

import socket
import threading
from typing import Any

from homespecd.errors import HomespecError, ModelError, RequestError
from homespecd.worker.messages import Frame, pack


class Outbox:
    """Sends frames whole. A supervisor that is gone is not an error here: the reader sees it."""

    def __init__(self, sock: socket.socket) -> None:
        self._sock = sock
        self._lock = threading.Lock()

    def send(self, frame: Frame) -> None:
        data = pack(frame)
        try:
            with self._lock:
                self._sock.sendall(data)
        except (BrokenPipeError, ConnectionResetError):
            pass

    def warn(self, message: str) -> None:
        """A line for the log."""
        self.send({"type": "log", "level": "warning", "message": message})

    def error(self, request: int, error: HomespecError) -> None:
        """End a request with an error the supervisor can turn into a response."""
        self.send({"type": "error", "id": request, "error": describe(error)})


def describe(error: HomespecError) -> dict[str, Any]:
    """An error as the other side needs it to answer over HTTP."""
    if isinstance(error, RequestError):
        return {
            "message": str(error),
            "status": error.status,
            "code": error.code,
            "param": error.param,
            "retry_after_s": error.retry_after_s,
        }
    # A worker that lost its device ends, and the next one opens the model where it can.
    lost = isinstance(error, ModelError) and error.device_lost
    return {
        "message": str(error),
        "status": 503 if lost else 500,
        "code": "device_lost" if lost else "model_error",
        "param": None,
        "retry_after_s": 1.0 if lost else None,
    }
