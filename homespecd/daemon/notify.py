"""Telling systemd how the service does (sd_notify): a datagram to $NOTIFY_SOCKET."""

from __future__ import annotations

import logging
import socket
import time
from collections.abc import Mapping


class Notifier:
    """Silent when the service was not started by systemd (or with Type=simple).

    READY=1 is sent once the socket answers and no pinned model is still loading: each is there, or
    has failed, which STATUS= and the snapshot say. While they load, more time is asked for, so that
    no start is too long. Clients may connect all the while; `/readyz` tells them about the models.
    """

    def __init__(self, environment: Mapping[str, str]) -> None:
        address = environment.get("NOTIFY_SOCKET", "")
        # A leading @ stands for the abstract namespace's zero byte.
        self._address = "\0" + address[1:] if address.startswith("@") else address
        self.watchdog_s = _watchdog_s(environment)

    def ready(self) -> None:
        self.send("READY=1")

    def reloading(self) -> None:
        """`ready` must follow, whether the reload succeeds or not."""
        self.send(
            "RELOADING=1", f"MONOTONIC_USEC={time.clock_gettime_ns(time.CLOCK_MONOTONIC) // 1000}"
        )

    def extend_timeout(self, more_s: float) -> None:
        """Starting goes on; systemd may count from now again."""
        self.send(f"EXTEND_TIMEOUT_USEC={round(more_s * 1e6)}")

    def send(self, *lines: str) -> None:
        """For example `send("READY=1", "STATUS=serving")`. A failure is logged and no more."""
        if not self._address:
            return
        text = "\n".join(line.replace("\n", " ") for line in lines)
        try:
            with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC) as sock:
                sock.connect(self._address)
                sock.sendall(text.encode())
        except OSError as error:
            logging.getLogger(__name__).warning("cannot notify systemd: %s", error)


def _watchdog_s(environment: Mapping[str, str]) -> float | None:
    """How often to send WATCHDOG=1: half of what systemd allows; None = never."""
    text = environment.get("WATCHDOG_USEC", "")
    return int(text) / 2e6 if text.isascii() and text.isdigit() and int(text) > 0 else None
