"""The live status: reads keys and snapshots, draws screens. What a screen holds is `live_view`'s.

Nothing is drawn that is on the screen already, so an idle service costs next to nothing to watch.
"""

from __future__ import annotations

import codecs
import os
import select
import signal
import sys
import termios
import threading
import time
import tty
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import Any

from rich.console import Console, ConsoleDimensions

from homespecd.cli.client import ANSWER_TIMEOUT_S, Client, model_route
from homespecd.cli.control import RELOAD_TIMEOUT_S
from homespecd.cli.exits import CommandError
from homespecd.cli.live_view import View, screen

_ENTER = "\x1b[?1049h\x1b[?25l"
_LEAVE = "\x1b[?25h\x1b[?1049l"
_HOME, _REST_OF_LINE, _REST_OF_SCREEN = "\x1b[H", "\x1b[K", "\x1b[J"

# What keys send, as the names that `Live` knows. Arrows come in two dialects.
_SEQUENCES = {"\x1b[A": "up", "\x1bOA": "up", "\x1b[B": "down", "\x1bOB": "down"}
_LETTERS = {"k": "up", "j": "down", "\x03": "quit"}

# A terminal that cannot write these gets something that it can.
_PLAIN = str.maketrans("·–…▸↑↓×│┤░▏▎▍▌▋▊▉█▁▂▃▄▅▆▇", "--.>^vx||." + "#" * 15)

Snapshot = Mapping[str, Any]


def watch(
    client: Client,
    console: Console,
    first: Snapshot,
    *,
    interval_s: float,
    poll: Callable[[], Snapshot],
) -> Snapshot:
    """Draw until `q` or Ctrl-C (which raises). Returns the last snapshot that there was.

    Args:
        poll: asks for a snapshot; a CommandError from it is shown, and asked again.
    """
    live = Live(client, console, first)
    with _terminal() as wake:
        live.wake = wake
        live.run(interval_s, poll)
    return live.snapshot


class Live:
    """The state of one session at a terminal."""

    def __init__(self, client: Client, console: Console, first: Snapshot) -> None:
        self.snapshot = first
        self.view = View()
        self.view.take(first)
        self.wake: Wake | None = None
        self._client = client
        self._console = console
        self._drawn = ""
        self._busy = ""
        self._message_until_s = 0.0
        self._done = False

    def run(self, interval_s: float, poll: Callable[[], Snapshot]) -> None:
        """Keys at once, snapshots every `interval_s`."""
        next_s = time.monotonic() + interval_s
        self.draw()
        while not self._done:
            assert self.wake is not None
            for key in self.wake.wait(max(0.0, next_s - time.monotonic())):
                self.press(key)
            if time.monotonic() >= next_s:
                next_s = time.monotonic() + interval_s
                self._poll(poll)
            self.draw()

    def press(self, key: str) -> None:
        """Do what a key says; unknown ones do nothing."""
        model = self.view.selected
        if key in ("quit", "q"):
            self._done = True
        elif key in ("up", "down"):
            self.view.move(self.snapshot, -1 if key == "up" else 1)
        elif key == "p":
            self.view.pinned = not self.view.pinned and bool(model)
        elif key == "r":
            self._begin("reloading the configuration", self._reload)
        elif key in ("l", "u") and model:
            action = "load" if key == "l" else "unload"

            def act() -> str:
                self._client.post(model_route(model, action), timeout_s=ANSWER_TIMEOUT_S)
                return f"{model}: {action}ed"

            self._begin(f"{action}ing {model}", act)

    def draw(self) -> None:
        """Write the screen, if it is another one."""
        if self.view.message and not self._busy and time.monotonic() > self._message_until_s:
            self.view.message = ""
        width, height = _size(self._console)
        self._console.size = ConsoleDimensions(width, height)
        with self._console.capture() as captured:
            for line in screen(self.snapshot, self.view, width=width, height=height):
                self._console.print(line, no_wrap=True, overflow="crop", crop=True, highlight=False)
        lines = captured.get().rstrip("\n").split("\n")
        text = _HOME + (_REST_OF_LINE + "\r\n").join(lines) + _REST_OF_LINE + _REST_OF_SCREEN
        encoding = codecs.lookup(sys.stdout.encoding).name
        if not encoding.startswith("utf"):
            text = text.translate(_PLAIN).encode(encoding, "replace").decode(encoding)
        if text != self._drawn:
            self._drawn = text
            sys.stdout.write(text)
            sys.stdout.flush()

    def _poll(self, poll: Callable[[], Snapshot]) -> None:
        try:
            self.snapshot = with_names(poll())
            self.view.absent = ""
        except CommandError as error:
            self.view.absent = f"{error.message}; waiting for it"
            return
        self.view.take(self.snapshot)

    def _reload(self) -> str:
        reply = self._client.call("POST", "/homespec/reload", timeout_s=RELOAD_TIMEOUT_S)
        if reply.status == 422:
            problems = reply.body.get("problems") or [{}]
            return f"refused, {len(problems)} problems: homespecctl reload lists them"
        done = self._client.expect_success(reply) or {}
        said = "; ".join(done.get("changes") or ()) or "nothing has changed"
        warned = len(done.get("warnings") or ())
        return f"reloaded: {said}" + (
            f"; {warned} warnings: see homespecctl check" if warned else ""
        )

    def _begin(self, doing: str, action: Callable[[], str]) -> None:
        """Run what may take long beside the drawing; one at a time."""
        if self._busy:
            self.view.message = f"still {self._busy} …"
            return
        self._busy = doing
        self.view.message = f"{doing} …"

        def work() -> None:
            try:
                message = action()
            except CommandError as error:
                message = f"{doing} failed: {error}"
            self._busy = ""
            self._message_until_s = time.monotonic() + 5.0
            self.view.message = message
            assert self.wake is not None
            self.wake.up()

        threading.Thread(target=work, daemon=True).start()


