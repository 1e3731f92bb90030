"""The log: entries with fields in systemd's journal, else plain lines on standard error.

The journal's own protocol is one datagram of KEY=value lines, so it is spoken here: the package
that wraps it (systemd-python) has no wheels, and every installation would need a compiler for it.
"""

from __future__ import annotations

import logging
import os
import socket
import struct
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

SOCKET = Path("/run/systemd/journal/socket")
IDENTIFIER = "homespecd"

# syslog's numbers, by the least level that has them.
_PRIORITIES = ((logging.ERROR, 3), (logging.WARNING, 4), (logging.INFO, 6), (logging.NOTSET, 7))

# A datagram may have some 200 kB; what is longer than this is not worth a file of its own.
_MAX_VALUE_BYTES = 48 * 1024


def event(name: str, **fields: object) -> Mapping[str, Any]:
    """`extra` of a log call: what alerts can ask for without reading the text.

    `log.info("…", extra=event("request", model="m"))` becomes HOMESPECD_EVENT=request and
    HOMESPECD_MODEL=m in the journal. A field that is None is left out.
    """
    known = {key.upper(): value for key, value in fields.items() if value is not None}
    return {"journal_fields": {"EVENT": name, **known}}


class LineFormatter(logging.Formatter):
    """One line an event, plain: what a peer or a library writes cannot break or colour it."""

    def formatMessage(self, record: logging.LogRecord) -> str:  # noqa: N802
        line = super().formatMessage(record)
        return "".join(char if char.isprintable() else " " for char in line)


class JournalHandler(logging.Handler):
    """Each record is an entry; a journal that does not take it gets it through standard error."""

    def __init__(self, path: Path = SOCKET) -> None:
        super().__init__()
        self.setFormatter(LineFormatter("%(message)s"))
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC)
        self._path = str(path)

    def emit(self, record: logging.LogRecord) -> None:
        try:
            self._socket.sendto(self._datagram(record), self._path)
        except OSError:
            sys.stderr.write(self.format(record) + "\n")
            sys.stderr.flush()
        except Exception:
            self.handleError(record)

    def close(self) -> None:
        self._socket.close()
        super().close()

    def _datagram(self, record: logging.LogRecord) -> bytes:
        fields = {
            "MESSAGE": self.format(record),
            "PRIORITY": next(number for least, number in _PRIORITIES if record.levelno >= least),
            "SYSLOG_IDENTIFIER": IDENTIFIER,
            "LOGGER": record.name,
            "CODE_FILE": record.pathname,
            "CODE_LINE": record.lineno,
            "CODE_FUNC": record.funcName,
        }
        more: Mapping[str, object] = getattr(record, "journal_fields", {})
        fields |= {f"HOMESPECD_{key}": str(value) for key, value in more.items()}
        return b"".join(_encoded(key, str(value)) for key, value in fields.items())


def log_handler(environment: Mapping[str, str], *, stderr_fd: int = 2) -> logging.Handler:
    """The journal when systemd connected standard error to it, else standard error."""
    if environment.get("JOURNAL_STREAM") == _identity(stderr_fd) and SOCKET.exists():
        return JournalHandler()
    lines = logging.StreamHandler(sys.stderr)
    lines.setFormatter(LineFormatter("%(levelname)s %(message)s"))
    return lines


def _identity(fd: int) -> str:
    """What JOURNAL_STREAM says of a stream: its device and inode."""
    try:
        found = os.fstat(fd)
    except OSError:  # closed
        return ""
    return f"{found.st_dev}:{found.st_ino}"


def _encoded(key: str, value: str) -> bytes:
    data = value.encode("utf-8", "replace")[:_MAX_VALUE_BYTES]
    if b"\n" not in data:
        return b"%s=%s\n" % (key.encode(), data)
    # With line ends in it, a value is preceded by its length.
    return b"%s\n%s%s\n" % (key.encode(), struct.pack("<Q", len(data)), data)
