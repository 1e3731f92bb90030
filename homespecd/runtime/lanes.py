"""Several sequences in one step, over the lanes graphs that `homespecctl import` writes.

docs/design.md has the table of the graphs' inputs and outputs. There is one session per lane count
over the same weights; a step uses the smallest that holds its entries. Keys and values lie in
buffers that the graph writes in place (past and present are bound to the same memory), so a step
copies nothing and rewinding is setting a number.

What a step binds anew is small (ids, counts, logits); the caches, two names per layer and
direction, stay bound until a lane changes its cache or the cache its buffer. Logits that may stay
on a device do (`runtime.device_logits`).
"""

from __future__ import annotations

import weakref
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from homespecd.bundle.layout import CacheTensors
from homespecd.runtime.buffers import BufferCache, check_room
from homespecd.runtime.device_cache import DeviceCache, cache_in
from homespecd.runtime.device_logits import DeviceLogits, StepLogits, reducer_for
from homespecd.runtime.session import Session, load_onnxruntime
from homespecd.runtime.step import AnyLogits, KVCache, Logits, ModelSpec, Rows

Buffers = BufferCache | DeviceCache

# Each lane of a step writes one entry past its rows (see the graph): the buffer needs the room.
SPARE = 1


class _Graph:
    """One session and its binding, with what is bound to it now."""

    def __init__(self, session: Session, tensors: CacheTensors, scratch: Buffers) -> None:
        self.session = session
        self.lanes = tensors.lanes
        self._binding = session.binding()
        self._binding.bind_output("logits", "cpu")  # so that it is the first of the outputs
        self._bind_value = self._binding._iobinding.bind_ortvalue_input
        self._bind_output = self._binding._iobinding.bind_ortvalue_output
        self._bind_numpy = self._binding._iobinding.bind_input
        self._scratch = scratch
        self._names = [
            [
                (f"{past}.{lane}", f"{present}.{lane}")
                for past, present in zip(tensors.pasts, tensors.presents, strict=True)
            ]
            for lane in range(self.lanes)
        ]
        # Whose buffers each lane is bound to (weakly: a cache that nobody wants any more gives its
        # memory back at once), and which (a cache has another tuple when it has grown).
        self._owners: list[weakref.ref[Buffers] | None] = [None] * self.lanes
        self._bound: list[tuple[object, ...]] = [()] * self.lanes
        for lane in range(self.lanes):
            self._bind(lane, scratch.values)

    def seat(self, caches: Sequence[Buffers]) -> list[int]:
        """A lane for each cache: the one it had last time where it had one, so that little is
        bound anew. Lanes without a cache are given the scratch buffer."""
        lanes = [-1] * len(caches)
        free = list(range(self.lanes))
        for i, cache in enumerate(caches):
            for lane in free:
                owner = self._owners[lane]
                if owner is not None and owner() is cache:
                    lanes[i] = lane
                    free.remove(lane)
                    break
        for i, cache in enumerate(caches):
            if lanes[i] < 0:
                lanes[i] = free.pop(0)
                self._own(lanes[i], cache)
            self._bind(lanes[i], cache.values)
        for lane in free:
            self._vacate(lane)
        return lanes

    def close(self) -> None:
        """Let go of everything at once; the weak references' callbacks make a cycle otherwise."""
        self._owners.clear()
        self._bound.clear()
        del self._binding, self._bind_value, self._bind_output, self._bind_numpy
        self.session.close()

    def _own(self, lane: int, cache: Buffers) -> None:
        def gone(owner: weakref.ref[Buffers]) -> None:
            if self._owners and self._owners[lane] is owner:
                self._vacate(lane)

        self._owners[lane] = weakref.ref(cache, gone)

    def _vacate(self, lane: int) -> None:
        self._owners[lane] = None
        self._bind(lane, self._scratch.values)

    def _bind(self, lane: int, values: tuple[object, ...]) -> None:
        if self._bound[lane] is values:
            return
        for (past, present), value in zip(self._names[lane], values, strict=True):
            raw = value._ortvalue  # type: ignore[attr-defined]
            self._bind_value(past, raw)
            self._bind_output(present, raw)
        self._bound[lane] = values

    def run(
        self,
        ids: npt.NDArray[np.int64],
        lane_rows: npt.NDArray[np.int64],
        past_lengths: npt.NDArray[np.int32],
        logit_rows: npt.NDArray[np.int64],
        logits: Logits | None,
    ) -> Any:
        """Run over what is seated. `logits` [wanted, vocab] is written in place; without it they
        stay on the device, and are returned as an onnxruntime value."""
        self._bind_numpy("input_ids", ids)
        self._bind_numpy("lane_rows", lane_rows)
        self._bind_numpy("past_lengths", past_lengths)
        self._bind_numpy("logit_rows", logit_rows)
        if logits is None:
            memory = self.session.memory
            self._binding.bind_output("logits", memory.kind, memory.index)
            self.session.run(self._binding)
            return load_onnxruntime().OrtValue(self._binding._iobinding.get_outputs()[0])
        self._binding.bind_output("logits", "cpu", 0, np.float32, logits.shape, logits.ctypes.data)
        self.session.run(self._binding)
        return None


