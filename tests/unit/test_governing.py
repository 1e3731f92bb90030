"""The governor of a loaded model: measured once and briefly, remembered from the first token on."""

from __future__ import annotations

import logging
import multiprocessing
import os
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from homespecd.governor.ledger import Ledger
from homespecd.governor.protocol import Reason
from homespecd.worker.governing import CALIBRATION_LIMIT_MS, DRAFT_LIMIT_MS, make_governor
from tests.engines import Worker, loaded_model, worker
from tests.fakes import FakeClock, FakeModel, HistoryLogits, LogitsOf, WrongEvery

VOCAB = 16
BASE = HistoryLogits(VOCAB, seed=3)
PROMPT = tuple(range(10))


def rows_at(first_ms: float, row_ms: float) -> Callable[[int], float]:
    return lambda rows: first_ms + row_ms * rows


def target(clock: FakeClock) -> FakeModel:
    return FakeModel(BASE, clock=clock, context=1024, step_ms=rows_at(20.0, 0.2))


def draft(logits: LogitsOf) -> Any:
    return lambda clock: FakeModel(logits, clock=clock, context=1024, step_ms=rows_at(1.0, 0.1))


@pytest.mark.parametrize("step_ms", [1.0, 30.0, 900.0, 60_000.0])
def test_the_first_load_measures_within_bounds(step_ms: float) -> None:
    """However slow the model: seconds, or the two or three steps without which nothing is known."""
    clock = FakeClock()
    slow = FakeModel(BASE, clock=clock, context=1024, step_ms=rows_at(step_ms, step_ms / 10))
    drafter = FakeModel(BASE, clock=clock, context=1024, step_ms=rows_at(step_ms, step_ms / 10))
    began_s = clock()

    learned = make_governor(loaded_model(slow, {"draft": drafter}), clock_s=clock)

    spent_ms = (clock() - began_s) * 1e3
    assert spent_ms <= max(CALIBRATION_LIMIT_MS + DRAFT_LIMIT_MS, 2 * 3 * 1.1 * step_ms)
    known = learned.governor.standing().step_ms
    assert known[1] == pytest.approx(1.1 * step_ms, rel=0.05)
    if step_ms < 100:
        assert {1, 2, 4, 8, 17, 64} <= set(known)
        assert known[17] == pytest.approx(2.7 * step_ms, rel=0.05)


def test_a_model_without_drafters_is_not_measured() -> None:
    clock = FakeClock()
    model = target(clock)

    make_governor(loaded_model(model, {}), clock_s=clock)

    assert model.steps == []


def test_a_target_that_cannot_be_measured_is_served_all_the_same(
    caplog: pytest.LogCaptureFixture,
) -> None:
    def breaks_at_first(clock: FakeClock) -> FakeModel:
        model = target(clock)
        model.fail_at_step = 2
        return model

    with worker(breaks_at_first, {"good": draft(BASE)}) as one:
        done = one.answer(1, PROMPT, max_tokens=60)

    assert done["type"] == "done"
    assert done["homespec"]["draft_tokens_accepted"] > 0  # learned from the answer itself
    assert [record.levelname for record in caplog.records] == ["WARNING"]


def test_a_draft_that_cannot_be_measured_is_off() -> None:
    def breaks_at_first(clock: FakeClock) -> FakeModel:
        return FakeModel(BASE, clock=clock, context=1024, fail_at_step=1)

    with worker(target, {"broken": breaks_at_first}) as one:
        assert one.engine.loaded.drafts["broken"].problem is Reason.DRAFT_FAILED
        assert one.answer(1, PROMPT)["homespec"]["reason"] == "draft_failed"


MEASURED = {1, 2, 4, 8, 17, 64}


def test_what_was_learned_without_a_drafter_is_completed_when_one_comes(tmp_path: Path) -> None:
    """Plain steps are known then, and nothing of what a block costs."""
    with worker(target, {}, state=tmp_path) as before:
        answer_some(before, 3)

    with worker(target, {"good": draft(BASE)}, state=tmp_path) as after:
        curve = after.learned.governor.standing().step_ms
        assert after.learned.governor.standing().plain_ms_per_token == pytest.approx(20.2, rel=0.1)

    assert set(curve) >= MEASURED
    for rows, ms in curve.items():
        assert ms == pytest.approx(20.0 + 0.2 * rows, rel=0.05)


