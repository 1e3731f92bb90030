"""A cache that a graph writes in place: past and present are the same memory.

Nothing is copied per step, and rewinding is setting a number. Buffers grow with use, by a copy of
what is valid.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from homespecd.bundle.layout import CacheTensors
from homespecd.errors import ModelError
from homespecd.runtime.rewindable import Rewindable
from homespecd.runtime.session import load_onnxruntime, numpy_dtype
from homespecd.runtime.step import KVCache, Rows

# A buffer starts at this many positions and grows by half: a short chat holds little, and a long
# one is copied a few times in its life.
FIRST_CAPACITY = 256
GROWTH = 1.5


def next_capacity(held: int, needed: int, limit: int) -> int:
    """Positions to allocate when `needed` do not fit into `held`; never more than `limit`."""
    assert needed <= limit
    if needed <= held:
        return held
    return min(limit, max(needed, FIRST_CAPACITY, int(held * GROWTH)))


class BufferCache(Rewindable):
    """The keys and values of one sequence, in one buffer per layer and kind.

    `values` are onnxruntime values [1, kv_heads, capacity, head_dim] in the order of the graph's
    names; the tuple is another one after the buffers have grown. limit: most positions.
    """

    def __init__(self, tensors: CacheTensors, *, limit: int) -> None:
        super().__init__()
        self._tensors = tensors
        self._limit = limit
        self._buffer = self._allocate(0)
        self.values: tuple[object, ...] = ()

    @property
    def nbytes(self) -> int:
        return self._buffer.nbytes

    @property
    def capacity(self) -> int:
        return int(self._buffer.shape[2])

    def take_from(self, other: KVCache, length: int) -> None:
        """See `runtime.step.CopyingCache`."""
        assert isinstance(other, BufferCache), "a cache of another kind"
        assert length <= other.length
        before, self.length = self.length, 0  # what is thrown away need not be kept by growing
        try:
            self.reserve(length)
        except ModelError:
            self.length = before
            raise
        self._buffer[:, :, :length] = other._buffer[:, :, :length]
        self.length = length

    def reserve(self, positions: int) -> None:
        """Make room for so many positions; what is valid stays, bit for bit.

        Raises:
            ModelError: there is no memory for it; the cache is as it was.
        """
        capacity = next_capacity(self.capacity, positions, self._limit)
        if capacity == self.capacity:
            return
        grown = self._allocate(capacity)
        grown[:, :, : self.length] = self._buffer[:, :, : self.length]
        ort = load_onnxruntime()
        self.values = tuple(
            ort.OrtValue.ortvalue_from_numpy(tensor[np.newaxis]) for tensor in grown
        )
        self._buffer = grown

    def advance(self, rows: int) -> None:
        """Count the rows of a step that succeeded."""
        self.length += rows

    def _allocate(self, capacity: int) -> npt.NDArray[np.generic]:
        t = self._tensors
        shape = (len(t.pasts), t.kv_heads, capacity, t.head_dim)
        try:
            # Zeros are the kernel's own until they are touched, so a large buffer is not yet
            # memory. They are also finite: attention may read garbage, but not NaN.
            return np.zeros(shape, dtype=numpy_dtype(t.dtype))
        except MemoryError as error:
            raise ModelError(
                f"no memory for a cache of {capacity} tokens", out_of_memory=True
            ) from error


def check_room(cache: KVCache, entry: Rows, context: int) -> None:
    """Raises ValueError when an entry's rows would not fit into the context."""
    needed = cache.length + len(entry.tokens)
    if needed > context:
        raise ValueError(
            f"a cache of {cache.length} tokens and {len(entry.tokens)} more do not fit into a "
            f"context of {context}"
        )
