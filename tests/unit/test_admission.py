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


def test_nothing_is_reused_of_a_slot_in_which_a_bug_was_met(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    rounds = Conversation.rounds
    faulty = False

    def failing(self: Conversation, around: Any) -> Any:
        if faulty:
            raise ValueError("a bug")
        return rounds(self, around)

    monkeypatch.setattr(Conversation, "rounds", failing)
    with worker(model, slots=1) as served:
        served.answer(1, (1, 2, 3))
        assert served.engine.serving.slots[0].cache.length > 0
        faulty = True
        assert served.answer(2, (1, 2, 3))["type"] == "error"
        assert served.engine.serving.slots[0].cache.length == 0
