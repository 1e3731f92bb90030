"""Drafters that come while a model answers: nobody waits for what is measured or written then."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from homespecd.errors import ModelError
from homespecd.governor.ledger import Ledger
from homespecd.worker.load import Draft
from homespecd.worker.messages import DrafterSettings, WorkerSettings
from tests.engines import Worker, worker
from tests.fakes import FakeClock, FakeModel, HistoryLogits

BASE = HistoryLogits(16, seed=3)
PROMPT = tuple(range(10))
PATIENCE_S = 30.0


def target(clock: FakeClock) -> FakeModel:
    return FakeModel(BASE, clock=clock, context=1024, step_ms=lambda rows: 20.0 + 0.2 * rows)


def draft(clock: FakeClock) -> FakeModel:
    return FakeModel(BASE, clock=clock, context=1024, step_ms=lambda rows: 1.0 + 0.1 * rows)


def steps(one: Worker) -> list[Any]:
    model = one.engine.loaded.target
    assert isinstance(model, FakeModel)
    return model.steps


class Change:
    """Drafters by these names are asked for; their files are opened when `open` is called."""

    def __init__(self, one: Worker, monkeypatch: pytest.MonkeyPatch, *names: str) -> None:
        self._one = one
        self._may_open = threading.Event()
        self.models = {name: draft(one.clock) for name in names}

        def opener(_tokenizer: object) -> Any:
            def opened(settings: WorkerSettings, missing: Sequence[str]) -> dict[str, Draft]:
                assert self._may_open.wait(PATIENCE_S)
                return {
                    each.name: Draft(each, model=self.models[each.name], digest=each.name)
                    for each in settings.drafters
                    if each.name in missing
                }

            return opened

        monkeypatch.setattr("homespecd.worker.serving.opener", opener)
        wanted = tuple(DrafterSettings(name=name, kind="model") for name in names)
        settings = replace(one.engine.loaded.settings, drafters=wanted)
        one.post({"type": "drafters", "settings": settings.to_frame(), "urgent": False})
        one.engine.pump()

    def open(self) -> None:
        """Returns when the engine is due to hear of it."""
        change = self._one.engine.serving._change
        assert change is not None
        assert change._opening is not None
        self._may_open.set()
        change._opening.join(PATIENCE_S)

    @property
    def done(self) -> bool:
        return any(frame["type"] == "drafters" for frame in self._one.frames.sent)


def test_whoever_decodes_waits_for_one_step_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    with worker(target, {}) as one:
        one.generate(1, PROMPT, max_tokens=1000)
        for _ in range(20):
            one.engine.pump()
        change = Change(one, monkeypatch, "a", "b")
        change.open()
        turns, chunk = 0, one.engine.serving.governor.prefill_rows(1)
        while not change.done:
            before = len(steps(one)), sum(len(model.steps) for model in change.models.values())
            one.engine.pump()
            # One of the answer's, and no more than one that is measured.
            answers = [step for step in steps(one)[before[0] :] if step[0][0] > len(PROMPT)]
            drafts = sum(len(model.steps) for model in change.models.values())
            assert len(answers) == 1
            assert len(steps(one)) - before[0] + drafts - before[1] <= 2
            # Which is no wider than a piece of a prompt would be.
            assert all(
                rows <= chunk < 64 for step in steps(one)[before[0] :] for _, rows, _ in step
            )
            turns += 1
        standing = one.engine.serving.governor.standing()
        report = one.answer(2, PROMPT, max_tokens=60)["homespec"]

    assert turns > 10
    assert [each.name for each in standing.drafters] == ["a", "b"]
    assert {1, 2, 4, 8} <= set(standing.step_ms)
    assert standing.step_ms[8] == pytest.approx(21.6, rel=0.05)
    # What was known goes on to be known, and is no dearer for what was measured in between.
    assert standing.plain_ms_per_token == pytest.approx(20.2, rel=0.05)
    assert report["draft_tokens_accepted"] > 0


def test_an_idle_model_is_measured_without_anybody_asking(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each step asks for the next turn, or it would come when somebody next says something."""
    with worker(target, {}) as one:
        change = Change(one, monkeypatch, "a")
        change.open()
        while not change.done:
            assert not one.inbox.empty()
            one.engine.pump()

        assert {1, 2, 4, 8, 17, 64} <= set(one.engine.serving.governor.standing().step_ms)


def test_a_draft_under_measurement_is_not_used_and_not_lost(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with worker(target, {}) as one:
        change = Change(one, monkeypatch, "a")
        change.open()
        one.engine.pump()
        (shown,) = one.engine.snapshot()["speculation"]["drafters"]
        assert (shown["state"], shown["reason"]) == ("loading", "warming_up")
        assert not change.done

    assert change.models["a"].closed


def test_a_draft_that_cannot_be_measured_is_off(monkeypatch: pytest.MonkeyPatch) -> None:
    with worker(target, {}) as one:
        change = Change(one, monkeypatch, "a", "broken")
        change.models["broken"].fail_at_step = 2
        change.open()
        while not change.done:
            one.engine.pump()
        shown = {
            each["name"]: each["reason"]
            for each in one.engine.snapshot()["speculation"]["drafters"]
        }

    assert shown == {"a": "warming_up", "broken": "draft_failed"}


def test_nobody_waits_for_the_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The ledger is as slow as a disk that has to spin up; the change is complete before it."""
    spun_up = threading.Event()
    save = Ledger.save

    def slow(self: Ledger, *arguments: Any, **options: Any) -> bool:
        assert spun_up.wait(PATIENCE_S)
        return save(self, *arguments, **options)

    monkeypatch.setattr(Ledger, "save", slow)
    with worker(target, {}, state=tmp_path) as one:
        one.answer(1, PROMPT, max_tokens=60)
        one.clock.advance_ms(20_000)
        one.engine.pump()
        change = Change(one, monkeypatch, "a")
        change.open()
        while not change.done:
            one.engine.pump()
        assert not spun_up.is_set()
        spun_up.set()

    record = Ledger.load(one.learned._ledger)  # type: ignore[arg-type]
    assert record is not None
    assert list(record["drafters"]) == ["a@fake"]


def test_a_drafter_that_comes_back_is_known(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without a state directory too: what it was good for stays in memory."""
    with worker(target, {"a": draft}) as one:
        for number in range(1, 5):
            one.answer(number, PROMPT, max_tokens=80)
            one.clock.advance_ms(3000)
        for names in (("b",), ("a",)):
            change = Change(one, monkeypatch, *names)
            change.open()
            while not change.done:
                one.engine.pump()
            one.frames.sent.clear()
        (known,) = one.engine.serving.governor.standing().drafters

    assert known.name == "a"
    assert known.speedup.measured is not None
    assert known.acceptance_rate == 1.0


def test_what_cannot_be_measured_now_is_learned_from_answers(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    with worker(target, {}) as one:
        change = Change(one, monkeypatch, "a")
        change.open()

        def fails() -> None:
            raise ModelError("no memory for a cache")

        with monkeypatch.context() as patched:
            patched.setattr(one.engine.loaded.target, "new_cache", fails)
            while not change.done:
                one.engine.pump()
        report = one.answer(1, PROMPT, max_tokens=60)["homespec"]

    assert report["draft_tokens_accepted"] > 0
    assert [record.levelname for record in caplog.records] == ["WARNING"]
