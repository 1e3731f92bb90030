"""A real worker, of whose model's steps a test has a say."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from homespecd.worker import process
from homespecd.worker.load import Loaded
from homespecd.worker.messages import WorkerSettings

Step = Callable[[Sequence[Any]], Any]


def main(fd: int, around: Callable[[Step, Sequence[Any]], Any]) -> int:
    """Run it. Each step of the target is `around(step, rows)`, which is to call `step(rows)`."""
    usual = process.load

    def load(settings: WorkerSettings, progress: Callable[[str], None]) -> Loaded:
        loaded = usual(settings, progress)
        step = loaded.target.step
        loaded.target.step = lambda rows: around(step, rows)  # type: ignore[method-assign]
        return loaded

    process.load = load
    return process.main(fd)