def test_a_record_that_is_refused_is_no_record(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Its checksum is right, and it makes no sense: measured again, in one line of the log."""
    with worker(target, {"good": draft(BASE)}, state=tmp_path) as before:
        answer_some(before, 3)
        refused = before.learned.governor.to_record()
        file = before.learned._ledger
        assert file is not None
    del refused["slack"]
    assert file.save(refused, now_s=0.0)

    with worker(target, {"good": draft(BASE)}, state=tmp_path) as after:
        assert set(after.learned.governor.standing().step_ms) >= MEASURED
        assert answer_some(after, 3)[-1]["reason"] == "speculating"

    assert [record.levelname for record in caplog.records] == ["WARNING"]


def answer_some(one: Worker, count: int, first: int = 1) -> list[dict[str, Any]]:
    reports = []
    for number in range(first, first + count):
        reports.append(one.answer(number, PROMPT, max_tokens=80)["homespec"])
        one.clock.advance_ms(3000)
    return reports


def test_the_first_answer_after_a_restart_is_decoded_in_the_learned_mode(tmp_path: Path) -> None:
    """A good draft is used from the first round on, without measuring again."""
    with worker(target, {"good": draft(BASE)}, state=tmp_path) as before:
        answer_some(before, 3)
        curve = before.learned.governor.standing().step_ms

    with worker(target, {"good": draft(BASE)}, state=tmp_path) as after:
        assert after.engine.loaded.target.steps == []  # type: ignore[attr-defined]
        assert after.learned.governor.standing().step_ms == curve
        assert after.engine.snapshot()["speculation"]["reason"] == "speculating"
        first = answer_some(after, 1)[0]

    assert first["reason"] == "speculating"
    assert first["mode"] == "speculative"  # every round but none
    assert first["rounds"] <= -(-80 // 9) + 1


def test_a_bad_draft_is_not_tried_again_after_a_restart(tmp_path: Path) -> None:
    bad = {"bad": draft(WrongEvery(BASE, 1))}
    with worker(target, bad, state=tmp_path) as before:
        answer_some(before, 10)

    with worker(target, bad, state=tmp_path) as after:
        assert after.engine.snapshot()["speculation"]["reason"] == "slower_than_plain"
        first = answer_some(after, 1)[0]

    assert first["reason"] == "slower_than_plain"
    assert first["draft_tokens_proposed"] <= 2  # a probe at most


def test_what_was_learned_is_kept_while_it_serves(tmp_path: Path) -> None:
    """Not only at the end: a worker that is killed has lost the last seconds, no more."""
    with worker(target, {"good": draft(BASE)}, state=tmp_path) as one:
        answer_some(one, 4)
        one.clock.advance_ms(20_000)
        one.engine.pump()
        # The writer has a thread of its own: what it was given first is on disk when a later one
        # is taken.
        one.learned._writer.submit(lambda: None).result()
        kept = list(tmp_path.glob("governor-*.json"))
        assert len(kept) == 1
        with worker(target, {"good": draft(BASE)}, state=tmp_path) as other:
            assert other.engine.snapshot()["speculation"]["reason"] == "speculating"


def serve_and_die(folder: Path) -> None:
    with worker(target, {"good": draft(BASE)}, state=folder) as one:
        number = 0
        while True:
            number += 1
            one.answer(number, PROMPT, max_tokens=80)
            one.clock.advance_ms(16_000)
            if number == 12:
                os.kill(os.getpid(), signal.SIGKILL)


def test_a_worker_that_is_killed_leaves_a_ledger_that_can_be_used(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    process = multiprocessing.get_context("spawn").Process(target=serve_and_die, args=(tmp_path,))
    process.start()
    process.join(60)
    assert process.exitcode == -signal.SIGKILL

    with worker(target, {"good": draft(BASE)}, state=tmp_path) as after:
        assert after.engine.snapshot()["speculation"]["reason"] == "speculating"

    assert not caplog.records


@pytest.mark.parametrize("damage", ["cut", "flipped", "empty", "other"])
def test_a_damaged_ledger_is_set_aside_and_measured_again(
    tmp_path: Path, damage: str, caplog: pytest.LogCaptureFixture
) -> None:
    """With one line in the log; the model is served as if it were new."""
    with worker(target, {"good": draft(BASE)}, state=tmp_path) as before:
        answer_some(before, 3)
    (file,) = tmp_path.glob("governor-*.json")
    content = file.read_bytes()
    file.write_bytes(
        {
            "cut": content[: len(content) // 2],
            "flipped": content[:-20] + bytes([content[-20] ^ 1]) + content[-19:],
            "empty": b"",
            "other": b"{}",
        }[damage]
    )

    with (
        caplog.at_level(logging.WARNING),
        worker(target, {"good": draft(BASE)}, state=tmp_path) as after,
    ):
        assert after.engine.loaded.target.steps != []  # type: ignore[attr-defined]
        assert after.engine.snapshot()["speculation"]["reason"] == "warming_up"
        assert answer_some(after, 3)[-1]["reason"] == "speculating"

    assert len(caplog.records) == 1
    assert file.with_name(f"{file.name}.corrupt").exists()
    with worker(target, {"good": draft(BASE)}, state=tmp_path) as again:
        assert again.engine.snapshot()["speculation"]["reason"] == "speculating"


def test_a_ledger_that_cannot_be_written_does_not_stop_anything(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "state").write_text("a file where a folder should be")

    with worker(target, {"good": draft(BASE)}, state=tmp_path / "state") as one:
        reports = answer_some(one, 3)

    assert reports[-1]["reason"] == "speculating"
    assert caplog.records


def test_another_machine_is_measured_anew(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What holds here says nothing of elsewhere; both are kept (a disk that moves, and back)."""
    with worker(target, {"good": draft(BASE)}, state=tmp_path) as one:
        answer_some(one, 2)
    seen: list[Any] = []
    load = Ledger.load

    def elsewhere(self: Ledger) -> Any:
        found = load(self)
        seen.append(found)
        return found

    monkeypatch.setattr(Ledger, "load", elsewhere)
    monkeypatch.setattr("homespecd.worker.governing.describe_machine", lambda: "another machine")
    with worker(target, {"good": draft(BASE)}, state=tmp_path) as other:
        answer_some(other, 1)
    monkeypatch.undo()
    with worker(target, {"good": draft(BASE)}, state=tmp_path) as again:
        assert again.engine.snapshot()["speculation"]["reason"] == "speculating"

    assert seen == [None]