class Wake:
    """Waits for keys, for a new size of the window, and for whoever calls `up`."""

    def __init__(self) -> None:
        self._read, self._write = os.pipe()
        os.set_blocking(self._write, False)
        self._keyboard: int | None = sys.stdin.fileno() if sys.stdin.isatty() else None
        self._pending = ""
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")

    def up(self) -> None:
        try:
            os.write(self._write, b"!")
        except OSError:  # full: it wakes anyway; closed: nobody waits
            return

    def wait(self, timeout_s: float) -> list[str]:
        """Keys that were pressed; [] for anything else, and after `timeout_s`."""
        waiting = [self._read] if self._keyboard is None else [self._read, self._keyboard]
        ready, _, _ = select.select(waiting, [], [], timeout_s)
        if self._read in ready:
            os.read(self._read, 4096)
        if self._keyboard not in ready or self._keyboard is None:
            return []
        data = os.read(self._keyboard, 4096)
        if not data:
            return ["quit"]  # the terminal is gone
        return list(self._keys(self._decoder.decode(data)))

    def close(self) -> None:
        os.close(self._read)
        os.close(self._write)

    def _keys(self, text: str) -> Iterator[str]:
        text = self._pending + text
        self._pending = ""
        while text:
            if text[0] != "\x1b":
                yield _LETTERS.get(text[0], text[0])
                text = text[1:]
            elif text[:3] in _SEQUENCES:
                yield _SEQUENCES[text[:3]]
                text = text[3:]
            elif len(text) < 3 and text[1:2] in ("", "[", "O"):
                self._pending = text if len(text) > 1 else ""
                return
            else:
                # Some other key's sequence: up to its final letter.
                end = next(
                    (i for i, char in enumerate(text[2:], 2) if char.isalpha() or char == "~"), 1
                )
                text = text[end + 1 :]


@contextmanager
def _terminal() -> Iterator[Wake]:
    """The other screen, keys as they are pressed, and everything as it was afterwards."""
    wake = Wake()

    def resized(_signal: int, _frame: FrameType | None) -> None:
        wake.up()

    saved = termios.tcgetattr(sys.stdin) if sys.stdin.isatty() else None
    before = signal.signal(signal.SIGWINCH, resized)
    try:
        if saved is not None:
            tty.setcbreak(sys.stdin)
        sys.stdout.write(_ENTER)
        yield wake
    finally:
        # Ctrl-C again would leave the terminal as it is.
        ignored = signal.signal(signal.SIGINT, signal.SIG_IGN)
        sys.stdout.write(_LEAVE)
        sys.stdout.flush()
        if saved is not None:
            termios.tcsetattr(sys.stdin, termios.TCSADRAIN, saved)
        signal.signal(signal.SIGWINCH, before)
        wake.close()
        signal.signal(signal.SIGINT, ignored)


def with_names(snapshot: Snapshot) -> Snapshot:
    """Names of clients that the service, in its sandbox, could not look up."""
    clients = [dict(client) for client in snapshot.get("clients") or []]
    for client in clients:
        if client.get("pid") and not client.get("comm"):
            try:
                client["comm"] = Path(f"/proc/{client['pid']}/comm").read_text().strip()
            except OSError:
                client["comm"] = ""
    return {**snapshot, "clients": clients}


def _size(console: Console) -> tuple[int, int]:
    """Of the window now. COLUMNS and LINES count where there is no window to ask."""
    try:
        size = os.get_terminal_size(sys.stdout.fileno())
    except OSError:
        return console.width, console.height
    return (
        (size.columns, size.lines)
        if size.columns and size.lines
        else (console.width, console.height)
    )
