"""An engine in this process, and a governor that can be exchanged between two requests.

So that every arm of a comparison runs on the same loaded model, in the same slots, in the same
minute, and what one arm does is not learned from by another.
"""

from __future__ import annotations

import queue
import socket
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from homespecd.governor.fixed import FixedGovernor
from homespecd.governor.measured import MeasuredGovernor
from homespecd.governor.protocol import (
    Choice,
    Governor,
    MeasuredSpeedup,
    RoundRecord,
    Situation,
    SpeculationMode,
    Standing,
)
from homespecd.worker.engine import Engine
from homespecd.worker.governing import LearnedGovernor, Learning, drafter_specs, make_governor
from homespecd.worker.load import load
from homespecd.worker.messages import DrafterSettings, SpeculationSettings, WorkerSettings
from homespecd.worker.outbox import Outbox

CONTEXT = 2048


@dataclass(frozen=True)
class Arm:
    """One way to decide: what is measured (auto), never, or one drafter with one k."""

    name: str
    speculation: SpeculationMode = SpeculationMode.AUTO
    drafter: str | None = None
    k: int = 0


PLAIN = Arm("plain", SpeculationMode.OFF)
AUTO = Arm("auto")


def fixed(drafter: str, k: int) -> Arm:
    return Arm(f"{drafter} {k}", drafter=drafter, k=k)


@dataclass
class Switchboard:
    """Passes the question to the measuring governor, or to a fixed one while an arm says so.

    again: makes one that knows what `to_record` once said, and nothing else.
    seconds, rounds: processor time that asking and telling the measuring governor took.
    """

    measured: Learning
    again: Callable[[dict[str, Any]], Learning]
    arm: Arm = AUTO
    seconds: float = 0.0
    rounds: int = 0
    _fixed: Governor = field(default_factory=lambda: FixedGovernor({}))

    def use(self, arm: Arm) -> None:
        self.arm = arm
        self._fixed = FixedGovernor({arm.drafter: arm.k} if arm.drafter and arm.k else {})

    def choose(self, now_s: float, situation: Situation) -> Choice:
        if self.arm is not AUTO:
            return self._fixed.choose(now_s, situation)
        began_s = time.thread_time()
        choice = self.measured.choose(now_s, situation)
        self.seconds += time.thread_time() - began_s
        return choice

    def go_back_to(self, record: dict[str, Any]) -> None:
        """Know what was known when `to_record` gave this, and nothing of what came since."""
        self.measured = self.again(record)

    def observe(self, record: RoundRecord) -> None:
        if self.arm is not AUTO:
            self._fixed.observe(record)
            return
        began_s = time.thread_time()
        self.measured.observe(record)
        self.seconds += time.thread_time() - began_s
        self.rounds += 1

    def prefill_rows(self, decoding_slots: int) -> int:
        return self.measured.prefill_rows(decoding_slots)

    def speedup(self, drafter: str | None) -> MeasuredSpeedup:
        return self.measured.speedup(drafter)

    def standing(self) -> Standing:
        return self.measured.standing()

    def to_record(self) -> dict[str, Any]:
        return self.measured.to_record()


@contextmanager
def open_engine(
    target: Path, drafters: Sequence[DrafterSettings], *, slots: int = 1, threads: int = 0
) -> Iterator[tuple[Engine, Switchboard]]:
    """A loaded model that has never been measured before: no ledger, and no supervisor."""
    settings = WorkerSettings(
        name=target.name,
        path=str(target),
        context=CONTEXT,
        slots=slots,
        threads=threads,
        speculation=SpeculationSettings(),
        drafters=tuple(drafters),
    )
    loaded = load(settings, lambda _what: None)
    for name, draft in loaded.drafts.items():
        if not draft.usable:
            raise RuntimeError(f"the drafter {name} cannot be used: {draft.detail}")
    board = Switchboard(
        make_governor(loaded).governor,
        again=lambda record: MeasuredGovernor(drafter_specs(loaded), remembered=record),
    )
    learned = LearnedGovernor(board, None)
    here, gone = socket.socketpair()
    gone.close()  # frames for a supervisor go nowhere
    engine = Engine(
        loaded=loaded,
        learned=learned,
        outbox=Outbox(here),
        inbox=queue.SimpleQueue(),
        jobs={},
    )
    try:
        yield engine, board
    finally:
        loaded.close()
        here.close()