@dataclass(frozen=True)
class _Plan:
    """The rows of one step in lane order. `spans[i]` are entry i's rows among the logits."""

    ids: npt.NDArray[np.int64]
    lane_rows: npt.NDArray[np.int64]
    past_lengths: npt.NDArray[np.int32]
    logit_rows: npt.NDArray[np.int64]
    spans: tuple[tuple[int, int], ...]


def _plan(rows: Sequence[Rows], seats: Sequence[int], lanes: int) -> _Plan:
    ids: list[int] = []
    lane_rows = [0] * lanes
    past_lengths = [0] * lanes
    logit_rows: list[int] = []
    spans = [(0, 0)] * len(rows)
    for i in sorted(range(len(rows)), key=seats.__getitem__):
        entry, lane = rows[i], seats[i]
        first = len(ids)
        ids.extend(entry.tokens)
        lane_rows[lane] = len(ids) - first
        past_lengths[lane] = entry.cache.length
        wanted = range(first + entry.logits_from, len(ids))
        spans[i] = (len(logit_rows), len(logit_rows) + len(wanted))
        logit_rows.extend(wanted)
    return _Plan(
        ids=np.array([ids], dtype=np.int64),
        lane_rows=np.array(lane_rows, dtype=np.int64),
        past_lengths=np.array(past_lengths, dtype=np.int32),
        logit_rows=np.array(logit_rows, dtype=np.int64),
        spans=tuple(spans),
    )


class LanesModel:
    """`runtime.step.Model` over lanes graphs.

    Args:
        graphs: a session and its cache's names for each lane count loaded.
        spec: what the model is; `spec.lanes` is at most the largest lane count.
    """

    def __init__(self, graphs: Mapping[int, tuple[Session, CacheTensors]], spec: ModelSpec) -> None:
        assert spec.lanes <= max(graphs)
        self._spec = spec
        session, self._tensors = next(iter(graphs.values()))
        self._memory = session.memory
        self._limit = spec.context + SPARE
        self._scratch = cache_in(self._memory, self._tensors, limit=SPARE)
        self._scratch.reserve(SPARE)
        self._graphs = [
            _Graph(session, tensors, self._scratch)
            for _, (session, tensors) in sorted(graphs.items())
        ]
        self._logits = np.empty((0, spec.vocab_size), dtype=np.float32)
        self._reducer = reducer_for(session, vocab=spec.vocab_size)

    @property
    def spec(self) -> ModelSpec:
        return self._spec

    def new_cache(self) -> KVCache:
        return cache_in(self._memory, self._tensors, limit=self._limit)

    def step(self, rows: Sequence[Rows]) -> Sequence[AnyLogits]:
        """See `runtime.step.Model.step`."""
        assert 1 <= len(rows) <= self._spec.lanes, "more entries than lanes"
        caches = [self._own(entry.cache) for entry in rows]
        assert len({id(cache) for cache in caches}) == len(rows), "one cache in two entries"
        for entry, cache in zip(rows, caches, strict=True):
            check_room(cache, entry, self._spec.context)
        for entry, cache in zip(rows, caches, strict=True):
            cache.reserve(cache.length + len(entry.tokens) + SPARE)
        graph = next(graph for graph in self._graphs if graph.lanes >= len(rows))
        plan = _plan(rows, graph.seat(caches), graph.lanes)
        stay = self._reducer is not None and all(
            entry.anywhere or entry.logits_from == len(entry.tokens) for entry in rows
        )
        logits = None if stay else self._room_for(len(plan.logit_rows))
        value = graph.run(plan.ids, plan.lane_rows, plan.past_lengths, plan.logit_rows, logits)
        for entry, cache in zip(rows, caches, strict=True):
            cache.advance(len(entry.tokens))
        if logits is not None:
            return [logits[start:end] for start, end in plan.spans]
        assert self._reducer is not None
        step = StepLogits(value, self._reducer)
        return [
            DeviceLogits(step, *span) if entry.anywhere else self._logits[:0]
            for entry, span in zip(rows, plan.spans, strict=True)
        ]

    def close(self) -> None:
        for graph in self._graphs:
            graph.close()
        self._graphs.clear()
        if self._reducer is not None:
            self._reducer.close()

    def _own(self, cache: KVCache) -> Buffers:
        assert isinstance(cache, BufferCache | DeviceCache), "a cache that this model did not make"
        return cache

    def _room_for(self, wanted: int) -> Logits:
        if len(self._logits) < wanted:
            self._logits = np.empty((wanted, self._spec.vocab_size), dtype=np.float32)
        return self._logits[:wanted]
