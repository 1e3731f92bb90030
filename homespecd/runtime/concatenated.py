"""Exported decoders whose cache grows by concatenation, one sequence per step.

This is what Optimum and its kin write: `past_key_values.N.key` in, `present.N.key` out, longer by
the step's rows. The graph is fed what it declares: `attention_mask`, `position_ids` and
`use_cache_branch` (the merged decoder) may be there or not, the first pass may have a graph of its
own (the two-file export), logits may come for the last row only. The present of one step is the
past of the next without a copy; only a rewind copies, when the next step needs the shorter past.
"""

from __future__ import annotations

import weakref
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from homespecd.bundle.layout import CacheTensors, TensorSpec
from homespecd.errors import ModelError
from homespecd.runtime.buffers import check_room
from homespecd.runtime.device_logits import DeviceLogits, Reducer, StepLogits, reducer_for
from homespecd.runtime.placement import DeviceMemory
from homespecd.runtime.rewindable import Rewindable
from homespecd.runtime.session import Session, load_onnxruntime, numpy_dtype
from homespecd.runtime.splits import is_width_invariant
from homespecd.runtime.step import AnyLogits, KVCache, Logits, ModelSpec, Rows, Tokens, whole

# Inputs that this adapter can make; a graph that wants more cannot be served.
_MADE = ("input_ids", "attention_mask", "position_ids", "use_cache_branch", "num_logits_to_keep")


class DecoderCache(KVCache, Protocol):
    """A cache that an exported decoder can run over, however it keeps its memory."""

    def bind(self, binding: Any, rows: int, *, with_past: bool) -> None:
        """Bind past and present for a pass of `rows` rows."""

    def advance(self, rows: int, presents: Sequence[Any]) -> None:
        """Take over what a pass that succeeded has returned."""


class ConcatenatedCache(Rewindable):
    """The keys and values of one sequence as the last step returned them.

    held: positions in `values` [1, kv_heads, held, head_dim]; a rewind makes `length` smaller and
    leaves them as they are until the next step. memory: where they stay, so that a step on a device
    moves none of them; only a rewind does.
    """

    def __init__(self, tensors: CacheTensors, memory: DeviceMemory) -> None:
        super().__init__()
        self._tensors = tensors
        self._memory = memory
        self.held = 0
        self.values: Sequence[Any] = ()

    @property
    def nbytes(self) -> int:
        return self.held * self._tensors.bytes_per_token

    def past(self) -> Sequence[Any]:
        """Keys and values of exactly the valid positions, as onnxruntime values."""
        if self.values and self.held == self.length:
            return self.values
        ort = load_onnxruntime()
        t = self._tensors
        if not self.length:
            # Host memory: there is nothing to move, and nothing of no size to allocate elsewhere.
            empty = np.zeros((1, t.kv_heads, 0, t.head_dim), dtype=numpy_dtype(t.dtype))
            return [ort.OrtValue.ortvalue_from_numpy(empty) for _ in t.pasts]
        shorter = [
            np.ascontiguousarray(value.numpy()[:, :, : self.length]) for value in self.values
        ]
        there = (self._memory.kind, self._memory.index)
        self.values = [ort.OrtValue.ortvalue_from_numpy(array, *there) for array in shorter]
        self.held = self.length
        return self.values

    def bind(self, binding: Any, rows: int, *, with_past: bool) -> None:
        del rows
        if with_past:
            for name, value in zip(self._tensors.pasts, self.past(), strict=True):
                binding.bind_ortvalue_input(name, value)
        for name in self._tensors.presents:
            binding.bind_output(name, self._memory.kind, self._memory.index)

    def drop(self) -> None:
        """Let go of the values: memory that the session allocated keeps all of its memory."""
        self.values, self.held, self.length = (), 0, 0

    def advance(self, rows: int, presents: Sequence[Any]) -> None:
        self.length += rows
        self.held = self.length
        self.values = presents


