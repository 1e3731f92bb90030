"""`bench` and `verify` as the engine runs them, on toy models from disk."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from homespecd.errors import ModelError, RequestError
from homespecd.worker.bench import bench_job
from homespecd.worker.jobs import run_together, whole_number
from homespecd.worker.load import load
from homespecd.worker.messages import DrafterSettings, GenerationRequest, WorkerSettings
from homespecd.worker.verify import verify_job
from tests.engines import Worker
from tests.fakes import FakeClock
from tests.oracle import Toy
from tests.tiny_onnx import make_toy

PROMPTS = [
    {"category": "short", "messages": [{"role": "user", "content": "hello"}]},
    {"category": "long", "messages": [{"role": "user", "content": "the quick brown fox " * 3}]},
    {"category": "short", "messages": [{"role": "user", "content": "again"}]},
]
Serve = Callable[..., Worker]


@pytest.fixture
def serve(tmp_path: Path) -> Iterator[Serve]:
    """Makes a worker for a toy, with a draft that is wrong at every third position."""
    workers: list[Worker] = []

    def make(toy: Toy | None = None, *, context: int = 1500) -> Worker:
        target = make_toy(tmp_path / "target", toy or Toy(layout="lanes"))
        draft = make_toy(tmp_path / "draft", Toy(behaviour="every_third"))
        settings = WorkerSettings(
            name="toy",
            path=str(target),
            context=context,
            threads=1,
            drafters=(
                DrafterSettings(name="ngram", kind="ngram"),
                DrafterSettings(name="third", kind="model", path=str(draft)),
                DrafterSettings(name="gone", kind="model", path=str(tmp_path / "nowhere")),
            ),
        )
        clock = FakeClock()
        workers.append(Worker(load(settings, lambda _what: None), clock))
        # Every look at the clock is a moment later, so that nothing takes no time at all.
        tick(clock)
        return workers[-1]

    yield make
    for one in workers:
        one.stop()


def tick(clock: FakeClock) -> None:
    """Let the clock move by 0.1 ms whenever it is read."""

    class Ticking(FakeClock):
        def __call__(self) -> float:
            self.advance_ms(0.1)
            return self.now_s

    clock.__class__ = Ticking


def bench(one: Worker, **options: Any) -> dict[str, Any]:
    return dict(
        bench_job({"prompts": PROMPTS, "max_tokens": 12, "repeats": 2, **options})(one.engine)
    )


def test_bench_says_all_there_is_to_say(serve: Serve) -> None:
    result = bench(serve(), each_drafter=True)

    assert {"model", "precision", "provider", "threads", "machine", "versions"} <= set(result)
    assert (result["max_tokens"], result["repeats"], result["seed"]) == (12, 2, None)
    modes = ["plain", "speculative", "only ngram", "only third"]
    assert [(row["category"], row["mode"]) for row in result["rows"]] == [
        (category, mode) for category in ("short", "long") for mode in modes
    ]
    for row in result["rows"]:
        assert row["decode_tok_s_min"] <= row["decode_tok_s"] <= row["decode_tok_s_max"]
        assert 0 < row["ttft_ms_min"] <= row["ttft_ms"] <= row["ttft_ms_max"]
        assert row["draft_tokens_accepted"] <= row["draft_tokens_proposed"]
        assert row["acceptance_length"] == pytest.approx(12 / row["rounds"], abs=0.01)
        assert row["peak_memory_bytes"] > 0
        assert row["draft_ms"] >= 0
    by_mode = {(row["category"], row["mode"]): row for row in result["rows"]}
    assert by_mode["short", "plain"]["draft_tokens_proposed"] == 0
    assert by_mode["short", "plain"]["reason"] == "disabled_by_request"
    third = by_mode["short", "only third"]
    assert third["drafter"] == "third"
    assert third["acceptance_length"] >= 1.5
    assert third["verify_ms"] > 0
    assert [one["mode"] for one in result["overall"]] == modes[1:]
    for one in result["speedups"]:
        assert one["speedup_min"] <= one["speedup"] <= one["speedup_max"]
        assert one["identical"] is True
    for one in result["overall"]:
        medians = [s["speedup"] for s in result["speedups"] if s["mode"] == one["mode"]]
        assert one["speedup_least"] == min(medians)
        assert min(medians) - 0.001 <= one["speedup"] <= max(medians) + 0.001
    assert "1" in result["step_ms"]
    assert [one["name"] for one in result["drafters"]] == ["ngram", "third", "gone"]


def test_bench_with_a_seed_samples_the_same_texts_in_every_mode(serve: Serve) -> None:
    result = bench(serve(), seed=5, each_drafter=True)

    assert result["seed"] == 5
    assert all(one["identical"] for one in result["speedups"])


def test_bench_is_interleaved_and_turned_round(
    serve: Serve, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Every prompt in every mode before the next prompt; every other repeat backwards."""
    asked: list[str] = []
    one = serve()
    start = one.engine.start

    def noted(request: GenerationRequest, **options: Any) -> int:
        asked.append(request.speculation.value)
        return start(request, **options)

    monkeypatch.setattr(one.engine, "start", noted)
    bench(one)

    assert asked == ["off"] + 3 * ["off", "auto"] + 3 * ["auto", "off"]


