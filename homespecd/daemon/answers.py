"""One running request: its events, and what is written down when it ends."""

from __future__ import annotations

import logging
import secrets
import time
from collections.abc import Callable, Sequence

from homespecd.api.service import Delta, Done, Event, Peer
from homespecd.daemon.clients import Client
from homespecd.daemon.journal import event
from homespecd.daemon.models import Model
from homespecd.daemon.streams import RequestStream
from homespecd.errors import RequestError


class RunningAnswer:
    """An `api.service.Answer` that keeps the accounts.

    Args:
        spend: told of tokens as they are used, of the prompt's when the answer is complete.
        on_end: called once, when the generation has ended or the asker needs no more. An answer
            that nobody takes is no running request.
    """

    def __init__(
        self,
        stream: RequestStream,
        *,
        model: Model,
        client: Client,
        spend: Callable[[int], None],
        on_end: Callable[[], None],
    ) -> None:
        self._stream = stream
        self._model = model
        self._client = client
        self._spend = spend
        self._on_end = on_end
        self._ended = False
        self._started_s = time.monotonic()
        self.id = secrets.token_hex(12)
        self._tokens = 0
        self._first_ms: int | None = None
        self._end: Done | RequestError | None = None
        self._closed = False
        stream.when_over(self._let_go)

    async def events(self) -> Sequence[Event]:
        events = await self._stream.events()
        before = self._tokens
        for one in events:
            if isinstance(one, Delta):
                if self._first_ms is None:
                    self._first_ms = self._ms()
                self._tokens += one.tokens
            else:
                self._end = one
        self._spend(self._tokens - before)
        return events

    def close(self) -> None:
        if self._closed:
            return
        self._closed = True
        self._stream.close()
        self._account()
        self._let_go()

    def _ms(self) -> int:
        return round((time.monotonic() - self._started_s) * 1e3)

    def _let_go(self) -> None:
        if not self._ended:
            self._ended = True
            self._on_end()

    def _account(self) -> None:
        """Add to the totals, and one line to the log: numbers only, never a word of the text."""
        totals, end = self._model.totals, self._end
        totals.requests += 1
        # What the worker says at the end is not known of an answer that was cut.
        prompt_tokens: int | None = None
        mode: str | None = None
        if isinstance(end, Done):
            outcome = end.finish_reasons[0]
            prompt_tokens = end.usage["prompt_tokens"]
            mode = end.homespec["mode"]
            self._tokens = end.usage["completion_tokens"]
            self._spend(prompt_tokens)
            self._model.timings.add(end.homespec)
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
        log_request(
            self._client.peer,
            id=self.id,
            model=self._model.name,
            prompt_tokens=prompt_tokens,
            tokens=self._tokens,
            ms=self._ms(),
            first_ms=self._first_ms,
            mode=mode,
            end=outcome,
        )


def log_request(peer: Peer, *, model: str, end: str, **numbers: str | int | None) -> None:
    """The one line of a request, and the same as fields: numbers, and never a word of its text.

    What is None is left out.
    """
    facts: dict[str, str | int] = {
        "model": model,
        "uid": "tcp" if peer.uid is None else peer.uid,
        **{key: value for key, value in numbers.items() if value is not None},
        "end": end,
    }
    fields = {"request_id" if key == "id" else key: value for key, value in facts.items()}
    fields["peer_uid"] = fields.pop("uid")
    logging.getLogger(__name__).info(
        "request %s",
        " ".join(f"{key}={value}" for key, value in facts.items()),
        extra=event("request", **fields, peer_pid=peer.pid),
    )