@dataclass(frozen=True)
class _Pass:
    """A session and the names to bind. `one_row`: the graph takes single rows only.
    reducer: with it, logits stay on the device until they are asked for."""

    session: Session
    tensors: CacheTensors
    inputs: Mapping[str, TensorSpec]
    has_past: bool
    one_row: bool
    reducer: Reducer | None = None

    @classmethod
    def of(cls, session: Session, tensors: CacheTensors) -> _Pass:
        inputs = {spec.name: spec for spec in session.inputs}
        unknown = set(inputs) - set(_MADE) - set(tensors.pasts)
        if unknown:
            raise ModelError(
                f"the graph wants inputs that are not known here: {', '.join(sorted(unknown))}",
                where=str(session.graph),
            )
        has_past = tensors.pasts[0] in inputs
        return cls(session, tensors, inputs, has_past, inputs["input_ids"].shape[-1] == 1)

    def run(self, cache: DecoderCache, tokens: Tokens, wanted: int) -> AnyLogits:
        """One pass over `tokens` [rows]; returns the logits of the last `wanted` rows, or of as
        many as the graph gives: float32 [wanted, vocab], in memory of their own."""
        start, rows = cache.length, len(tokens)
        total = start + rows
        binding = self.session.binding()
        made: dict[str, npt.NDArray[Any]] = {
            "input_ids": tokens[np.newaxis],
            "attention_mask": np.ones((1, total)),
            "position_ids": np.arange(start, total)[np.newaxis],
            "use_cache_branch": np.array([start > 0]),
            "num_logits_to_keep": np.array(max(1, wanted)),  # 0 would be every row
        }
        for name, array in made.items():
            if name in self.inputs:
                spec = self.inputs[name]
                shaped = array.reshape(-1) if len(spec.shape) == 1 else array
                binding.bind_cpu_input(name, shaped.astype(spec.dtype))
        memory = DeviceMemory() if self.reducer is None else self.session.memory
        binding.bind_output("logits", memory.kind, memory.index)
        cache.bind(binding, rows, with_past=self.has_past)
        self.session.run(binding)
        logits, *presents = binding.get_outputs()
        cache.advance(rows, presents)
        if self.reducer is not None:
            given = logits.shape()[1]
            step = StepLogits(logits, self.reducer, skipped=max(0, given - wanted))
            return DeviceLogits(step, 0, min(given, wanted))
        rows_given = logits.numpy()[0]
        return np.array(rows_given[max(0, len(rows_given) - wanted) :], dtype=np.float32)


class ConcatenatedModel:
    """`runtime.step.Model` over an exported decoder; one lane.

    Args:
        session: the graph with past inputs. first: the graph of the first pass, if it is another.
        spec: `vocab_size`, `logits_last_only` and `width_invariant` are found out here.

    Raises:
        ModelError: the graph wants something this adapter cannot give, or fails on a few tokens.
    """

    def __init__(
        self,
        session: Session,
        tensors: CacheTensors,
        spec: ModelSpec,
        *,
        first: Session | None = None,
    ) -> None:
        self._tensors = tensors
        self._caches = weakref.WeakSet[ConcatenatedCache]()
        self._next = _Pass.of(session, tensors)
        self._first = _Pass.of(first, tensors) if first else self._next
        self._spec = spec
        # Some exports give the shape of their logits as names only, so it is tried.
        probe = np.zeros(1 if self._first.one_row else 3, dtype=np.int64)
        logits = whole(self._first.run(self.new_cache(), probe, len(probe)))
        self._spec = replace(
            spec,
            lanes=1,
            vocab_size=logits.shape[-1],
            logits_last_only=len(logits) < len(probe),
        )
        self._reducer = reducer_for(session, vocab=self._spec.vocab_size)
        self._next = replace(self._next, reducer=self._reducer)
        self._first = replace(self._first, reducer=self._reducer) if first else self._next
        self._spec = replace(self._spec, width_invariant=is_width_invariant(self))

    @property
    def spec(self) -> ModelSpec:
        return self._spec

    def new_cache(self) -> DecoderCache:
        cache = ConcatenatedCache(self._tensors, self._next.session.memory)
        self._caches.add(cache)
        return cache

    def _own(self, cache: KVCache) -> DecoderCache:
        assert isinstance(cache, ConcatenatedCache), "a cache that this model did not make"
        return cache

    def step(self, rows: Sequence[Rows]) -> Sequence[AnyLogits]:
        """See `runtime.step.Model.step`. Where logits come for the last row only, rows that want
        theirs go in one by one: slow, and right."""
        (entry,) = rows
        cache = self._own(entry.cache)
        check_room(cache, entry, self._spec.context)
        tokens = np.array(entry.tokens, dtype=np.int64)
        before = cache.length
        found: list[AnyLogits] = []
        start = 0
        try:
            for end in self._cuts(cache, entry):
                one = self._next if cache.length else self._first
                wanted = max(0, end - max(start, entry.logits_from))
                found.append(one.run(cache, tokens[start:end], wanted))
                start = end
            if entry.anywhere and len(found) == 1:
                return found
            return [_together(found, self._spec.vocab_size)]
        except ModelError:
            cache.rewind_to(before)
            raise

    def close(self) -> None:
        for cache in self._caches:
            cache.drop()
        for one in {id(p.session): p.session for p in (self._first, self._next)}.values():
            one.close()
        if self._reducer is not None:
            self._reducer.close()

    def _cuts(self, cache: DecoderCache, entry: Rows) -> list[int]:
        """Where the passes of a step end; one pass wherever the graph can."""
        count = len(entry.tokens)
        ends = {count}
        if self._spec.logits_last_only:
            ends.update(range(entry.logits_from + 1, count))
        if self._first.one_row if not cache.length else self._next.one_row:
            ends.update(range(1, count))
        elif self._next.one_row and len(ends) > 1:
            # The first graph takes the first cut whole, its one-row partner all that follows.
            ends.update(range(min(ends), count))
        return sorted(ends)


def _together(found: Sequence[AnyLogits], vocab: int) -> Logits:
    """The logits of several passes, float32 [rows, vocab]; of passes without any, nothing."""
    arrays = [whole(one) for one in found if len(one)]
    if len(arrays) == 1:
        return arrays[0]
    return np.concatenate([np.empty((0, vocab), dtype=np.float32), *arrays])
