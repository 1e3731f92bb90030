"""Logits that stay on the device which computed them, and what is asked of them there.

A row of logits is a vocabulary wide, and most requests want to know one id of it. So the rows stay
where they are, what is asked is answered by a small graph beside them, and only the answer crosses
the bus. Whatever cannot be answered so, with all that numpy would say of ties and NaN, is not: then
the rows come over whole.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt

from homespecd.runtime.backend import OnnxRuntime
from homespecd.runtime.placement import DeviceMemory
from homespecd.runtime.providers import Attempt
from homespecd.runtime.reductions import MOST_IDS, highest_graph, rows_graph, top_graph
from homespecd.runtime.session import Session, load_onnxruntime, plain_reason
from homespecd.runtime.step import Logits

Ids = npt.NDArray[np.int64]

_log = logging.getLogger(__name__)

# Of a row at most so many ids are looked for on the device: enough for every usual top_k, and past
# it a kernel that finds the highest few becomes one that sorts the vocabulary.
MOST_WANTED = 256
# An answer must be worth asking for: an id and its value take twice what a logit takes.
_LEAST_SAVING = 4


@dataclass(frozen=True)
class Found:
    """What a reduction says of each row. values, ids: [rows, count]; nan: [rows]."""

    values: npt.NDArray[np.float32]
    ids: Ids
    nan: npt.NDArray[np.bool_]


class Reducer:
    """The small graphs beside one model's own, each made when it is first needed.

    Args:
        beside: a session of the model; the graphs run where it does.
        vocab: width of the logits. dtype: their type, "float32" or "float16".
    """

    def __init__(self, beside: Session, *, vocab: int, dtype: str) -> None:
        assert vocab < MOST_IDS
        self.vocab = vocab
        self._beside = beside
        self._dtype = dtype
        self._sessions: dict[tuple[str, int], Session | None] = {}

    def found(self, value: Any, *, skipped: int, width: int, count: int) -> Found | None:
        """The `count` highest of the first `width` ids of each row, highest first; the first of
        equals only where count is 1.

        Args:
            value: onnxruntime's, [..., vocab]. skipped: rows before the first one that counts.

        Returns:
            None where this provider cannot say.

        Raises:
            ModelError: the graph failed.
        """
        name, make = ("highest", highest_graph) if count == 1 else ("top", top_graph)
        session = self._session(name, width, lambda: make(self._dtype, self.vocab, width))
        if session is None:
            return None
        table = self._run(session, value, skipped, None if count == 1 else count)
        return Found(
            values=table[:, :count],
            ids=table[:, count : 2 * count].astype(np.int64),
            nan=table[:, -1] != 0,
        )

    def rows(self, value: Any, *, skipped: int) -> Logits:
        """The rows themselves: float32 [rows, vocab].

        Raises:
            ModelError: the graph failed.
        """
        session = None
        if skipped:
            make = lambda: rows_graph(self._dtype, self.vocab)  # noqa: E731 (as above)
            session = self._session("rows", self.vocab, make)
        if session is None:
            across = value.numpy().reshape(-1, self.vocab)[skipped:]
        else:
            across = self._run(session, value, skipped, None)
        return np.asarray(across, dtype=np.float32)

    def close(self) -> None:
        for session in self._sessions.values():
            if session is not None:
                session.close()
        self._sessions.clear()

    def _run(
        self, session: Session, value: Any, skipped: int, count: int | None
    ) -> npt.NDArray[Any]:
        binding = session.binding()
        binding.bind_ortvalue_input("logits", value)
        binding.bind_cpu_input("first", np.array([skipped, 0], dtype=np.int64))
        if count is not None:
            binding.bind_cpu_input("count", np.array([count], dtype=np.int64))
        binding.bind_output("found", "cpu")
        session.run(binding)
        found: npt.NDArray[Any] = binding.get_outputs()[0].numpy()
        return found

    def _session(self, name: str, width: int, make: Callable[[], bytes]) -> Session | None:
        key = (name, width)
        if key not in self._sessions:
            self._sessions[key] = self._load(make())
        return self._sessions[key]

    def _load(self, graph: bytes) -> Session | None:
        beside = self._beside
        settings = replace(beside.settings, optimise=True, threads=1)
        attempt = Attempt(beside.placement.provider, settings.options)
        try:
            loaded = OnnxRuntime(load_onnxruntime()).load(graph, attempt, settings)
        except Exception as error:
            # onnxruntime's exceptions share no base but Exception.
            _log.warning("%s: logits come over whole: %s", beside.graph, plain_reason(error))
            return None
        return Session(
            loaded.raw,
            graph=beside.graph,
            placement=beside.placement,
            threads=1,
            settings=settings,
        )


class StepLogits:
    """All logits of one step, in the device's memory. What was asked once is remembered: the rows
    of a block, and of everybody in the step, are asked the same.

    skipped: rows of `value` before the first that counts.
    """

    def __init__(self, value: Any, reducer: Reducer, *, skipped: int = 0) -> None:
        self._value = value
        self._reducer = reducer
        self._skipped = skipped
        self._found: dict[tuple[int, int], Found | None] = {}
        self._whole: Logits | None = None

    def whole(self) -> Logits:
        """float32 [rows, vocab], in host memory."""
        if self._whole is None:
            self._whole = self._reducer.rows(self._value, skipped=self._skipped)
        return self._whole

    def top(self, row: int, width: int, count: int) -> tuple[Ids, Logits] | None:
        """See `decoding.distant.DistantRow.top`."""
        width = min(width, self._reducer.vocab)
        # One more says whether there is a tie at the edge.
        asked = count if count == 1 else count + 1
        if asked > 1 and not (count <= MOST_WANTED and asked * _LEAST_SAVING <= width):
            return None
        key = (width, asked)
        if key not in self._found:
            self._found[key] = self._reducer.found(
                self._value, skipped=self._skipped, width=width, count=asked
            )
        found = self._found[key]
        if found is None or found.nan[row]:
            return None
        ids, values = found.ids[row], found.values[row]
        if asked > count and values[count - 1] == values[count]:
            return None
        if ids[0] >= width:  # nothing equals the maximum: a device that rounds the smallest to 0
            return None
        order = np.argsort(ids[:count])
        return ids[order], values[order]


@dataclass(frozen=True, slots=True)
class DeviceLogits:
    """One entry's rows of a step: `runtime.step.DistantLogits`."""

    step: StepLogits
    start: int
    end: int

    def __len__(self) -> int:
        return self.end - self.start

    def __getitem__(self, row: int) -> DeviceRow:
        rows = range(self.start, self.end)
        return DeviceRow(self.step, rows[row])

    def whole(self) -> Logits:
        return self.step.whole()[self.start : self.end]


@dataclass(frozen=True, slots=True)
class DeviceRow:
    """`decoding.distant.DistantRow`."""

    step: StepLogits
    row: int

    def top(self, width: int, count: int) -> tuple[Ids, Logits] | None:
        return self.step.top(self.row, width, count)

    def whole(self) -> Logits:
        row: Logits = self.step.whole()[self.row]
        return row


def reducer_for(session: Session, *, vocab: int) -> Reducer | None:
    """For a model's logits; None where they are in host memory anyway, or cannot be asked."""
    dtype = next(one.dtype for one in session.outputs if one.name == "logits")
    if session.memory == DeviceMemory() or dtype not in ("float32", "float16"):
        return None
    return Reducer(session, vocab=vocab, dtype=dtype) if vocab < MOST_IDS else None
