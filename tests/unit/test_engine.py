"""The engine over fake models: what a supervisor is told of speculation, and who is who."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from homespecd.governor.protocol import Choice, Situation
from homespecd.worker.jobs import run_one, run_together
from homespecd.worker.messages import GenerationRequest, SpeculationSettings
from tests.engines import ALWAYS, PLAIN, Worker, worker
from tests.fakes import FakeClock, FakeModel, HistoryLogits, LogitsOf, WrongEvery, greedy

VOCAB = 16
BASE = HistoryLogits(VOCAB, seed=3)
PROMPT = tuple(range(10))
# What a row costs in a step decides whether a draft pays: here blocks are nearly free.
CHEAP_ROWS = {"step_ms": lambda rows: 20.0 + 0.2 * rows}
DRAFT_STEP = {"step_ms": lambda rows: 1.0 + 0.1 * rows}


def target(clock: FakeClock) -> FakeModel:
    return FakeModel(BASE, clock=clock, context=1024, **CHEAP_ROWS)  # type: ignore[arg-type]


def draft(logits: LogitsOf) -> Any:
    return lambda clock: FakeModel(logits, clock=clock, context=1024, **DRAFT_STEP)


DRAFTS = {"ngram": None, "good": draft(BASE)}


@pytest.fixture
def served() -> Iterator[Worker]:
    with worker(target, DRAFTS) as one:
        yield one


def test_a_response_says_what_speculation_did(served: Worker) -> None:
    """INTERFACE: the `homespec` object of a response, complete and consistent."""
    for number in range(1, 4):
        done = served.answer(number, PROMPT, max_tokens=60)

    report = done["homespec"]
    assert {
        "mode",
        "drafter",
        "reason",
        "ttft_ms",
        "prefill_ms",
        "decode_ms",
        "decode_tok_s",
        "rounds",
        "draft_tokens_proposed",
        "draft_tokens_accepted",
        "acceptance_length",
        "draft_ms",
        "verify_ms",
        "speedup",
        "peak_memory_bytes",
    } <= set(report)
    assert set(report["speedup"]) == {
        "measured",
        "plain_ms_per_token",
        "speculative_ms_per_token",
        "plain_samples",
        "speculative_samples",
    }
    assert report["mode"] in ("speculative", "mixed")
    assert (report["drafter"], report["reason"]) == ("good", "speculating")
    assert 0 < report["draft_tokens_accepted"] <= report["draft_tokens_proposed"]
    assert report["acceptance_length"] == pytest.approx(60 / report["rounds"], abs=0.001)
    assert report["speedup"]["measured"] > 1.5
    assert report["draft_ms"] > 0
    assert report["peak_memory_bytes"] > 0
    assert done["usage"]["completion_tokens"] == 60


def test_the_snapshot_has_what_the_interface_names(served: Worker) -> None:
    for number in range(1, 6):
        served.answer(number, PROMPT, max_tokens=80)

    snapshot = served.engine.snapshot()

    speculation = snapshot["speculation"]
    assert {
        "mode",
        "reason",
        "drafters",
        "step_ms",
        "plain_ms_per_token",
        "decode_tok_s",
        "exactness",
    } <= set(speculation)
    assert (speculation["mode"], speculation["reason"]) == ("speculative", "speculating")
    assert {"1", "2", "4", "8", "17", "64"} <= set(speculation["step_ms"])
    assert speculation["step_ms"]["1"] == pytest.approx(20.2, rel=0.1)
    assert speculation["plain_ms_per_token"] == pytest.approx(20.2, rel=0.1)
    by_name = {one["name"]: one for one in speculation["drafters"]}
    assert list(by_name) == ["ngram", "good"]
    for one in by_name.values():
        assert {
            "name",
            "kind",
            "state",
            "reason",
            "memory_bytes",
            "k",
            "acceptance_rate",
            "acceptance_length",
            "draft_ms",
            "speedup",
            "samples",
        } <= set(one)
    good = by_name["good"]
    assert (good["kind"], good["state"], good["reason"]) == ("model", "ready", "speculating")
    assert good["acceptance_rate"] == 1.0
    assert good["k"] >= 4
    assert good["speedup"] > 1.5
    assert good["samples"] > 0
    totals = snapshot["totals"]
    assert totals["requests"] == 5
    assert totals["prompt_tokens"] == 5 * len(PROMPT)
    assert totals["completion_tokens"] == 5 * 80
    assert 0 < totals["accepted"] <= totals["proposed"]
    assert totals["failures"] == 0
    assert {"requests", "rounds", "proposed", "accepted", "failures"} <= set(totals)


def test_a_request_may_say_off_or_on(served: Worker) -> None:
    off = served.answer(1, PROMPT, speculation=PLAIN)["homespec"]
    on = served.answer(2, PROMPT, speculation=ALWAYS, drafter="good")["homespec"]
    bounded = served.answer(3, PROMPT, speculation=ALWAYS, drafter="good", max_draft_tokens=1)

    assert (off["mode"], off["reason"]) == ("plain", "disabled_by_request")
    assert off["draft_tokens_proposed"] == 0
    assert on["drafter"] == "good"
    assert on["draft_tokens_proposed"] > 0
    assert bounded["homespec"]["acceptance_length"] <= 2
    assert served.text(1) == served.text(2) == served.text(3)


def test_an_unknown_drafter_is_refused_by_name(served: Worker) -> None:
    error = served.answer(1, PROMPT, drafter="elsewhere")

    assert error["type"] == "error"
    assert error["error"]["param"] == "homespec.drafter"
    assert "ngram, good" in error["error"]["message"]


def test_a_bad_draft_is_reported_as_slower_and_hardly_used() -> None:
    with worker(target, {"bad": draft(WrongEvery(BASE, 1))}) as one:
        for number in range(1, 13):
            report = one.answer(number, PROMPT, max_tokens=100)["homespec"]
        standing = one.engine.snapshot()["speculation"]

    assert report["reason"] == "slower_than_plain"
    assert report["draft_tokens_proposed"] <= 8
    assert (standing["mode"], standing["reason"]) == ("plain", "slower_than_plain")
    assert standing["drafters"][0]["reason"] == "slower_than_plain"


def test_a_draft_that_breaks_is_off_for_good_and_nobody_notices() -> None:
    def breaks(clock: FakeClock) -> FakeModel:
        model = FakeModel(BASE, clock=clock, context=1024)
        model.fail_at_step = 20
        return model

    with worker(target, {"breaks": breaks}) as one:
        for number in (1, 2, 3):
            done = one.answer(number, PROMPT, speculation=ALWAYS, max_tokens=30)
            assert done["type"] == "done"
            assert done["homespec"]["reason"] == "draft_failed" or number == 1
        drafter = one.engine.snapshot()["speculation"]["drafters"][0]

    assert (drafter["state"], drafter["reason"]) == ("failed", "draft_failed")
    assert done["homespec"]["reason"] == "draft_failed"
    assert one.text(1) == one.text(2) == one.text(3)
    logs = [frame for frame in one.frames.sent if frame["type"] == "log"]
    assert len(logs) == 1


def test_a_governor_meets_no_conversation_twice(monkeypatch: pytest.MonkeyPatch) -> None:
    """Clients' requests and the choices of one request: each has an id of its own, for good.

    What one showed of its text must not be taken for another's.
    """
    met: list[int] = []
    with worker(target, {"good": draft(BASE)}) as one:
        choose = one.learned.governor.choose

        def asked(now_s: float, situation: Situation) -> Choice:
            if situation.context == len(PROMPT):  # a conversation's first round
                met.append(situation.request)
            return choose(now_s, situation)

        monkeypatch.setattr(one.learned.governor, "choose", asked)
        one.generate(1, PROMPT)
        one.generate(2, PROMPT, choices=3)
        one.work()
        one.generate(3, PROMPT)
        one.work()

    assert len(met) == len(set(met)) == 5
    assert {1, 2, 3} <= set(met)


def test_the_choices_of_a_request_are_encoded_once(
    served: Worker, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A long text takes as long as several steps, in which nobody else gets a token."""
    encoded: list[str] = []

    def encode(text: str, **_: Any) -> list[int]:
        encoded.append(text)
        return list(PROMPT)

    monkeypatch.setattr(served.engine.loaded.tokenizer, "encode", encode, raising=False)
    asked = GenerationRequest(prompt="a text", max_tokens=4, choices=5)
    served.post({"type": "generate", "id": 1, "request": asked.to_frame()})
    served.work()

    assert encoded == ["a text"]
    assert served.frames.last(1)["usage"]["prompt_tokens"] == len(PROMPT)


