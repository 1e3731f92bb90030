"""Requests that begin alike: the same app with the same instructions, mostly.

What a drafter is good for differs more between two apps than between two texts of one. So what a
request has shown is remembered under the beginning of its prompt, and the next one that begins so
starts from there. How long a beginning it takes to tell them apart is not known, so several are
kept, and the longest one that is known counts.

Only short hashes of beginnings are kept, never text.
"""

from __future__ import annotations

import zlib
from array import array
from collections import OrderedDict
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Generic, Protocol, Self, TypeVar

# Tokens. A system prompt of an app's own differs from others within a few dozen; without one, the
# instructions begin after the model's own, some 24 tokens in.
_LENGTHS = (16, 32, 64)

# Least recently used first out: a request that comes once adds two or three. A hundred bytes each
# in the ledger.
_MOST_KINDS = 256

# Two beginnings in ten thousand are taken for one another; nobody can tell a text from so little.
_HASH = 0xFFFF


class Remembered(Protocol):
    """What is remembered of a kind."""

    def child(self) -> Self:
        """Where a narrower kind starts from, of which nothing else is known."""
        ...

    def to_record(self) -> list[Any]: ...


T = TypeVar("T", bound=Remembered)


def beginnings(prompt: Sequence[int]) -> tuple[int, ...]:
    """Hashes of a prompt's first 16, 32 … token ids, as far as it goes; stable across restarts."""
    hashes: list[int] = []
    before, value = 0, 0
    for length in _LENGTHS:
        if length > len(prompt):
            break
        value = zlib.crc32(array("q", prompt[before:length]).tobytes(), value)
        # With its length: no two nodes of one way are the same.
        hashes.append((value & _HASH) << 8 | length)
        before = length
    return tuple(hashes)


class Kinds(Generic[T]):
    """Something remembered of all requests, and of each kind."""

    def __init__(self, every: T) -> None:
        self._every = every
        self._known: OrderedDict[int, T] = OrderedDict()

    def nearest(self, beginnings: Sequence[int]) -> T:
        """What is known of those that share the longest beginning; of all, if none does."""
        return next(self.wider(beginnings))

    def wider(self, beginnings: Sequence[int]) -> Iterator[T]:
        """The same, and then those that share less, up to all."""
        for hashed in reversed(beginnings):
            found = self._known.get(hashed)
            if found is not None:
                yield found
        yield self._every

    def passed(self, beginnings: Sequence[int]) -> list[T]:
        """A request is over: all that it counts for, from every request to the narrowest kind."""
        way = [self._every]
        for hashed in beginnings:
            found = self._known.get(hashed)
            if found is None:
                found = self._known[hashed] = way[-1].child()
            way.append(found)
            self._known.move_to_end(hashed)
        while len(self._known) > _MOST_KINDS:
            self._known.popitem(last=False)
        return way

    def each(self) -> list[T]:
        """All of them."""
        return [self._every, *self._known.values()]

    def to_record(self) -> dict[str, Any]:
        return {
            "all": self._every.to_record(),
            "kinds": {str(key): one.to_record() for key, one in self._known.items()},
        }

    def restore(self, record: Mapping[str, Any], read: Callable[[Any], T]) -> None:
        """Take over what an earlier run learned. Raises what `read` raises, KeyError, ValueError,
        TypeError or AttributeError."""
        self._every = read(record["all"])
        known = {int(key): read(one) for key, one in record["kinds"].items()}
        self._known = OrderedDict([*known.items()][-_MOST_KINDS:])
