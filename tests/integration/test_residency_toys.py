"""Memory, residency and isolation on the real service with real workers: the cases H, K and G4."""

from __future__ import annotations

import os
import random
import signal
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import psutil
import pytest

from tests.integration.running_service import PATIENCE_S, sse_events, wait_for
from tests.integration.service import (
    CHAT,
    Served,
    Service,
    chat,
    chat_ids,
    complete,
    drafting,
    prompts,
    spoken,
    text_of,
)
from tests.oracle import Toy
from tests.tiny_onnx import make_toy

pytestmark = pytest.mark.integration

MIB = 2**20
BALLAST = 32 * MIB
DRAFT_BALLAST = 256 * MIB
# Weights inside the graph's own file are in memory, and twice while it is read; weights beside it
# would only be mapped, and nothing reads the ballast.
HEAVY = Toy(ballast_bytes=BALLAST)
PLAIN = Toy()

# What a worker with a toy holds besides ballast, with room to spare; and its estimate.
_SMALL_BYTES = 220 * MIB


class Sampler:
    """The most that all workers of a service held together (PSS), looked at every few ms."""

    def __init__(self, service: Service) -> None:
        self._service = service
        self._stop = threading.Event()
        self.most = 0
        self._thread = threading.Thread(target=self._run)

    def __enter__(self) -> Sampler:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join()

    def _run(self) -> None:
        assert self._service.process is not None
        supervisor = psutil.Process(self._service.process.pid)
        while not self._stop.wait(0.02):
            total = 0
            for worker in supervisor.children():
                try:
                    total += worker.memory_full_info().pss
                except psutil.Error:
                    continue
            self.most = max(self.most, total)


def make(
    folder: Path, served: tuple[Served, ...], *, memory: str = "", slowed: bool = False
) -> Service:
    """A service that is not started, with this [memory] section beside a cap of everything."""
    service = Service(folder, served, slowed=slowed)
    configure(service, served, memory=memory)
    return service


def configure(service: Service, served: tuple[Served, ...], *, memory: str = "") -> None:
    service.write_config(served)
    text = service.config.read_text()
    before = '[memory]\ncap = "64GiB"\nreserve = "0B"\npressure = 100.0\n'
    assert before in text
    section = f'[memory]\nreserve = "0B"\n{memory or "pressure = 100.0"}\n'
    beside = service.config.with_name("new")
    beside.write_text(text.replace(before, section))
    beside.rename(service.config)


@pytest.fixture
def closing() -> Iterator[list[Service]]:
    """Services put in here are ended with the test."""
    services: list[Service] = []
    yield services
    for service in services:
        service.close()
        print(service.log())  # noqa: T201


@contextmanager
def setting(stop: threading.Event) -> Iterator[None]:
    """Set at the end of the block, also of one that fails: else who waits for it waits for ever."""
    try:
        yield
    finally:
        stop.set()


def reason_of(service: Service, model: str, drafter: str) -> tuple[str, str]:
    found = service.drafter(model, drafter)
    return found["state"], found["reason"]


# -- H1, H2: target and draft, and a cap between -------------------------------------------------


@pytest.fixture(scope="module")
def big_draft(tmp_path_factory: pytest.TempPathFactory) -> str:
    """The section of a draft that is larger than the caps of these tests."""
    folder = tmp_path_factory.mktemp("big")
    make_toy(folder, Toy(ballast_bytes=DRAFT_BALLAST))
    return f'kind = "model"\npath = "{folder}"\n'


