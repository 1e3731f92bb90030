"""All running requests, as far as anyone can tell, and what is expected of the next one.

Requests have no end here: a client may be gone without a word. One that has been silent for a while
is retired when the next one starts, and what it showed becomes part of what that one starts from.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from homespecd.governor.kinds import Kinds
from homespecd.governor.levels import finite
from homespecd.governor.pair import Pair
from homespecd.governor.protocol import Situation
from homespecd.governor.running import RequestState

# A round of the slowest model that is any use takes less; coming back after it costs no more than
# the request's own acceptance, learned again in a few rounds.
SILENT_S = 2.0
_MOST_REQUESTS = 64

# Answers of a kind whose lengths are remembered.
_REMEMBERED_ANSWERS = 16


class Company(NamedTuple):
    """Those who share a step: tokens that they expect of it and rows that they propose, together.

    ahead_ms: of the one of them that is least ahead of its fair speed. slots: how many share it.
    """

    tokens: float
    proposed: int
    ahead_ms: float
    slots: int


ALONE = Company(0.0, 0, float("inf"), 1)


class Asked(NamedTuple):
    """A choice whose round has not been reported yet.

    tokens: what this slot expects of it. proposed: rows of it. expected_ms: 0 where nobody looked.
    considered: whether the drafters with an offer were weighed, or passed over unseen.
    """

    at_s: float
    situation: Situation
    tokens: float = 1.0
    proposed: int = 0
    expected_ms: float = 0.0
    considered: bool = True


@dataclass(slots=True)
class Length:
    """Tokens of the last answers of one kind of request, or of all."""

    tokens: tuple[int, ...] = ()

    def child(self) -> Length:
        """Of a narrower kind, of which nothing is known yet."""
        return Length()

    def learn(self, tokens: int) -> None:
        """One more answer."""
        self.tokens = (*self.tokens, tokens)[-_REMEMBERED_ANSWERS:]

    def to_record(self) -> list[Any]:
        return list(self.tokens)

    @staticmethod
    def from_record(record: Any) -> Length:
        """Raises ValueError or TypeError when it is not sane."""
        return Length(tuple(int(finite(one, 0, 1e15)) for one in record)[-_REMEMBERED_ANSWERS:])


class Requests:
    """The requests that are running, as far as anyone can tell."""

    def __init__(self) -> None:
        self._states: dict[int, RequestState] = {}
        self._lengths = Kinds(Length())

    def state(
        self,
        request: int,
        now_s: float,
        beginnings: Sequence[int],
        *,
        pairs: Mapping[str, Pair],
        started: Callable[[], None],
    ) -> RequestState:
        """The request's state; `started` is called when it is new."""
        state = self._states.get(request)
        if state is None:
            self._retire(now_s, pairs)
            started()
            state = self._states[request] = RequestState(
                now_s, beginnings=beginnings, lengths=self._lengths.nearest(beginnings).tokens
            )
        state.last_s = now_s
        return state

    def others_ahead_ms(self, request: int, most: int, now_s: float) -> list[float]:
        """How far those are ahead that were here last besides this one, so many at the most."""
        running = sorted(
            (
                (state.last_s, state.ahead_ms)
                for other, state in self._states.items()
                if other != request and now_s - state.last_s <= SILENT_S
            ),
            reverse=True,
        )
        return [ahead_ms for _, ahead_ms in running[:most]]

    def _retire(self, now_s: float, pairs: Mapping[str, Pair]) -> None:
        silent = [
            request for request, state in self._states.items() if now_s - state.last_s > SILENT_S
        ]
        # Insertion order: the oldest go first when there are too many.
        crowd = len(self._states) - len(silent) - _MOST_REQUESTS + 1
        if crowd > 0:
            silent += [request for request in self._states if request not in silent][:crowd]
        for request in silent:
            state = self._states.pop(request)
            for length in self._lengths.passed(state.beginnings):
                length.learn(state.committed)
            state.retire(pairs)

    def to_record(self) -> dict[str, Any]:
        return self._lengths.to_record()

    def restore(self, record: Mapping[str, Any]) -> None:
        """Take over what an earlier run learned. Raises ValueError, KeyError or TypeError."""
        self._lengths.restore(record, Length.from_record)
