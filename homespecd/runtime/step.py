"""The one call everything above is built on: a step over rows.

A target pass is a *step*: it takes rows (new tokens) for one or several KV caches and returns the
logits that were asked for. Prefill chunks, plain tokens and verification blocks of different
conversations are all just rows. What runs a step (lanes in one onnxruntime graph, an Optimum
export with concatenated caches, a numpy toy in the tests) hides behind `Model`.

This module has no onnxruntime in it, so the rooms above can name these types for free.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol, runtime_checkable

import numpy as np
import numpy.typing as npt

from homespecd.decoding.distant import DistantRow

Tokens = npt.NDArray[np.int64]
Logits = npt.NDArray[np.float32]


class DistantLogits(Protocol):
    """Rows of logits that lie elsewhere."""

    def __len__(self) -> int: ...

    def __getitem__(self, row: int, /) -> DistantRow: ...

    def whole(self) -> Logits:
        """float32 [rows, vocab_size]."""
        ...


AnyLogits = Logits | DistantLogits


def whole(logits: AnyLogits) -> Logits:
    """All of them, in host memory. Raises ModelError when a device fails."""
    return logits if isinstance(logits, np.ndarray) else logits.whole()


@runtime_checkable
class KVCache(Protocol):
    """The keys and values of one sequence, addressed by absolute length.

    Invariant: `length` is the number of tokens whose keys and values are valid; the next row
    appended has position `length`.
    """

    @property
    def length(self) -> int: ...

    @property
    def nbytes(self) -> int:
        """Bytes held now (grows with use, never past the context)."""
        ...

    def rewind_to(self, length: int) -> None:
        """Forget all from position `length` on. Raises ValueError when there is less than that."""
        ...


@runtime_checkable
class CopyingCache(KVCache, Protocol):
    """A cache that can begin as another one does."""

    def take_from(self, other: KVCache, length: int) -> None:
        """Hold the first `length` positions of `other`, a cache of the same model, bit for bit, and
        nothing else.

        Raises:
            ModelError: there is no memory for it; the cache is as it was.
        """
        ...


@dataclass(frozen=True)
class Rows:
    """Tokens to append to one cache, and which of them need logits.

    `tokens` takes positions `cache.length … cache.length + len(tokens) - 1`. Logits come back for
    the rows from index `logits_from` on: 0 = every row, `len(tokens)` = none (a prefill chunk).
    anywhere: the logits may stay where the model computes them (`DistantLogits`).
    """

    cache: KVCache
    tokens: Sequence[int]
    logits_from: int
    anywhere: bool = False

    def __post_init__(self) -> None:
        assert self.tokens, "a step needs at least one row"
        assert 0 <= self.logits_from <= len(self.tokens)


@dataclass(frozen=True)
class ModelSpec:
    """What a loaded model is, as far as the rooms above need to know.

    vocab_size: width of the logits (may be padded past the tokenizer's vocabulary).
    context: most positions a cache may hold, as configured and as the graph allows.
    lanes: the most sequences one step can carry.
    width_invariant: logits are bit-identical however rows are split into steps (measured when the
        model was loaded, not assumed).
    logits_last_only: only the last row of a step has logits, so blocks cannot be verified.
    requested_provider / provider / device: what was asked for and where it really runs; device is
        never more than is known ("GPU or CPU").
    weights_bytes: size of the weights as this provider holds them.
    kv_bytes_per_token: keys and values of one token over all layers.
    provider_reason: why that is not what was asked for, "" when it is.
    share_elsewhere: of its operators that `provider` leaves to the CPU, 0.0 … 1.0; None = unknown.
    operators_elsewhere: which these are, and how many of each.
    layout: how the graph keeps its cache ("lanes", "concatenated"); layout_reason: why that is not
        the model's usual one, "" when it is.
    versions: of the libraries that run it, for reports ("onnxruntime": "1.32.0").
    """

    vocab_size: int
    context: int
    lanes: int
    width_invariant: bool
    logits_last_only: bool
    requested_provider: str
    provider: str
    threads: int
    weights_bytes: int
    kv_bytes_per_token: int
    provider_reason: str = ""
    device: str = ""
    share_elsewhere: float | None = 0.0
    operators_elsewhere: Mapping[str, int] = field(default_factory=dict)
    layout: str = ""
    layout_reason: str = ""
    versions: Mapping[str, str] = field(default_factory=dict)


class Model(Protocol):
    """A loaded model. One thread calls it; it holds no notion of a request."""

    @property
    def spec(self) -> ModelSpec: ...

    def new_cache(self) -> KVCache: ...

    def step(self, rows: Sequence[Rows]) -> Sequence[AnyLogits]:
        """Append every entry's tokens to its cache in one pass.

        Args:
            rows: 1 … `spec.lanes` entries with distinct caches made by this model.

        Returns:
            Per entry, float32 [len(tokens) - logits_from, vocab_size]. They are the caller's until
            the next `step`, which may overwrite them; arrays, unless `anywhere` allows otherwise.

        Raises:
            ModelError: the pass failed; every cache is as long as it was before.
            ValueError: a cache would grow past `spec.context`.
        """
        ...

    def close(self) -> None: ...