@pytest.mark.parametrize("whose", ["service", "model"])
def test_a_draft_over_the_cap_is_left_out_and_comes_back(
    tmp_path: Path, closing: list[Service], whose: str, big_draft: str
) -> None:
    cap_bytes = BALLAST + 3 * DRAFT_BALLAST // 4 + 60 * MIB
    cap = f"{cap_bytes // MIB}MiB"
    draft = {"big": big_draft}
    own = f'memory_cap = "{cap}"' if whose == "model" else ""
    served = (Served("m", HEAVY, others=draft, context=2048, more=own),)
    memory = f'cap = "{cap}"' if whose == "service" else ""
    service = make(tmp_path, served, memory=memory, slowed=True)
    closing.append(service)
    service.start()
    prompt = prompts(1)[0]
    with Sampler(service) as sampler:
        answer = service.complete("m", prompt, max_tokens=20)
    assert sampler.most <= cap_bytes
    assert text_of(answer) == spoken(HEAVY, prompt, 20)
    assert answer["homespec"]["mode"] == "plain"
    assert answer["homespec"]["reason"] == "draft_over_cap"
    assert reason_of(service, "m", "big") == ("unloaded", "draft_over_cap")
    model = service.model("m")
    assert model["context"] == 2048
    assert "do not fit" in service.drafter("m", "big")["error"]

    # When there is more room the draft comes back, to the same worker.
    configure(service, (Served("m", HEAVY, others=draft, context=2048),), memory='cap = "8GiB"')
    wait_for(lambda: service.drafter("m", "big")["state"] == "ready", what=service.log)
    assert service.model("m")["pid"] == model["pid"]
    answer = service.complete(
        "m", prompt, max_tokens=20, homespec={"speculation": "on", "drafter": "big"}
    )
    assert text_of(answer) == spoken(HEAVY, prompt, 20)
    assert answer["homespec"]["mode"] != "plain"
    assert service.drafter("m", "big")["memory_bytes"] > DRAFT_BALLAST // 2

    # And it goes again, in the middle of an answer, when the cap is lowered.
    drafting = {"speculation": "on", "max_draft_tokens": 1}
    body = complete("m", prompt, max_tokens=1500, stream=True, homespec=drafting)
    with ExitStack() as slowly:
        slowly.enter_context(service.slowly())
        with service.http.stream("POST", "/v1/completions", json=body) as response:
            lines = response.iter_lines()
            first = next(lines)
            configure(service, served, memory=memory)
            assert service.post("/homespec/reload").status_code == 200
            wait_for(lambda: service.drafter("m", "big")["state"] == "unloaded", what=service.log)
            assert service.model("m")["active"] == 1
            slowly.close()
            rest = "\n".join([first, *lines])
    texts = [data["choices"][0]["text"] for _, data in sse_events(f"{rest}\n")[:-1]]
    assert "".join(texts) == spoken(HEAVY, prompt, 1500)
    assert service.model("m")["loads"] == 1
    wait_for(lambda: service.model("m")["memory_bytes"] < cap_bytes, what=service.log)


def test_what_cannot_fit_is_refused_with_the_numbers(
    tmp_path: Path, closing: list[Service]
) -> None:
    service = make(tmp_path, (Served("m", HEAVY),), memory='cap = "100MiB"')
    closing.append(service)
    service.start()
    response = service.post(CHAT, chat("m", "x"))
    assert response.status_code == 503
    assert "retry-after" in response.headers
    error = response.json()["error"]
    assert error["code"] == "insufficient_memory"
    assert "100 MiB" in error["message"]
    # Measured elsewhere, refused here: what was learned counts from the first moment on.
    configure(service, (Served("m", HEAVY),), memory='cap = "8GiB"')
    assert service.post("/homespec/reload").status_code == 200
    assert service.post(CHAT, chat("m", "x", max_tokens=2)).status_code == 200


# -- H5: the one in use is finished first --------------------------------------------------------


