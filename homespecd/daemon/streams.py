"""The way of one request's events from a worker's socket to whoever answers the client."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence

from homespecd.api.service import Delta, Done, Event, joined
from homespecd.errors import RequestError


class RequestStream:
    """The events of one request, as they come from the worker.

    What a client has not taken yet is one delta for each choice, however many have come: one that
    never reads costs no more than its answer as a whole.

    Args:
        cancel: stops the generation.
    """

    def __init__(self, cancel: Callable[[], None]) -> None:
        self._cancel = cancel
        self._deltas: dict[int, Delta] = {}
        self._end: Done | RequestError | None = None
        self._wake: asyncio.Future[None] | None = None
        self._over = False
        self.begun = False  # something of the answer has come
        self._when_over: Callable[[], None] = lambda: None

    def when_over(self, told: Callable[[], None]) -> None:
        """Call `told` when the last event has come, whether anybody takes it or not."""
        self._when_over = told
        if self._over:
            told()

    def push(self, event: Event) -> None:
        if isinstance(event, Delta):
            self.begun = True
            known = self._deltas.get(event.index)
            self._deltas[event.index] = event if known is None else joined(known, event)
        else:
            self._end = event
            self._over = True
            self._when_over()
        if self._wake is not None and not self._wake.done():
            self._wake.set_result(None)

    async def events(self) -> Sequence[Event]:
        """What has come since the last call, at least one event."""
        if not self._deltas and self._end is None:
            self._wake = asyncio.get_running_loop().create_future()
            try:
                await self._wake
            finally:
                self._wake = None
        events: list[Event] = [*self._deltas.values()]
        if self._end is not None:
            events.append(self._end)
        self._deltas, self._end = {}, None
        return events

    def close(self) -> None:
        """Stop the generation, if it has not ended. Idempotent."""
        self._cancel()
