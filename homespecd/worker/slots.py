"""A slot: one conversation kept warm, its tokens, its KV cache and its drafters.

Invariant, between rounds: the target's cache holds a prefix of `committed`, at most
`len(committed) - 1` tokens, and every drafter's cache holds a prefix of `committed`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from homespecd.decoding.sequences import common_prefix
from homespecd.drafters.protocol import Drafter
from homespecd.errors import ModelError
from homespecd.runtime.step import CopyingCache, KVCache

# Tokens. Copying costs microseconds a token where computing costs milliseconds; less is not worth
# waiting for.
WORTH_COPYING = 32


class Slot:
    """What stays warm from one request to the next. Used by the engine's thread only."""

    def __init__(self, index: int, cache: KVCache, drafters: Mapping[str, Drafter]) -> None:
        self.index = index
        self.cache = cache
        self.drafters = dict(drafters)
        self.committed: list[int] = []
        self.used_at_s = float("-inf")

    def reusable(self, prompt: Sequence[int]) -> int:
        """Tokens of `prompt` whose keys and values this slot holds already.

        At least the last token is always computed again: its logits are what the answer starts
        from.
        """
        return min(common_prefix(self.committed, prompt), self.cache.length, len(prompt) - 1)

    def adopt(self, prompt: Sequence[int], others: Iterable[Slot]) -> None:
        """Begin as another slot does, if it holds much more of `prompt` than this one.

        Conversations with one beginning (choices of one request, a long system prompt) then compute
        it once. Drafts catch up by themselves.
        """
        if not isinstance(self.cache, CopyingCache):
            return
        best = max(others, key=lambda one: one.reusable(prompt), default=self)
        length = best.reusable(prompt)
        if length - self.reusable(prompt) < WORTH_COPYING:
            return
        shared = common_prefix(self.committed, prompt)
        try:
            self.cache.take_from(best.cache, length)
        except ModelError:
            return  # no memory: it is computed again, in pieces
        for drafter in self.drafters.values():
            drafter.rewind(min(shared, length))
        self.committed = list(prompt[: length + 1])

    def begin(self, prompt: Sequence[int]) -> int:
        """Make `prompt` the committed sequence; returns how many of its tokens were reusable."""
        reused = self.reusable(prompt)
        shared = common_prefix(self.committed, prompt)
        self.cache.rewind_to(reused)
        for drafter in self.drafters.values():
            drafter.rewind(shared)
        self.committed = list(prompt)
        return reused

    def commit(self, tokens: Sequence[int], *, accepted: int) -> None:
        """Append what a round kept. The first `accepted` of it were in the proposal."""
        standing = len(self.committed) + min(accepted, len(tokens))
        self.committed.extend(tokens)
        self.cache.rewind_to(len(self.committed) - 1)
        for drafter in self.drafters.values():
            drafter.rewind(standing)

    def settle(self) -> None:
        """Restore the invariant wherever a round was left, however it was left."""
        self.cache.rewind_to(max(0, min(self.cache.length, len(self.committed) - 1)))
        for drafter in self.drafters.values():
            drafter.rewind(len(self.committed))

    def forget(self) -> None:
        """Drop the conversation: nothing in the caches is to be trusted again."""
        self.committed = []
        self.cache.rewind_to(0)
        for drafter in self.drafters.values():
            drafter.rewind(0)

    @property
    def nbytes(self) -> int:
        return self.cache.nbytes + sum(drafter.nbytes for drafter in self.drafters.values())


def pick(free: Iterable[Slot], prompt: Sequence[int]) -> Slot:
    """The free slot that saves the most work; among equals the one unused for longest.

    A slot whose warm conversation would be thrown away for a short shared beginning (a system
    prompt, say) is not worth more than an old one that shares as much.
    """
    return min(free, key=lambda slot: (-slot.reusable(prompt), slot.used_at_s))