def test_ids_of_jobs_are_negative_and_never_again() -> None:
    request = GenerationRequest(prompt=PROMPT, max_tokens=4)
    with worker(target, {"good": draft(BASE)}) as one:
        started: list[int] = []
        start = one.engine.start

        def noted(*arguments: Any, **options: Any) -> int:
            started.append(start(*arguments, **options))
            return started[-1]

        one.engine.start = noted  # type: ignore[method-assign]
        one.generate(1, PROMPT, choices=2)
        one.work()
        run_one(one.engine, request, cold=True)
        run_together(one.engine, [request, request, request], cold=False)

    assert len(started) == len(set(started)) == 4
    assert all(number < 0 for number in started)


def test_a_worker_that_starts_again_takes_nobody_for_an_old_acquaintance(tmp_path: Path) -> None:
    """Ids begin at 1 again after a restart; what is kept on disk knows no ids."""
    with worker(target, DRAFTS, state=tmp_path) as one:
        before = one.answer(1, PROMPT, max_tokens=60)
    with worker(target, DRAFTS, state=tmp_path) as again:
        after = again.answer(1, PROMPT[::-1], max_tokens=60)

    want = greedy(FakeModel(BASE), PROMPT[::-1], 60)
    assert again.text(1) == "".join(chr(ord("a") + token) for token in want)
    assert before["usage"]["completion_tokens"] == after["usage"]["completion_tokens"] == 60


def test_speculation_that_is_off_in_the_configuration_costs_nothing() -> None:
    """Nothing is measured, nothing is offered, and the reason is given."""
    made: list[FakeModel] = []

    def counted(clock: FakeClock) -> FakeModel:
        made.append(target(clock))
        return made[0]

    off = SpeculationSettings(enabled=False)
    with worker(counted, {"ngram": None}, speculation=off) as one:
        assert made[0].steps == []
        report = one.answer(1, PROMPT)["homespec"]

    assert (report["mode"], report["drafter"]) == ("plain", None)
    assert report["reason"] == "disabled_by_config"
    assert report["speedup"]["measured"] is None
