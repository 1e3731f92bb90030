"""What goes wrong when a request gets its slot costs that request, and nobody else's."""

from __future__ import annotations

from typing import Any

import pytest

from homespecd.worker import intake
from homespecd.worker.generate import Conversation
from tests.engines import worker
from tests.fakes import FakeClock, FakeModel, HistoryLogits


def model(clock: FakeClock) -> FakeModel:
    return FakeModel(HistoryLogits(16, seed=3), clock=clock)


@pytest.mark.parametrize("where", ["made", "begun"])
def test_an_unforeseen_error_is_that_requests_alone(
    monkeypatch: pytest.MonkeyPatch, where: str
) -> None:
    class Faulty(Conversation):
        def __init__(self, **given: Any) -> None:
            self.faulty = given["id"] == 2
            if self.faulty and where == "made":
                raise ValueError("a bug")
            super().__init__(**given)

        def rounds(self, around: Any) -> Any:
            if self.faulty:
                raise ValueError("a bug")
            return super().rounds(around)

    monkeypatch.setattr(intake, "Conversation", Faulty)
    with worker(model) as served:
        for request in (1, 2, 3):
            served.generate(request, (1, 2, request))
        served.work()
        assert [served.frames.last(one)["type"] for one in (1, 2, 3)] == ["done", "error", "done"]
        assert served.frames.last(2)["error"]["code"] == "model_error"
        assert served.engine.serving.totals.requests == 3
