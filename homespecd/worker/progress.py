"""How far the engine is, for whoever asks from another thread.

The engine's thread writes, the reader's reads: what is read is one tuple, which needs no lock.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Any

from homespecd.runtime.step import AnyLogits, KVCache, Model, ModelSpec, Rows

# What the slowest step so far says about the next one fades: it may have met a cold disk.
_FADING = 0.98


class Progress:
    """Turns of the engine, counted.

    The prediction of a step is rows × the slowest row so far. A row alone is the slowest, since
    rows of one step share the reading of the weights: so this is a bound, not an estimate.
    """

    def __init__(self, clock_s: Callable[[], float] = time.monotonic) -> None:
        self._clock_s = clock_s
        self._row_s: float | None = None
        self._now: tuple[int, str, float | None] = (0, "idle", None)

    def idle(self) -> None:
        """Nothing to do."""
        self._now = (self._now[0] + 1, "idle", None)

    def between(self) -> None:
        """At work, and in no step."""
        self._now = (self._now[0] + 1, "between", None)

    def step(self, rows: int) -> Callable[[], None]:
        """A step of so many rows begins; call the result when it has ended."""
        predicted_s = None if self._row_s is None else rows * self._row_s
        self._now = (self._now[0] + 1, "step", predicted_s)
        began_s = self._clock_s()

        def ended() -> None:
            row_s = (self._clock_s() - began_s) / rows
            self._row_s = max(row_s, (self._row_s or 0.0) * _FADING)
            self.between()

        return ended

    def word(self) -> dict[str, Any]:
        """What a "pong" says. Any thread."""
        turn, doing, predicted_s = self._now
        return {"turn": turn, "doing": doing, "predicted_s": predicted_s}


class Watched:
    """A `runtime.step.Model` whose steps are seen by a `Progress`."""

    def __init__(self, model: Model, progress: Progress) -> None:
        self.spec: ModelSpec = model.spec
        self._model = model
        self._progress = progress

    def new_cache(self) -> KVCache:
        return self._model.new_cache()

    def step(self, rows: Sequence[Rows]) -> Sequence[AnyLogits]:
        ended = self._progress.step(sum(len(one.tokens) for one in rows))
        try:
            return self._model.step(rows)
        finally:
            ended()

    def close(self) -> None:
        self._model.close()
