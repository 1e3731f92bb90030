"""Long texts are read beside the work of others: the order in which things happen."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace

import pytest

from homespecd.bundle.tokenizer import LONG_TEXT
from homespecd.errors import RequestError
from homespecd.worker import requests
from homespecd.worker.aside import Once
from homespecd.worker.intake import is_long
from homespecd.worker.load import Loaded
from homespecd.worker.messages import GenerationRequest
from tests.engines import Worker, worker
from tests.fakes import FakeClock, FakeModel, HistoryLogits

LONG = "x" * LONG_TEXT


@dataclass
class Reader:
    """Reads texts when it is let, as ids; those with an "!" cannot be read."""

    gate: threading.Event = field(default_factory=threading.Event)
    threads: list[str] = field(default_factory=list)

    def __call__(self, _loaded: Loaded, request: GenerationRequest) -> GenerationRequest:
        if not isinstance(request.prompt, str):
            return request
        self.threads.append(threading.current_thread().name)
        assert self.gate.wait(60)
        if "!" in request.prompt:
            raise RequestError("no such letter", param="prompt")
        return replace(request, prompt=(1, 2, 3))


@pytest.fixture(name="reader")
def _reader(monkeypatch: pytest.MonkeyPatch) -> Reader:
    reader = Reader()
    monkeypatch.setattr(requests, "with_prompt_ids", reader)
    return reader


@pytest.fixture(name="served")
def _served(reader: Reader) -> Iterator[Worker]:
    def target(clock: FakeClock) -> FakeModel:
        return FakeModel(HistoryLogits(16, seed=3), clock=clock)

    with worker(target) as one:
        yield one
        reader.gate.set()


def generate(served: Worker, request: int, text: str) -> None:
    asked = GenerationRequest(prompt=text, max_tokens=4)
    served.post({"type": "generate", "id": request, "request": asked.to_frame()})


def answered(served: Worker, request: int) -> None:
    """Work until it is."""
    while not served.frames.of(request):
        served.work()
        time.sleep(0.001)


def test_others_go_on_while_a_long_text_is_read(served: Worker, reader: Reader) -> None:
    generate(served, 1, LONG)
    served.generate(2, (5, 6))
    served.work()
    assert served.frames.last(2)["type"] == "done"
    assert served.frames.of(1) == []
    reader.gate.set()
    answered(served, 1)
    done = served.frames.last(1)
    assert (done["type"], done["usage"]["prompt_tokens"]) == ("done", 3)
    assert reader.threads == ["aside"]


def test_a_long_text_that_cannot_be_read_is_its_requests_error(
    served: Worker, reader: Reader
) -> None:
    reader.gate.set()
    generate(served, 1, LONG + "!")
    answered(served, 1)
    assert served.frames.last(1)["error"]["param"] == "prompt"


def test_who_goes_away_while_its_text_is_read_is_not_answered(
    served: Worker, reader: Reader
) -> None:
    generate(served, 1, LONG)
    generate(served, 2, LONG)
    served.post({"type": "cancel", "id": 1})
    served.post({"type": "cancel", "id": 2})
    generate(served, 3, LONG)
    served.engine.pump()
    reader.gate.set()
    answered(served, 3)
    assert served.frames.last(3)["type"] == "done"
    assert served.frames.of(1) == served.frames.of(2) == []
    assert len(reader.threads) == 2, "the second was not even begun"


@pytest.mark.parametrize("length", [LONG_TEXT // 2, LONG_TEXT])
def test_what_is_long(length: int) -> None:
    """All that the template renders counts."""
    long = length >= LONG_TEXT
    said = ({"role": "user", "content": "x" * (length // 2)},) * 2
    tool = {"type": "function", "function": {"name": "f", "description": "x" * length}}
    assert is_long(GenerationRequest(prompt="x" * length)) is long
    assert is_long(GenerationRequest(messages=said)) is long
    assert is_long(GenerationRequest(messages=said[:1], tools=(tool,))) is long
    assert not is_long(GenerationRequest(prompt=(1,) * length))


def test_who_asks_for_a_value_in_the_making_waits_for_the_same() -> None:
    begun, gate = threading.Event(), threading.Event()
    calls: list[str] = []

    def make() -> object:
        calls.append("make")
        begun.set()
        assert gate.wait(60)
        return object()

    value = Once(make)
    with ThreadPoolExecutor(2) as others:
        first = others.submit(value)
        assert begun.wait(60)
        second = others.submit(value)
        gate.set()
        assert first.result(60) is second.result(60) is value()
    assert calls == ["make"]
