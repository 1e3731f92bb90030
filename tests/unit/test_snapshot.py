"""What the status says of a model is what its drafters are that can be used now."""

from __future__ import annotations

from typing import Any

import pytest

from homespecd.governor.protocol import Reason
from homespecd.worker.messages import SpeculationSettings
from tests.engines import Worker, worker
from tests.fakes import FakeClock, FakeModel, HistoryLogits, LogitsOf, WrongEvery

BASE = HistoryLogits(16, seed=3)
PROMPT = tuple(range(10))


def target(clock: FakeClock) -> FakeModel:
    return FakeModel(BASE, clock=clock, context=1024, step_ms=lambda rows: 20.0 + 0.2 * rows)


def draft(logits: LogitsOf) -> Any:
    return lambda clock: FakeModel(
        logits, clock=clock, context=1024, step_ms=lambda rows: 1.0 + 0.1 * rows
    )


GOOD, BAD = draft(BASE), draft(WrongEvery(BASE, 1))


def answer_some(one: Worker, numbers: range) -> None:
    for number in numbers:
        one.answer(number, PROMPT, max_tokens=80)
        one.clock.advance_ms(3000)


def break_soon(one: Worker, name: str) -> None:
    model = one.engine.loaded.drafts[name].model
    assert isinstance(model, FakeModel)
    model.fail_at_step = len(model.steps) + 20


@pytest.mark.parametrize(
    ("others", "mode", "reason"),
    [
        ({}, "plain", "draft_failed"),
        ({"bad": BAD}, "plain", "slower_than_plain"),
        ({"better": GOOD}, "speculative", "speculating"),
    ],
)
def test_a_draft_that_has_failed_speaks_for_nobody(
    others: dict[str, Any], mode: str, reason: str
) -> None:
    """It was in use, and its history says so for ever: the others are what the model has now."""
    with worker(target, {"good": GOOD, **others}) as one:
        answer_some(one, range(1, 4))
        before = one.engine.snapshot()["speculation"]
        break_soon(one, "good")
        # One that is as good is asked only where it is named.
        one.answer(4, PROMPT, max_tokens=200, drafter="good")
        answer_some(one, range(5, 9))
        after = one.engine.snapshot()["speculation"]

    assert (before["mode"], before["reason"]) == ("speculative", "speculating")
    assert before["drafters"][0]["k"] > 0
    failed = after["drafters"][0]
    assert (failed["state"], failed["reason"], failed["k"]) == ("failed", "draft_failed", 0)
    assert (after["mode"], after["reason"]) == (mode, reason)


@pytest.mark.parametrize(
    "problem", [Reason.DRAFT_OVER_CAP, Reason.DRAFT_INCOMPATIBLE, Reason.WARMING_UP]
)
def test_a_model_whose_only_draft_is_away_decodes_plain(problem: Reason) -> None:
    with worker(target, {"good": GOOD}) as one:
        answer_some(one, range(1, 4))
        one.engine.loaded.drafts["good"].fail(problem, "for a reason")
        speculation = one.engine.snapshot()["speculation"]

    assert (speculation["mode"], speculation["reason"]) == ("plain", problem.value)
    assert speculation["drafters"][0]["k"] == 0


def test_models_without_drafters_and_without_speculation() -> None:
    for drafts, settings, reason in (
        ({}, SpeculationSettings(), "no_draft"),
        ({"ngram": None}, SpeculationSettings(enabled=False), "disabled_by_config"),
        ({"ngram": None}, SpeculationSettings(), "warming_up"),
    ):
        with worker(target, drafts, speculation=settings) as one:
            speculation = one.engine.snapshot()["speculation"]
        assert (speculation["mode"], speculation["reason"]) == ("plain", reason)