def test_a_model_in_use_is_finished_before_another_takes_its_place(
    tmp_path: Path, closing: list[Service]
) -> None:
    cap = f'cap = "{(BALLAST + _SMALL_BYTES) // MIB}MiB"'
    served = (Served("a", HEAVY), Served("b", HEAVY))
    service = make(tmp_path, served, memory=cap, slowed=True)
    closing.append(service)
    service.start()
    prompt = prompts(1)[0]

    def ask(name: str, tokens: int) -> str:
        return text_of(service.complete(name, prompt, max_tokens=tokens))

    with ThreadPoolExecutor() as pool, Sampler(service) as sampler:
        with service.slowly():
            first = pool.submit(ask, "a", 400)
            wait_for(
                lambda: service.model("a")["state"] == "ready" and service.model("a")["active"]
            )
            second = pool.submit(ask, "b", 10)
            wait_for(lambda: service.model("b")["waiting"], what=service.log)
            assert service.model("b")["state"] == "unloaded"
        assert first.result() == spoken(HEAVY, prompt, 400)
        assert second.result() == spoken(HEAVY, prompt, 10)
    log = service.log()
    assert log.index("model a: unloading") < log.index("model b: loading")
    assert [service.model(name)["loads"] for name in "ab"] == [1, 1]
    assert sampler.most < 2 * BALLAST + _SMALL_BYTES


def test_cold_requests_together_load_once(tmp_path: Path, closing: list[Service]) -> None:
    service = make(tmp_path, (Served("m", PLAIN, slots=2),))
    closing.append(service)
    service.start()
    asked = prompts(10)
    with ThreadPoolExecutor(10) as pool:
        answers = list(pool.map(lambda one: service.complete("m", one, max_tokens=8), asked))
    assert [text_of(one) for one in answers] == [spoken(PLAIN, one, 8) for one in asked]
    assert service.model("m")["loads"] == 1


# -- H6: idle time -------------------------------------------------------------------------------


def test_idle_time_begins_when_the_last_request_ends(
    tmp_path: Path, closing: list[Service]
) -> None:
    idle = (Served("m", PLAIN, more='idle_unload = "700ms"'),)
    service = make(tmp_path, idle, slowed=True)
    closing.append(service)
    service.start()
    prompt = prompts(1)[0]
    with service.slowly():  # twenty steps take longer than the idle time
        assert text_of(service.complete("m", prompt, max_tokens=20)) == spoken(PLAIN, prompt, 20)
    assert service.model("m")["loads"] == 1
    wait_for(lambda: service.model("m")["state"] == "unloaded", what=service.log)
    assert "idle for 0.7 s" in service.log()


# -- H10: every byte comes back ------------------------------------------------------------------


@pytest.mark.slow
def test_memory_comes_back_twenty_times(tmp_path: Path, closing: list[Service]) -> None:
    service = make(tmp_path, (Served("m", PLAIN),))
    closing.append(service)
    service.start()
    assert service.process is not None
    supervisor = psutil.Process(service.process.pid)
    after: list[int] = []
    for _ in range(20):
        assert service.post("/homespec/models/m/load").status_code == 200
        service.complete("m", prompts(1)[0], max_tokens=5)
        assert service.post("/homespec/models/m/unload").status_code == 200
        assert supervisor.children() == []
        after.append(supervisor.memory_info().rss)
    # The first rounds fill caches of the interpreter; from then on there is no trend.
    assert max(after[5:]) - min(after[5:]) < 4 * MIB
    assert after[-1] < 1.15 * after[0] + 4 * MIB


# -- K5, K6: the control plane -------------------------------------------------------------------


def test_the_control_plane_answers_all_the_time(tmp_path: Path, closing: list[Service]) -> None:
    service = make(tmp_path, (Served("m", HEAVY, slots=1),))
    closing.append(service)
    service.start()
    stop = threading.Event()

    def load_and_generate() -> int:
        rounds = 0
        while not stop.is_set():
            long = [0x41 + i % 26 for i in range(1500)]
            service.complete("m", long, max_tokens=30)
            service.post("/homespec/models/m/unload")
            rounds += 1
        return rounds

    seen: set[str] = set()
    with ThreadPoolExecutor() as pool:
        with setting(stop):
            working = pool.submit(load_and_generate)
            ended = time.monotonic() + PATIENCE_S
            while time.monotonic() < ended and not {"loading", "active"} <= seen:
                for path in ("/healthz", "/v1/models"):
                    assert service.http.get(path).status_code == 200
                model = service.model("m")
                seen.add(model["state"])
                seen |= {"active"} if model["active"] else set()
        assert working.result() >= 1
    # Whoever waits for a load or a prompt to end sees neither.
    assert {"loading", "active"} <= seen


