"""Grammars that are made to be difficult: what they cost is theirs alone, and is bounded."""

from __future__ import annotations

import json
import re
import threading
from collections.abc import Iterator
from typing import Any

import pytest

from homespecd.decoding.constraint import GrammarSpec
from homespecd.decoding.grammar import Grammar, GrammarVocabulary
from homespecd.decoding.multiples import too_many_remainders
from homespecd.errors import RequestError
from homespecd.worker import requests
from homespecd.worker.grammars import begun
from tests.engines import Worker, worker
from tests.fakes import FakeClock, FakeModel, HistoryLogits

VOCAB = 16
END = VOCAB - 1
GRAMMAR = GrammarSpec("grammar", "start: /[a-c]{6}/\n", "grammar")


def vocabulary(*_: object, **__: object) -> GrammarVocabulary:
    pieces = [bytes([ord("a") + token]) for token in range(END)] + [b"</s>"]
    return GrammarVocabulary(
        pieces, encode=lambda text: [ord(one) - ord("a") for one in text], special=[END],
        end_ids=[END],
    )  # fmt: skip


@pytest.fixture(name="served")
def _served(monkeypatch: pytest.MonkeyPatch) -> Iterator[Worker]:
    monkeypatch.setattr(requests, "grammar_vocabulary", vocabulary)
    with worker(lambda clock: _model(clock)) as one:
        yield one


def _model(clock: FakeClock) -> FakeModel:
    return FakeModel(HistoryLogits(VOCAB, seed=3), clock=clock)


def test_others_go_on_while_a_grammar_is_built(
    served: Worker, monkeypatch: pytest.MonkeyPatch
) -> None:
    gate = threading.Event()

    def slowly(of: GrammarVocabulary, spec: GrammarSpec) -> Grammar:
        assert gate.wait(60)
        return begun(of, spec)

    monkeypatch.setattr(requests, "begun", slowly)
    served.generate(1, (1, 2), grammar=GRAMMAR, choices=2)
    served.generate(2, (3, 4))
    served.work()
    assert served.frames.last(2)["type"] == "done"
    assert served.frames.of(1) == []
    gate.set()
    while not served.frames.of(1) or served.frames.last(1)["type"] == "delta":
        served.engine.pump(wait_s=5.0)
    assert served.frames.last(1)["type"] == "done"


def test_every_answer_follows_its_grammar(served: Worker) -> None:
    """The first, that waits for the tables, and those after it; each choice of them."""
    for request in (1, 2):
        served.generate(request, (1, 2), grammar=GRAMMAR, choices=2, max_tokens=6)
        while not served.frames.of(request) or served.frames.last(request)["type"] == "delta":
            served.engine.pump(wait_s=5.0)
        assert served.frames.last(request)["type"] == "done"
        assert re.fullmatch("[a-c]{12}", served.text(request))


def test_one_that_is_begun_serves_many_answers() -> None:
    made = begun(vocabulary(), GRAMMAR)
    first, second = made.anew(prompt_length=1), made.anew(prompt_length=3)
    beginnings = [0, 1, 2]  # a, b, c
    assert set(range(VOCAB)) - set(first.impossible([9])) == set(beginnings)
    assert set(range(VOCAB)) - set(first.impossible([9, *[1] * 6])) == {END}
    # What one answer has followed is nothing to the other.
    assert set(range(VOCAB)) - set(second.impossible([9, 9, 9])) == set(beginnings)
    assert second.possible_run([9, 9, 9], [2, 2, 9]) == 2


def test_what_comes_next_in_one_answer_is_nothing_to_another() -> None:
    spec = GrammarSpec("grammar", "start: /ab|bc/\n", "grammar")
    made = begun(vocabulary(), spec)
    first, second = made.anew(prompt_length=0), made.anew(prompt_length=0)
    assert set(range(VOCAB)) - set(first.impossible([0])) == {1}
    assert set(range(VOCAB)) - set(second.impossible([1])) == {2}


def test_one_that_leads_nowhere_is_refused_when_it_is_begun() -> None:
    with pytest.raises(RequestError, match="response_format cannot be followed: it allows no text"):
        begun(vocabulary(), GrammarSpec("json", '{"$ref": "#"}', "response_format"))


@pytest.mark.parametrize(
    ("schema", "too_many"),
    [
        ({"type": "integer", "multipleOf": 5}, False),
        ({"multipleOf": 0.01}, False),
        ({"multipleOf": 1e9}, False),
        ({"multipleOf": 1e-7}, False),
        ({"multipleOf": 99_991}, False),
        ({"multipleOf": 4_999_999}, True),
        ({"multipleOf": 499_999.9}, True),
        ({"multipleOf": 10**15 + 1}, True),
        # Each of them is counted by itself,
        ({"properties": {name: {"multipleOf": 997} for name in "ab"}}, False),
        ({"properties": {f"p{i}": {"multipleOf": 20_011} for i in range(6)}}, True),
        # or together where they apply to one number.
        ({"allOf": [{"multipleOf": 997}, {"multipleOf": 991}]}, True),
        ({"allOf": [{"multipleOf": 0.5}, {"multipleOf": 20}]}, False),
        ({"$ref": "#/$defs/a", "multipleOf": 997, "$defs": {"a": {"multipleOf": 991}}}, True),
        ({"multipleOf": 1999, "anyOf": [{"multipleOf": 1997}]}, True),
        ({"multipleOf": 1999, "oneOf": [{"multipleOf": 1997}]}, True),
        (
            {
                "properties": {"a": {"multipleOf": 1999}},
                "patternProperties": {"^a": {"multipleOf": 1997}},
            },
            True,
        ),
        ({"properties": {"a": {"multipleOf": 0.01}, "b": {"multipleOf": 60}}}, False),
        # What only looks like one is none.
        ({"properties": {"multipleOf": {"const": 4_999_999}}}, False),
        ({"const": '"multipleOf": 4999999'}, False),
    ],
)
def test_multiples_are_bounded(schema: dict[str, Any], too_many: bool) -> None:
    text = json.dumps(schema)
    assert too_many_remainders(text) is too_many
    assert too_many_remainders(f"start: %json {text}") is too_many


@pytest.mark.parametrize(
    ("number", "too_many"),
    [
        ("1e9999999", False),
        ("1e-9999999", False),
        ("1e99999999999999999999", False),
        ("12" + "0" * 5000, False),
        ("1.2.3", False),
        ("9" * 5000, True),
        ("9" * 30, True),
        ("4999999e9999999", True),
    ],
)
def test_numbers_of_any_size_can_be_counted(number: str, too_many: bool) -> None:
    assert too_many_remainders(f'start: %json {{"multipleOf": {number}}}') is too_many


def test_too_many_are_refused_by_name() -> None:
    text = 'start: %json {"multi\\u0070leOf": 4999999}'
    with pytest.raises(RequestError, match="multiples of numbers") as refused:
        vocabulary().matcher(GrammarSpec("grammar", text, "grammar"))
    assert refused.value.param == "grammar"
    assert "multipleOf" in refused.value.hint
