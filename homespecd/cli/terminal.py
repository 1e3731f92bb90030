"""What a command writes to: answers on standard output, everything else on standard error."""

from __future__ import annotations

import re
import sys
from dataclasses import dataclass

from rich.console import Console

# A table in a log or a pipe has no window to fit into.
PIPE_COLUMNS = 160

# Everything that could move a cursor or change a terminal; text keeps its tabs and line ends.
_CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f]")


@dataclass(frozen=True)
class Terminal:
    """`out` and `err` as rich consoles; both honour NO_COLOR and stay plain in a pipe."""

    out: Console
    err: Console

    @classmethod
    def standard(cls) -> Terminal:
        return cls(out=_console(stderr=False), err=_console(stderr=True))

    def write(self, text: str) -> None:
        """Text on standard output as it is: never wrapped, coloured or held back."""
        sys.stdout.write(text)
        sys.stdout.flush()

    def note(self, text: str) -> None:
        """A line for the person, not for the pipe."""
        self.err.print(text, markup=False, highlight=False, soft_wrap=True)


def harmless(text: str) -> str:
    """`text` without control characters: a model's words must not drive the terminal."""
    return _CONTROL.sub("", text)


def _console(*, stderr: bool) -> Console:
    stream = sys.stderr if stderr else sys.stdout
    return Console(stderr=stderr, width=None if stream.isatty() else PIPE_COLUMNS)