def test_ready_means_that_pinned_models_answer(tmp_path: Path, closing: list[Service]) -> None:
    pinned = Served("m", HEAVY, more='residency = "pinned"')
    service = make(tmp_path, (pinned, Served("lazy", PLAIN)))
    closing.append(service)
    service.start()

    def ready() -> bool:
        status = service.http.get("/readyz").status_code
        assert status in (200, 503)
        assert service.http.get("/healthz").status_code == 200
        return status == 200

    wait_for(ready, what=service.log)
    answer = service.complete("m", prompts(1)[0], max_tokens=4)
    assert service.model("m")["loads"] == 1
    assert text_of(answer) == spoken(HEAVY, prompts(1)[0], 4)
    # A pinned model that died is not ready until it is back.
    os.kill(service.model("m")["pid"], signal.SIGKILL)
    wait_for(lambda: service.model("m")["loads"] == 2 and ready(), what=service.log)


# -- G4: the caches of a conversation ------------------------------------------------------------


def test_a_growing_chat_reuses_its_prefix_and_edits_of_it_do_not_confuse(
    tmp_path: Path, closing: list[Service]
) -> None:
    served = (Served("m", PLAIN, ("d3",), slots=2),)
    service, cold = (make(tmp_path / which, served) for which in ("warm", "cold"))
    for one in (service, cold):
        closing.append(one)
        one.start()
    history: list[tuple[list[dict[str, str]], dict[str, Any], str]] = []
    for draft in (None, "d3"):
        asking: dict[str, Any] = {"max_tokens": 24, "ignore_eos": True, **drafting("m", draft)}
        history += _grow(service, f"draft {draft}", asking)
    # A service that has seen nothing, or other things before, says the same to each of them.
    for messages, asking, text in reversed(history):
        assert text_of(cold.chat("m", messages, **asking)) == text


def _grow(
    service: Service, topic: str, asking: dict[str, Any]
) -> list[tuple[list[dict[str, str]], dict[str, Any], str]]:
    """A chat of six turns, then one with an edit in its past, then its beginning: what was asked,
    how, and what was said."""
    history: list[tuple[list[dict[str, str]], dict[str, Any], str]] = []

    def turn(messages: list[dict[str, str]]) -> int:
        answer = service.chat("m", messages, **asking)
        assert answer["usage"]["prompt_tokens"] == len(chat_ids(messages))
        history.append((messages, asking, text_of(answer)))
        cached: int = answer["usage"]["prompt_tokens_details"]["cached_tokens"]
        return cached

    messages: list[dict[str, str]] = []
    for number in range(6):
        messages = [*messages, {"role": "user", "content": f"{topic}, turn {number}, go on"}]
        cached = turn(messages)
        if number:
            # Only what is new is computed: everything up to the end of the question before is warm.
            assert cached >= len(chat_ids(history[-2][0])) - 1
        messages = [*messages, {"role": "assistant", "content": history[-1][2]}]
    edited = [dict(one) for one in history[3][0]]
    edited[0]["content"] = "turn zero, edited"
    turn(edited)
    turn(history[0][0])
    assert history[-1][2] == history[0][2]
    return history


# -- isolation -----------------------------------------------------------------------------------


