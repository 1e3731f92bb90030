"""Exported decoders with GroupQueryAttention over one buffer shared by past and present.

This is what the onnxruntime-genai builder writes: the same inputs and outputs as a concatenated
export, but made to have past and present bound to the same memory, so that a step copies nothing
and rewinding is free. The valid length follows from `attention_mask`, which has one entry per
position up to the step's last.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from homespecd.bundle.layout import CacheTensors
from homespecd.runtime.buffers import BufferCache
from homespecd.runtime.concatenated import ConcatenatedModel, DecoderCache
from homespecd.runtime.device_cache import DeviceCache
from homespecd.runtime.placement import DeviceMemory
from homespecd.runtime.step import KVCache


class SharedBufferCache(BufferCache):
    """A buffer cache that binds itself for a pass."""

    def bind(self, binding: Any, rows: int, *, with_past: bool) -> None:
        _bind(self, self._tensors, binding, rows, with_past=with_past)

    def advance(self, rows: int, presents: Sequence[Any] = ()) -> None:
        del presents  # they are the buffers themselves
        super().advance(rows)


class DeviceSharedBufferCache(DeviceCache):
    """The same in a device's own memory."""

    def bind(self, binding: Any, rows: int, *, with_past: bool) -> None:
        _bind(self, self._tensors, binding, rows, with_past=with_past)

    def advance(self, rows: int, presents: Sequence[Any] = ()) -> None:
        del presents
        super().advance(rows)


def _bind(
    cache: BufferCache | DeviceCache,
    tensors: CacheTensors,
    binding: Any,
    rows: int,
    *,
    with_past: bool,
) -> None:
    assert with_past, "a shared buffer is both past and present"
    cache.reserve(cache.length + rows)
    names = zip(tensors.pasts, tensors.presents, strict=True)
    for (past, present), value in zip(names, cache.values, strict=True):
        binding.bind_ortvalue_input(past, value)
        binding.bind_ortvalue_output(present, value)


class SharedBufferModel(ConcatenatedModel):
    """`runtime.step.Model` over such a graph; everything but the cache is as for the others."""

    def new_cache(self) -> DecoderCache:
        memory, limit = self._next.session.memory, self._spec.context
        if memory == DeviceMemory():
            return SharedBufferCache(self._tensors, limit=limit)
        return DeviceSharedBufferCache(self._tensors, memory, limit=limit)

    def _own(self, cache: KVCache) -> DecoderCache:
        assert isinstance(cache, SharedBufferCache | DeviceSharedBufferCache), (
            "a cache that this model did not make"
        )
        return cache
