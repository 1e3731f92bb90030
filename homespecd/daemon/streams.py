"""The way of one request's events from a worker's socket to whoever answers the client."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence

from homespecd.api.service import Event


class RequestStream:
    """The events of one request, as they come from the worker."""

    def __init__(self, cancel: Callable[[], None]) -> None:
        self._cancel = cancel
        self._waiting: list[Event] = []
        self._wake: asyncio.Future[None] | None = None

    def push(self, event: Event) -> None:
        self._waiting.append(event)
        if self._wake is not None and not self._wake.done():
            self._wake.set_result(None)

    async def events(self) -> Sequence[Event]:
        """What has come since the last call, at least one event."""
        if not self._waiting:
            self._wake = asyncio.get_running_loop().create_future()
            try:
                await self._wake
            finally:
                self._wake = None
        events, self._waiting = self._waiting, []
        return events

    def close(self) -> None:
        """Stop the generation, if it has not ended. Idempotent."""
        self._cancel()