@pytest.mark.slow
def test_workers_are_killed_at_random_and_every_request_gets_an_answer(
    tmp_path: Path, closing: list[Service]
) -> None:
    service = make(tmp_path, tuple(Served(name, PLAIN, slots=2) for name in "abc"))
    closing.append(service)
    service.start()
    service.complete("c", prompts(1)[0], max_tokens=2)
    steady = service.model("c")["pid"]
    asked = prompts(200)
    dice = random.Random(7)
    stop = threading.Event()

    killed: list[int] = []

    def kill() -> None:
        while not stop.wait(0.3):
            victim = service.model(dice.choice("ab"))
            if victim["pid"] and victim["state"] == "ready":
                os.kill(victim["pid"], signal.SIGKILL)
                killed.append(victim["pid"])

    def ask(number: int) -> tuple[int, str]:
        name, prompt = "abc"[number % 3], asked[number % 200]
        response = service.post("/v1/completions", complete(name, prompt, max_tokens=60))
        if response.status_code == 200:
            assert text_of(response.json()) == spoken(PLAIN, prompt, 60)
            return 200, name
        assert response.json()["error"]["code"] in ("worker_died", "model_failed")
        assert response.status_code == 503
        return 503, name

    def client(number: int) -> list[tuple[int, str]]:
        """Every fifth request, until there were enough of them and of what is done to them."""
        ends = []
        while (number < 200 or len(killed) < 3) and not killing.done():
            ends.append(ask(number))
            number += 5
        return ends

    with ThreadPoolExecutor(6) as pool:
        with setting(stop):
            killing = pool.submit(kill)
            ends = [end for some in pool.map(client, range(5)) for end in some]
        killing.result()
    assert all(status == 200 for status, name in ends if name == "c")
    assert service.model("c")["pid"] == steady
    for name in "ab":
        wait_for(lambda n=name: service.post(CHAT, chat(n, "x", max_tokens=1)).status_code == 200)


def test_a_killed_worker_ends_its_stream_with_an_error(
    tmp_path: Path, closing: list[Service]
) -> None:
    service = make(tmp_path, (Served("m", PLAIN),), slowed=True)
    closing.append(service)
    service.start()
    body = complete("m", prompts(1)[0], max_tokens=3000, stream=True, ignore_eos=True)
    with (
        service.slowly(),
        service.http.stream("POST", "/v1/completions", json=body) as response,
    ):
        lines = response.iter_lines()
        next(lines)
        os.kill(service.model("m")["pid"], signal.SIGKILL)
        rest = [line for line in lines if line]
    assert rest[-2] == "event: error"
    assert "worker_died" in rest[-1]
    assert "SIGKILL" in rest[-1]
    assert service.complete("m", prompts(1)[0], max_tokens=3)["choices"]


# -- reloads under load --------------------------------------------------------------------------


@pytest.mark.slow
def test_two_hundred_reloads_under_streaming_load(tmp_path: Path, closing: list[Service]) -> None:
    """Drafters come, go and change all the time, and so does what has nothing to do with it."""
    drafts: tuple[tuple[str, ...], ...] = (("d1",), ("d3", "ngram"), (), ("ngram",), ("d1", "d2"))

    def served(number: int) -> tuple[Served, ...]:
        idle = f'idle_unload = "{100 + number}s"'
        return (Served("m", PLAIN, drafts[number % 5], slots=2), Served("x", PLAIN, more=idle))

    every = (Served("m", PLAIN, ("d1", "d2", "d3", "ngram"), slots=2), Served("x", PLAIN))
    service = make(tmp_path, every)
    closing.append(service)
    service.start()
    asked = prompts(16)
    expected = [spoken(PLAIN, one, 120) for one in asked]
    stop = threading.Event()

    def stream(which: int) -> int:
        count = 0
        while not stop.is_set():
            number = (which + 2 * count) % len(asked)
            # Speculation is asked for, so that what comes and goes is used as well.
            body = complete("m", asked[number], max_tokens=120, homespec={"speculation": "on"})
            events = service.stream("/v1/completions", body)
            assert events[-1][1] == "[DONE]", events[-1]
            texts = [data["choices"][0]["text"] for _, data in events[:-1] if data["choices"]]
            assert "".join(texts) == expected[number]
            count += 1
        return count

    with ThreadPoolExecutor() as pool:
        with setting(stop):
            streams = [pool.submit(stream, which) for which in range(2)]
            for number in range(200):
                configure(service, served(number))
                assert service.post("/homespec/reload").status_code == 200
                for one in streams:
                    assert not one.done() or one.result()
        assert all(one.result() > 0 for one in streams)
    assert service.model("m")["loads"] == 1
    assert service.status()["config"]["last_error"] is None
