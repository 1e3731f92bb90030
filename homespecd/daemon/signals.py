"""Signals of a process that is told to stop and to read its configuration again.

Plain handlers rather than the event loop's own: those come through a pipe that a flood of one
signal fills, so that another one is lost; and taking them away restores the default first, so that
a late one ends a process that was about to end in order.
"""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from types import FrameType


@contextmanager
def handled(handlers: Mapping[signal.Signals, Callable[[], None]]) -> Iterator[None]:
    """In the block, these signals call these functions on the running event loop; after it, until
    the process ends, they do nothing. On the main thread only."""
    loop = asyncio.get_running_loop()

    def on_signal(number: int, _frame: FrameType | None) -> None:
        loop.call_soon_threadsafe(handlers[signal.Signals(number)])

    for number in handlers:
        signal.signal(number, on_signal)
    try:
        yield
    finally:
        for number in handlers:
            signal.signal(number, signal.SIG_IGN)
