"""How much of a cache is valid, whatever memory it lies in."""

from __future__ import annotations


class Rewindable:
    """Positions beyond `length` may hold anything: to rewind is to set a number."""

    def __init__(self) -> None:
        self.length = 0

    def rewind_to(self, length: int) -> None:
        """See `runtime.step.KVCache`."""
        if not 0 <= length <= self.length:
            raise ValueError(f"cannot rewind a cache of {self.length} tokens to {length}")
        self.length = length
