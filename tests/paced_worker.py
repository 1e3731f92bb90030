"""A real worker whose time is what its steps are said to cost: `paced_worker.py FD`.

The models compute as ever, and the clock moves by a step's rows and by nothing else. So whatever a
governor decides by its measurements is the same on every machine, however busy that is.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from types import SimpleNamespace
from typing import cast

from homespecd.runtime.step import Logits, Model, Rows
from homespecd.worker import process
from homespecd.worker.governing import make_governor
from homespecd.worker.load import Loaded
from homespecd.worker.messages import WorkerSettings
from tests.fakes import FakeClock


def target_ms(rows: int) -> float:
    """What a step costs on a processor that reads all weights for the first row."""
    return 20.0 + 0.2 * rows


def draft_ms(rows: int) -> float:
    """The same of a draft model, which is a twentieth of that."""
    return 1.0 + 0.01 * rows


def pace(model: Model, clock: FakeClock, step_ms: Callable[[int], float]) -> None:
    """From now on the model's steps move the clock."""
    step = model.step

    def paced(rows: Sequence[Rows]) -> list[Logits]:
        clock.advance_ms(step_ms(sum(len(one.tokens) for one in rows)))
        return step(rows)

    model.step = paced  # type: ignore[method-assign]


def main(fd: int) -> int:
    clock, load = FakeClock(), process.load

    def load_paced(settings: WorkerSettings, progress: Callable[[str], None]) -> Loaded:
        loaded = load(settings, progress)
        pace(loaded.target, clock, target_ms)
        for draft in loaded.drafts.values():
            if draft.model is not None:
                pace(draft.model, clock, draft_ms)
        return loaded

    process.load = load_paced
    process.make_governor = lambda loaded: make_governor(loaded, clock_s=clock)
    process.time = cast("object", SimpleNamespace(monotonic=clock))
    return process.main(fd)


if __name__ == "__main__":
    sys.exit(main(int(sys.argv[1])))
