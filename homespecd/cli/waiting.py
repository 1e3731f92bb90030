"""A sign of life while something long runs, where there is somebody to see it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from homespecd.cli.terminal import Terminal


@contextmanager
def waiting(terminal: Terminal, text: str) -> Iterator[None]:
    """A spinner on standard error; nothing at all where that is no terminal."""
    if not terminal.err.is_terminal:
        yield
        return
    with terminal.err.status(f"{text} …"):
        yield
