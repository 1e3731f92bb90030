"""Telling systemd how the service does (sd_notify): a datagram to $NOTIFY_SOCKET."""

from __future__ import annotations

import logging
import socket
from collections.abc import Mapping


class Notifier:
    """Silent when the service was not started by systemd (or with Type=simple).

    READY=1 is sent once the socket is bound and answers, before pinned models are loaded: clients
    may connect then, `/readyz` says when models are there, and STATUS= shows the progress.
    """

    def __init__(self, environment: Mapping[str, str]) -> None:
        address = environment.get("NOTIFY_SOCKET", "")
        # A leading @ stands for the abstract namespace's zero byte.
        self._address = "\0" + address[1:] if address.startswith("@") else address
        self.watchdog_s = _watchdog_s(environment)

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
