"""One running request: its events, and what is written down when it ends."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Sequence

from homespecd.api.service import Delta, Done, Event
from homespecd.daemon.clients import Client
from homespecd.daemon.models import Model
from homespecd.daemon.streams import RequestStream
from homespecd.errors import RequestError


class RunningAnswer:
    """An `api.service.Answer` that keeps the accounts.

    Args:
        on_close: called once, when the asker needs no more.
    """

    def __init__(
        self, stream: RequestStream, *, model: Model, client: Client, on_close: Callable[[], None]
    ) -> None:
        self._stream = stream
        self._model = model
        self._client = client
        self._on_close = on_close
        self._started_s = time.monotonic()
        self._tokens = 0
        self._end: Done | RequestError | None = None
        self._closed = False

    async def events(self) -> Sequence[Event]:
        events = await self._stream.events()
        for event in events:
            if isinstance(event, Delta):
                self._tokens += event.tokens
            else:
                self._end = event
        return events

    def close(self) -> None:
        if self._closed:
            return
        self._closed = True
        self._stream.close()
        self._account()
        self._on_close()

    def _account(self) -> None:
        """Add to the totals, and one line to the log: numbers only, never a word of the text."""
        totals, end = self._model.totals, self._end
        totals.requests += 1
        prompt_tokens, mode = 0, "-"
        if isinstance(end, Done):
            outcome = end.finish_reasons[0]
            prompt_tokens = end.usage["prompt_tokens"]
            self._tokens = end.usage["completion_tokens"]
            mode = end.homespec["mode"]
            totals.prompt_tokens += prompt_tokens
            totals.rounds += end.homespec["rounds"]
            totals.proposed += end.homespec["draft_tokens_proposed"]
            totals.accepted += end.homespec["draft_tokens_accepted"]
        elif isinstance(end, RequestError):
            outcome = end.code or f"error_{end.status}"
            totals.failures += end.status >= 500
        else:
            outcome = "cancelled"
        totals.completion_tokens += self._tokens
        self._client.completion_tokens += self._tokens
        if isinstance(end, Done):
            # A worker that answers is well: the next crash counts as the first.
            self._model.failures = 0
        logging.getLogger(__name__).info(
            "request model=%s uid=%s prompt_tokens=%d tokens=%d ms=%.0f mode=%s end=%s",
            self._model.name,
            "tcp" if self._client.peer.uid is None else self._client.peer.uid,
            prompt_tokens,
            self._tokens,
            (time.monotonic() - self._started_s) * 1e3,
            mode,
            outcome,
        )
