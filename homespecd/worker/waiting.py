"""Requests that wait for a slot: in order, but no user's many before another's few."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from homespecd.errors import HomespecError
from homespecd.worker.slots import Slot

if TYPE_CHECKING:
    from homespecd.worker.generate import Conversation


@dataclass(frozen=True)
class Outcome:
    """How a conversation ended: a finish reason, or an error, or (both None) it was cancelled."""

    finish_reason: str | None = None
    error: HomespecError | None = None


@dataclass(frozen=True)
class Ticket:
    """A request waiting for a slot. `start` makes its conversation once the slot is known.

    peer: whose it is; all requests of one Unix user share what they get.
    """

    id: int
    prompt: Sequence[int]
    start: Callable[[Slot], Conversation]
    finish: Callable[[Conversation | None, Outcome], None]
    peer: int | None = None


class Waiting:
    """The queue. Of the users that wait, the one with the fewest conversations under way is next;
    of equals, and of one user's own, who came first."""

    def __init__(self) -> None:
        self._tickets: list[Ticket] = []

    def __len__(self) -> int:
        return len(self._tickets)

    def __iter__(self) -> Iterator[Ticket]:
        return iter(tuple(self._tickets))

    def append(self, ticket: Ticket) -> None:
        self._tickets.append(ticket)

    def remove(self, ticket: Ticket) -> None:
        self._tickets.remove(ticket)

    def pop(self, served: Iterable[int | None], *, among: Sequence[Ticket] | None = None) -> Ticket:
        """The next one. served: the peer of every conversation that is under way; among: who may be
        chosen, None = all."""
        shares = Counter(served)
        # `min` keeps the first among equals.
        ticket = min(among or self._tickets, key=lambda one: shares[one.peer])
        self._tickets.remove(ticket)
        return ticket