@pytest.mark.parametrize(
    ("options", "param"),
    [
        ({"max_tokens": 0}, "max_tokens"),
        ({"max_tokens": True}, "max_tokens"),
        ({"repeats": "3"}, "repeats"),
        ({"repeats": 101}, "repeats"),
        ({"seed": -1}, "seed"),
        ({"seed": 1.5}, "seed"),
        ({"prompts": []}, "prompts"),
        ({"prompts": [{"category": "x"}]}, "prompts"),
        ({"prompts": "chat"}, "prompts"),
    ],
)
def test_bench_refuses_what_it_cannot_do(serve: Serve, options: dict[str, Any], param: str) -> None:
    with pytest.raises(RequestError) as caught:
        bench(serve(), **options)
    assert caught.value.param == param


def test_a_job_that_nobody_waits_for_ends(serve: Serve) -> None:
    one = serve()
    one.post({"type": "bench", "id": 7, "options": {"prompts": PROMPTS, "repeats": 100}})
    steps = iter(range(1_000_000))
    turn = one.engine.serving.scheduler.turn

    def counted() -> bool:
        if next(steps) == 20:
            one.post({"type": "cancel", "id": 7})
        return turn()

    one.engine.serving.scheduler.turn = counted  # type: ignore[method-assign]
    one.stop()

    assert one.frames.last(7)["type"] == "error"
    assert "cancelled" in one.frames.last(7)["error"]["message"]
    assert next(steps) < 200


def test_a_question_does_not_wait_for_a_job(serve: Serve) -> None:
    """Some count tokens before every request; a bench takes minutes."""
    one = serve()
    one.post({"type": "bench", "id": 7, "options": {"prompts": PROMPTS, "repeats": 100}})
    steps = iter(range(1_000_000))
    turn = one.engine.serving.scheduler.turn

    def asking() -> bool:
        step = next(steps)
        if step == 5:
            one.post({"type": "detokenize", "id": 8, "options": {"tokens": [72, 105]}})
            one.post({"type": "detokenize", "id": 9, "options": {"tokens": [1 << 20]}})
        if one.frames.of(8) and one.frames.of(9) and not one.stopped:
            one.stopped = True
            one.post({"type": "stop"})
        return turn()

    one.engine.serving.scheduler.turn = asking  # type: ignore[method-assign]
    one.engine.run()

    ended = [frame["id"] for frame in one.frames.sent if frame["type"] in ("result", "error")]
    assert ended == [8, 9, 7]
    assert one.frames.last(8)["result"] == {"content": "Hi"}
    assert one.frames.last(9)["error"]["param"] == "tokens"


def test_requests_at_once_keep_their_order_and_one_that_fails_is_an_error(serve: Serve) -> None:
    one = serve(Toy(layout="lanes", fail_at=60))
    requests = [GenerationRequest(prompt=(n + 1,) * (5 + n), max_tokens=8) for n in range(3)]

    runs = run_together(one.engine, requests, cold=True)

    assert [run.account.prompt_tokens for run in runs] == [5, 6, 7]
    assert all(len(run.tokens) == run.account.completion_tokens == 8 for run in runs)
    with pytest.raises(ModelError):
        run_together(one.engine, [GenerationRequest(prompt=(1,) * 58, max_tokens=8)], cold=True)
    assert one.engine.serving.scheduler.idle


def test_whole_numbers() -> None:
    assert whole_number({}, "n", default=3, most=9) == 3
    assert whole_number({"n": 9}, "n", default=3, most=9) == 9
    assert whole_number({"n": 0}, "n", default=3, most=9, least=0) == 0
    with pytest.raises(RequestError, match="from 1 to 9"):
        whole_number({"n": 10}, "n", default=3, most=9)


def test_verify_passes_a_model_that_is_right(serve: Serve) -> None:
    result = dict(verify_job({"max_tokens": 24, "samples": 800})(serve().engine))

    assert result["passed"] is True
    assert (result["provider"], result["device"]) == ("cpu", "CPU")
    assert result["bit_identical"] is True
    assert result["max_logit_diff"] == 0.0
    assert result["near_tie_flips"] == 0
    assert result["block_causal"] is True
    assert result["greedy_identical"] == result["prompts"] == 6
    assert result["tokens"] == 6 * 24
    assert result["chi_square"]["p_value"] > 0.001
    assert result["chi_square"]["samples"] == 800
    assert {1, 2, 64} & set(result["widths"])


@pytest.mark.parametrize("job", [bench_job, verify_job])
def test_shipped_prompts_that_do_not_fit_are_named(serve: Serve, job: Any) -> None:
    """A toy spells its prompts letter by letter: three of six fit into 800 tokens."""
    one = serve(context=800)

    result = dict(job({"max_tokens": 4, "samples": 50, "repeats": 1})(one.engine))

    assert "summary" in result["left_out"]
    assert "chat" not in result["left_out"]
    if "prompts" in result:
        assert result["prompts"] == result["greedy_identical"] == 6 - len(result["left_out"])
    else:
        assert {row["category"] for row in result["rows"]}.isdisjoint(result["left_out"])


@pytest.mark.parametrize("job", [bench_job, verify_job])
def test_a_context_that_no_shipped_prompt_fits_into_is_refused(serve: Serve, job: Any) -> None:
    with pytest.raises(RequestError, match="none of the shipped prompts"):
        job({})(serve(context=40).engine)


def test_verify_fails_a_model_whose_rows_see_what_follows(serve: Serve) -> None:
    result = dict(verify_job({"max_tokens": 4, "samples": 200})(serve(Toy(not_causal=True)).engine))

    assert result["passed"] is False
    assert result["block_causal"] is False
    assert result["max_logit_diff"] > 0


def test_verify_has_nothing_to_say_of_an_export_without_blocks(serve: Serve) -> None:
    with pytest.raises(RequestError, match="last position only"):
        verify_job({})(serve(Toy(last_only=True)).engine)
