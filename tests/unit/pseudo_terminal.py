"""`homespecctl` on a terminal of its own, and what it shows there."""

from __future__ import annotations

import fcntl
import os
import pty
import re
import select
import signal
import struct
import subprocess
import sys
import termios
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

PROGRAM = "import sys; from homespecd.cli.main import main; sys.exit(main())"

_STYLE = re.compile(r"\x1b\[[0-9;]*m")


class Session:
    """A program on a terminal of its own."""

    def __init__(self, process: subprocess.Popen[bytes], terminal: int) -> None:
        self.process = process
        self.seen = b""
        self._terminal = terminal

    def read_until(self, expected: bytes) -> None:
        while expected not in self.seen:
            self.seen += self._read()

    def read_to_end(self) -> int:
        while part := self._read():
            self.seen += part
        return self.process.wait()

    def press(self, keys: str) -> None:
        os.write(self._terminal, keys.encode())

    def resize(self, columns: int, lines: int) -> None:
        size = struct.pack("HHHH", lines, columns, 0, 0)
        fcntl.ioctl(self._terminal, termios.TIOCSWINSZ, size)
        self.process.send_signal(signal.SIGWINCH)

    def screen(self) -> list[str]:
        """The last whole screen that was drawn, without its styles; [] before there is one."""
        text = self.seen.decode("utf-8", "replace")
        end = text.rfind("\x1b[J")
        begin = text.rfind("\x1b[H", 0, end) if end >= 0 else -1
        if begin < 0:
            return []
        drawn = text[begin + 3 : end].replace("\x1b[K", "")
        return [line.rstrip() for line in _STYLE.sub("", drawn).split("\r\n")]

    def wait_for(self, condition: Callable[[list[str]], object]) -> list[str]:
        """Read until a screen is as it should be; generous, since nothing depends on the time."""
        deadline = time.monotonic() + 60
        while not condition(self.screen()):
            assert time.monotonic() < deadline, "\n".join(self.screen())
            if select.select([self._terminal], [], [], 0.2)[0]:
                part = self._read()
                assert part, self.seen[-2000:].decode("utf-8", "replace")
                self.seen += part
        return self.screen()

    def _read(self) -> bytes:
        try:
            return os.read(self._terminal, 65536)
        except OSError:  # EIO: the other end is closed
            return b""


@contextmanager
def on_a_terminal(*arguments: str, **environment: str) -> Iterator[Session]:
    terminal, other = pty.openpty()
    settings = {"TERM": "xterm", "COLUMNS": "100", "LINES": "40", **environment}
    inherited = {k: v for k, v in os.environ.items() if k not in ("NO_COLOR", "FORCE_COLOR")}
    process = subprocess.Popen(
        [sys.executable, "-c", PROGRAM, *arguments],
        stdin=other,
        stdout=other,
        stderr=other,
        env={**inherited, **settings},
        start_new_session=True,
    )
    os.close(other)
    try:
        yield Session(process, terminal)
    finally:
        process.kill()
        process.wait()
        os.close(terminal)
