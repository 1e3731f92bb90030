"""A cache that a graph writes in place in a device's own memory.

As `runtime.buffers`, where the graph runs somewhere that host memory must be copied to: there, a
buffer of the host would go over the bus with every step. Only growing takes it through the host.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from homespecd.bundle.layout import CacheTensors
from homespecd.errors import ModelError
from homespecd.runtime.buffers import BufferCache, next_capacity
from homespecd.runtime.placement import DeviceMemory
from homespecd.runtime.rewindable import Rewindable
from homespecd.runtime.session import load_onnxruntime, numpy_dtype, plain_reason


class DeviceCache(Rewindable):
    """The keys and values of one sequence, one buffer [1, kv_heads, capacity, head_dim] each.

    `values` are in the order of the graph's names; the tuple is another one after they have grown.
    limit: most positions.
    """

    def __init__(self, tensors: CacheTensors, memory: DeviceMemory, *, limit: int) -> None:
        super().__init__()
        self._tensors = tensors
        self._memory = memory
        self._limit = limit
        self.capacity = 0
        self.values: tuple[object, ...] = ()

    @property
    def nbytes(self) -> int:
        return self.capacity * self._tensors.bytes_per_token

    def reserve(self, positions: int) -> None:
        """Make room for so many positions; what is valid stays, bit for bit.

        Raises:
            ModelError: there is no memory for it; the cache is as it was.
        """
        capacity = next_capacity(self.capacity, positions, self._limit)
        if capacity == self.capacity:
            return
        olds: tuple[Any, ...] = self.values or (None,) * len(self._tensors.pasts)
        try:
            self.values = tuple(self._grown(old, capacity) for old in olds)
        except Exception as error:
            # onnxruntime's exceptions share no base but Exception.
            raise ModelError(
                f"no memory for a cache of {capacity} tokens: {plain_reason(error)}",
                out_of_memory=True,
            ) from error
        self.capacity = capacity

    def advance(self, rows: int) -> None:
        """Count the rows of a step that succeeded."""
        self.length += rows

    def _grown(self, old: Any, capacity: int) -> object:
        """One buffer, larger. Zeros are finite: attention may read garbage, but not NaN."""
        t = self._tensors
        shape = (1, t.kv_heads, capacity, t.head_dim)
        grown: npt.NDArray[Any] = np.zeros(shape, dtype=numpy_dtype(t.dtype))
        if self.length:
            grown[:, :, : self.length] = old.numpy()[:, :, : self.length]
        value: object = load_onnxruntime().OrtValue.ortvalue_from_numpy(
            grown, self._memory.kind, self._memory.index
        )
        return value


def cache_in(
    memory: DeviceMemory, tensors: CacheTensors, *, limit: int
) -> BufferCache | DeviceCache:
    """A cache in host memory, or in the device's own if it has any."""
    if memory == DeviceMemory():
        return BufferCache(tensors, limit=limit)
    return DeviceCache(tensors, memory, limit=limit)
