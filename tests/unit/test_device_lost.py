"""A device that goes away under a model: the worker ends and says why, and only then."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import pytest

from homespecd.errors import ModelError
from homespecd.runtime.step import Logits, Rows
from homespecd.worker.jobs import run_one
from homespecd.worker.messages import GenerationRequest
from tests.conversations import spell
from tests.engines import ALWAYS, Worker, worker
from tests.fakes import FakeClock, FakeModel, HistoryLogits, greedy

BASE = HistoryLogits(16, seed=3)
PROMPT = tuple(range(10))
LOST = "the device is lost: CUDA failure 999: unknown error"


class OnDevice(FakeModel):
    """Every step fails from the moment that `gone` is set, as after a lost device."""

    gone: ModelError | None = None

    def step(self, rows: Sequence[Rows]) -> list[Logits]:
        if self.gone is not None:
            raise self.gone
        return super().step(rows)


def on_device(clock: FakeClock) -> OnDevice:
    return OnDevice(BASE, clock=clock, context=256)


def failing(one: Worker, name: str = "", *, lost: bool = True) -> None:
    """From now on the target fails, or a draft."""
    model: Any = one.engine.loaded.drafts[name].model if name else one.engine.loaded.target
    model.gone = ModelError(LOST, device_lost=lost)


def test_the_target_is_lost() -> None:
    """Whoever was answered gets an error to try again with, and nobody is served after it."""
    with worker(on_device) as one:
        done = one.answer(1, PROMPT)
        assert done["type"] == "done"
        failing(one)
        one.generate(2, PROMPT)
        assert one.engine.run() == LOST
        error = one.frames.last(2)["error"]
        assert (error["status"], error["code"], error["retry_after_s"]) == (503, "device_lost", 1.0)
        assert LOST in error["message"]
        one.stopped = True


def test_a_step_that_fails_for_another_reason_ends_nothing() -> None:
    with worker(on_device) as one:
        failing(one, lost=False)
        assert one.answer(1, PROMPT)["error"]["status"] == 500
        one.engine.loaded.target.gone = None  # type: ignore[attr-defined]
        assert one.answer(2, PROMPT)["type"] == "done"
        one.post({"type": "stop"})
        assert one.engine.run() == ""
        one.stopped = True


def test_a_job_notices_too(monkeypatch: pytest.MonkeyPatch) -> None:
    def job(_: Mapping[str, Any]) -> Any:
        request = GenerationRequest(prompt=PROMPT, max_tokens=4)
        return lambda engine: {"text": run_one(engine, request, cold=False).text}

    with worker(on_device) as one:
        monkeypatch.setitem(one.engine._jobs, "bench", job)
        failing(one)
        one.post({"type": "bench", "id": 7})
        assert one.engine.run() == LOST
        assert one.frames.last(7)["error"]["code"] == "device_lost"
        one.stopped = True


def test_a_draft_is_lost_and_the_answer_is_not() -> None:
    """The target goes on for whoever is being answered; the draft comes back with a new worker."""
    with worker(on_device, {"draft": on_device}) as one:
        failing(one, "draft")
        one.generate(1, PROMPT, max_tokens=40, speculation=ALWAYS)
        assert one.engine.run() == LOST
        assert one.frames.last(1)["type"] == "done"
        expected = greedy(FakeModel(BASE, context=256), PROMPT, 40)
        assert one.text(1) == spell(expected)
        one.stopped = True
