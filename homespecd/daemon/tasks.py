"""Work that goes on beside whoever began it."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine


class Tasks:
    """Keeps tasks until they end: the event loop itself would forget them."""

    def __init__(self) -> None:
        self._running: set[asyncio.Task[None]] = set()

    def start(self, work: Coroutine[None, None, None]) -> None:
        task = asyncio.get_running_loop().create_task(work)
        self._running.add(task)
        task.add_done_callback(self._running.discard)

    async def cancel(self) -> None:
        """End all, and wait for that."""
        for task in self._running:
            task.cancel()
        await asyncio.gather(*self._running, return_exceptions=True)
