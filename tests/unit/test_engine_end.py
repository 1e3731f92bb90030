"""The end of a worker in the middle of its work."""

from __future__ import annotations

import pytest

from homespecd.errors import RequestError
from homespecd.worker.generate import Conversation
from homespecd.worker.jobs import run_one
from homespecd.worker.messages import GenerationRequest
from tests.engines import worker
from tests.fakes import FakeClock, FakeModel, HistoryLogits


def test_conversations_are_left_before_their_models_are_closed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Whatever a conversation restores when it is left needs the caches."""
    events: list[str] = []

    class Model(FakeModel):
        def close(self) -> None:
            events.append("closed")
            super().close()

    rounds = Conversation.rounds

    def noted(self: Conversation, around: object) -> object:
        try:
            yield from rounds(self, around)  # type: ignore[arg-type]
        finally:
            events.append("left")

    monkeypatch.setattr(Conversation, "rounds", noted)
    with worker(lambda clock: Model(HistoryLogits(16, seed=3), clock=clock)) as served:
        served.generate(1, (1, 2, 3), max_tokens=100)
        served.engine.pump()
        served.engine.pump()
        assert served.engine.serving.scheduler.active == 1
        served.stop()
    assert events[:2] == ["left", "closed"]
    assert served.frames.of(1)[-1]["type"] == "delta"  # nobody is told of an end that was none


def test_a_job_that_is_broken_off_can_be_tried_again() -> None:
    def model(clock: FakeClock) -> FakeModel:
        return FakeModel(HistoryLogits(16, seed=3), clock=clock)

    with worker(model) as served:
        served.post({"type": "stop"})
        with pytest.raises(RequestError) as broken_off:
            run_one(served.engine, GenerationRequest(prompt=(1, 2)), cold=False)
        error = broken_off.value
    assert (error.status, error.code, error.retry_after_s) == (503, "job_cancelled", 1.0)
