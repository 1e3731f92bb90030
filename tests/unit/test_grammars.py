"""The parser's tables are made beside the work of others: the order in which things happen."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace

import pytest

from homespecd.bundle.tokenizer import LONG_TEXT
from homespecd.decoding.constraint import GrammarSpec
from homespecd.decoding.grammar import GrammarVocabulary
from homespecd.errors import RequestError
from homespecd.worker import requests
from homespecd.worker.load import Loaded
from homespecd.worker.messages import GenerationRequest
from tests.engines import Worker, worker
from tests.fakes import FakeClock, FakeModel, HistoryLogits

VOCAB = 16
END = VOCAB - 1
GRAMMAR = GrammarSpec("grammar", "start: /[a-c]{6}/\n", "grammar")


def vocabulary() -> GrammarVocabulary:
    pieces = [bytes([ord("a") + token]) for token in range(END)] + [b"</s>"]
    return GrammarVocabulary(
        pieces, encode=lambda text: [ord(one) - ord("a") for one in text], special=[END],
        end_ids=[END],
    )  # fmt: skip


@dataclass
class Workshop:
    """Makes tables when it is let."""

    make: Callable[[], GrammarVocabulary] = vocabulary
    gate: threading.Event = field(default_factory=threading.Event)
    made: int = 0
    threads: list[str] = field(default_factory=list)

    def __call__(self, *_: object, **__: object) -> GrammarVocabulary:
        assert self.gate.wait(60)
        self.made += 1
        self.threads.append(threading.current_thread().name)
        return self.make()


@pytest.fixture(name="workshop")
def _workshop(monkeypatch: pytest.MonkeyPatch) -> Workshop:
    workshop = Workshop()
    monkeypatch.setattr(requests, "grammar_vocabulary", workshop)
    return workshop


@pytest.fixture(name="served")
def _served(workshop: Workshop) -> Iterator[Worker]:
    def target(clock: FakeClock) -> FakeModel:
        return FakeModel(HistoryLogits(VOCAB, seed=3), clock=clock)

    with worker(target) as one:
        yield one
        workshop.gate.set()


def finish(served: Worker, request: int) -> None:
    """Until the request has ended; the tables come from another thread."""
    while not served.frames.of(request) or served.frames.last(request)["type"] == "delta":
        served.engine.pump(wait_s=5.0)


def test_others_go_on_while_tables_are_made(served: Worker, workshop: Workshop) -> None:
    served.generate(1, (1, 2), grammar=GRAMMAR)
    served.generate(2, (3, 4))
    served.work()
    assert served.frames.last(2)["type"] == "done"
    assert served.frames.of(1) == []
    workshop.gate.set()
    finish(served, 1)
    assert served.frames.last(1)["finish_reasons"][0] in ("stop", "length")
    assert len(served.text(1)) >= 6
    assert set(served.text(1)[:6]) <= set("abc")
    # Once and for all.
    served.generate(3, (1, 2), grammar=GRAMMAR)
    finish(served, 3)
    assert served.text(3) == served.text(1)
    assert (workshop.made, workshop.threads) == (1, ["grammars"])


def test_who_waits_for_tables_can_leave(served: Worker, workshop: Workshop) -> None:
    served.generate(1, (1, 2), grammar=GRAMMAR)
    served.generate(2, (1, 3), grammar=GRAMMAR)
    served.work()
    served.post({"type": "cancel", "id": 1})
    served.work()
    workshop.gate.set()
    finish(served, 2)
    assert served.frames.of(1) == []
    assert served.engine.serving.totals.requests == 1


def test_tables_that_cannot_be_made_are_the_requests_error(
    served: Worker, workshop: Workshop
) -> None:
    def refuse() -> GrammarVocabulary:
        raise RequestError("no end", code="unsupported_parameter")

    workshop.make = refuse
    workshop.gate.set()
    for request in (1, 2):
        served.generate(request, (1, 2), grammar=GRAMMAR)
        finish(served, request)
        error = served.frames.last(request)["error"]
        assert (error["status"], error["code"]) == (400, "unsupported_parameter")
    assert workshop.made == 1


def test_a_parser_that_panics_costs_one_request(served: Worker, workshop: Workshop) -> None:
    class Panic(BaseException):
        pass

    def panic() -> GrammarVocabulary:
        raise Panic("unreachable")

    workshop.make = panic
    workshop.gate.set()
    served.generate(1, (1, 2), grammar=GRAMMAR)
    finish(served, 1)
    served.generate(2, (1, 2))
    finish(served, 2)

    assert served.frames.last(1)["error"]["status"] == 500
    assert served.frames.last(2)["type"] == "done"


def test_a_request_of_the_engines_own_follows_its_grammar(
    served: Worker, workshop: Workshop
) -> None:
    workshop.gate.set()
    said: list[str] = []
    request = GenerationRequest(prompt=(1, 2), max_tokens=6, grammar=GRAMMAR)
    served.engine.start(request, emit=lambda text, _: said.append(text), finish=lambda *_: None)
    served.work()

    assert len("".join(said)) == 6
    assert set("".join(said)) <= set("abc")


def test_a_failure_is_told_to_everyone_who_waited(served: Worker, workshop: Workshop) -> None:
    def refuse() -> GrammarVocabulary:
        raise RequestError("no end", code="unsupported_parameter")

    workshop.make = refuse
    for request in (1, 2, 3):
        served.generate(request, (1, 2), grammar=GRAMMAR)
    served.work()
    served.post({"type": "cancel", "id": 2})
    served.work()
    workshop.gate.set()
    finish(served, 1)
    finish(served, 3)
    codes = [frame["error"]["code"] for one in (1, 3) for frame in served.frames.of(one)]
    assert codes == ["unsupported_parameter"] * 2
    assert served.frames.of(2) == []
    assert workshop.made == 1


def test_no_long_text_waits_for_tables(
    served: Worker, workshop: Workshop, monkeypatch: pytest.MonkeyPatch
) -> None:
    def read(_: Loaded, request: GenerationRequest) -> GenerationRequest:
        return replace(request, prompt=(3, 4))

    monkeypatch.setattr(requests, "with_prompt_ids", read)
    long = GenerationRequest(prompt="x" * LONG_TEXT, max_tokens=4)
    served.generate(1, (1, 2), grammar=GRAMMAR)
    served.post({"type": "generate", "id": 2, "request": long.to_frame()})
    finish(served, 2)
    assert served.frames.last(2)["type"] == "done"
    assert served.frames.of(1) == []
    workshop.gate.set()
    finish(served, 1)
    assert served.frames.last(1)["type"] == "done"
