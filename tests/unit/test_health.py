"""When a worker hangs: the decision on traces, what /proc says, what a worker says."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
from collections.abc import Iterable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from homespecd.daemon.health import EngineWord, Health, Patience, Sighting, judge
from homespecd.daemon.processes import ProcessState, is_asleep, process_state
from homespecd.daemon.vigil import BUSY_INTERVAL_S, Vigil
from homespecd.runtime.step import Rows
from homespecd.worker.progress import Progress, Watched
from tests.fakes import FakeClock, FakeModel, HistoryLogits

PATIENCE = Patience()
LOOK_S = 0.25


def verdict_at(trace: Iterable[Sighting]) -> tuple[float, str]:
    """When (seconds after the first look) and why the worker is ended; (inf, "") = it is not."""
    health, first_s = Health(), None
    for now in trace:
        first_s = now.now_s if first_s is None else first_s
        health = judge(health, now, PATIENCE)
        if health.verdict:
            return now.now_s - first_s, health.verdict
    return float("inf"), ""


def looks(seconds: float, **same: Any) -> Iterator[Sighting]:
    """A look every quarter of a second at a worker that is always the same."""
    for number in range(int(seconds / LOOK_S) + 1):
        yield Sighting(100.0 + number * LOOK_S, **same)


def silent(seconds: float, **same: Any) -> Iterator[Sighting]:
    """Asked at the first look, and never answering."""
    return looks(seconds, asked_s=100.0, **same)


@pytest.mark.parametrize("letter", ["T", "t"])
def test_a_stopped_process_is_over_after_half_a_second(letter: str) -> None:
    at_s, why = verdict_at(looks(5, state=letter, ran_ns=7))
    assert at_s == PATIENCE.stopped_s == 0.5
    assert "was stopped" in why


def test_looks_in_quick_succession_do_not_make_a_stop_longer() -> None:
    """Whoever comes or goes makes it look at once."""
    at_once = (replace(one, now_s=100.0 + i / 1000) for i, one in enumerate(looks(60, state="T")))
    assert verdict_at(at_once) == (float("inf"), "")


def test_a_tool_that_stops_it_for_a_moment_does_no_harm() -> None:
    trace = (replace(one, state="tS"[i % 2]) for i, one in enumerate(looks(60)))
    assert verdict_at(trace) == (float("inf"), "")
    # Every look happens to find it stopped, and it has run since the one before.
    trace = (replace(one, state="t", ran_ns=i) for i, one in enumerate(looks(60)))
    assert verdict_at(trace) == (float("inf"), "")


def test_one_that_answers_is_well() -> None:
    assert verdict_at(looks(600, cpu_s=5.0)) == (float("inf"), "")


def test_silent_and_asleep_is_over_soon() -> None:
    at_s, why = verdict_at(silent(20))
    assert at_s == PATIENCE.silent_s
    assert why == "it had not answered for 1.5 s and did nothing"


def test_silent_and_at_work_is_waited_for() -> None:
    """It computes, or waits for the disk, for memory, for its turn on a machine with no time."""
    busy = PATIENCE.busy_s
    computing = (replace(one, cpu_s=i * 0.1) for i, one in enumerate(silent(20)))
    assert verdict_at(computing)[0] == busy
    assert verdict_at(silent(20, asleep=False)) == (busy, "it had not answered for 10.0 s")
    often = (replace(one, asleep=i % 2 == 1) for i, one in enumerate(silent(20)))
    assert verdict_at(often)[0] == busy


def test_threads_that_only_wait_for_each_other_are_no_work() -> None:
    """They wake up every few milliseconds, and are seen awake now and then."""
    trace = (replace(one, asleep=i % 3 != 0, cpu_s=i * 0.01) for i, one in enumerate(silent(20)))
    assert verdict_at(trace)[0] == PATIENCE.silent_s


def test_an_answer_ends_the_silence() -> None:
    """Asked anew every second, and answering each time."""
    trace = (replace(one, asked_s=100.0 + (i // 4)) for i, one in enumerate(looks(60)))
    answered = (replace(one, asked_s=None) if i % 4 == 3 else one for i, one in enumerate(trace))
    assert verdict_at(answered) == (float("inf"), "")


def in_turn(seconds: float, doing: str = "step", predicted_s: float | None = 0.05) -> Any:
    return looks(seconds, cpu_s=1.0, engine=EngineWord(7, doing, predicted_s))


@pytest.mark.parametrize(
    ("doing", "predicted_s", "over_s"),
    [
        ("step", 0.05, 10.0),  # never less than this
        ("step", 2.0, 40.0),  # twenty times what it should take
        ("step", None, 300.0),  # the first one: nobody knows
        ("between", None, 60.0),
        ("idle", None, float("inf")),
    ],
)
def test_an_engine_that_stays_in_one_turn(
    doing: str, predicted_s: float | None, over_s: float
) -> None:
    at_s, why = verdict_at(in_turn(1000, doing, predicted_s))
    assert at_s == (over_s if over_s == float("inf") else over_s + LOOK_S)
    assert ("stuck" in why) == (over_s < float("inf"))


def test_long_steps_one_after_the_other_are_no_hang() -> None:
    trace = (
        replace(one, engine=EngineWord(int(one.now_s / 9), "step", 0.05)) for one in looks(600)
    )
    assert verdict_at(trace) == (float("inf"), "")


def test_weights_that_come_back_from_the_disk_are_waited_for() -> None:
    """Their pages were taken away: the step takes minutes, and gets on all the time."""
    trace = [replace(one, faults=100 * i) for i, one in enumerate(in_turn(120))]
    stays = [replace(one, now_s=one.now_s + 120, faults=trace[-1].faults) for one in in_turn(60)]
    at_s, _ = verdict_at([*trace, *stays])
    assert at_s == 130.25


# -- what is looked at ---------------------------------------------------------------------------


def test_a_process_is_read_as_the_kernel_shows_it(tmp_path: Path) -> None:
    process = subprocess.Popen(["sleep", "60"])
    try:
        process.send_signal(signal.SIGSTOP)
        os.waitid(os.P_PID, process.pid, os.WSTOPPED)
        stopped = process_state(process.pid)
        assert stopped.letter == "T"
        assert process_state(process.pid).ran_ns == stopped.ran_ns
        assert not is_asleep(process.pid)
    finally:
        process.kill()
        process.wait()
    assert process_state(process.pid) == ProcessState()
    assert not is_asleep(process.pid)
    own = process_state(os.getpid())
    assert own.letter == "R"
    assert own.cpu_s > 0
    while process_state(os.getpid()).ran_ns == own.ran_ns > 0:
        pass  # it runs, so it moves
    assert own.ran_ns > 0
    odd = tmp_path / "5" / "stat"
    odd.parent.mkdir()
    odd.write_text("5 (a) R (b) D 1 5 5 0 -1 0 10 0 7 0 200 100 0 0 20 0 1 0 1")
    ticks = os.sysconf("SC_CLK_TCK")
    assert process_state(5, tmp_path) == ProcessState("D", 300 / ticks, 7)


class Watchable:
    """Plays a `WorkerHandle` of this process, which answers if it is told to."""

    def __init__(self, *, answers: bool) -> None:
        self.pid = os.getpid()
        self.asked_s: float | None = None
        self.engine = EngineWord()
        self.answers = answers
        self.ended = ""

    def ask(self, now_s: float) -> None:
        if not self.answers and self.asked_s is None:
            self.asked_s = now_s

    def kill(self, why: str) -> None:
        self.ended = why


def test_time_in_which_nothing_ran_does_not_count(monkeypatch: pytest.MonkeyPatch) -> None:
    """The machine freezes for a minute in the middle of every wait: nobody is to blame."""
    clock = FakeClock()

    async def frozen(seconds: float) -> None:
        clock.now_s += seconds + 60.0

    deaf, well = Watchable(answers=False), Watchable(answers=True)
    vigil = Vigil(
        workers=lambda: [(deaf, True), (well, True)],  # type: ignore[list-item]
        loading=list,
        patience=PATIENCE,
        clock_s=clock,
    )

    async def watch(looks: int) -> None:
        count = 0

        async def sleep(seconds: float) -> None:
            nonlocal count
            count += 1
            if count == looks:
                raise asyncio.CancelledError
            await frozen(seconds)

        monkeypatch.setattr("homespecd.daemon.vigil.asyncio.sleep", sleep)
        with pytest.raises(asyncio.CancelledError):
            await vigil.run()

    asyncio.run(watch(int(PATIENCE.busy_s / BUSY_INTERVAL_S)))
    assert (deaf.ended, well.ended) == ("", "")
    asyncio.run(watch(8))
    assert "not answered for 1" in deaf.ended
    assert well.ended == ""
    lags = vigil.lag_s.as_dict()["buckets"]
    assert lags["5"] == 0
    assert lags["+Inf"] > 40


# -- what a worker says --------------------------------------------------------------------------


def test_a_worker_says_what_its_engine_does() -> None:
    clock = FakeClock()
    progress = Progress(clock)
    seen: list[dict[str, Any]] = []

    def step_ms(rows: int) -> float:
        seen.append(progress.word())
        return 10.0 * rows

    model = Watched(FakeModel(HistoryLogits(16), clock=clock, step_ms=step_ms), progress)
    assert progress.word() == {"turn": 0, "doing": "idle", "predicted_s": None}
    cache = model.new_cache()
    model.step([Rows(cache, [1, 2], logits_from=0)])
    assert progress.word()["doing"] == "between"
    model.step([Rows(cache, [3] * 5, logits_from=0)])
    assert [one["doing"] for one in seen] == ["step", "step"]
    assert seen[0]["predicted_s"] is None
    assert seen[1]["predicted_s"] == pytest.approx(0.05)
    assert seen[0]["turn"] < seen[1]["turn"] < progress.word()["turn"]
    progress.idle()
    assert progress.word()["doing"] == "idle"
