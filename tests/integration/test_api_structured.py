"""Structured output over the real service: valid, and the plain text, whatever drafts."""

from __future__ import annotations

import json
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from tests.integration.service import (
    CHAT,
    COMPLETION,
    Served,
    Service,
    chat,
    complete,
    deltas,
    drafting,
    module_service,
    prompts,
    text_of,
)
from tests.oracle import ASSISTANT, Toy, say

pytestmark = pytest.mark.integration

# One that speaks freely, and one that wants to say prose.
FREE = Toy(layout="lanes")
PROSE = Toy(layout="lanes", script=say("Sure! Here is the JSON: {}"), script_after=ASSISTANT)
DRAFTS = ("d1", "d2", "d3", "ngram")

running, service = module_service(
    Served("free", FREE, DRAFTS, slots=4),
    Served("prose", PROSE, ("d1",), slots=2),
    Served("single", Toy(), ("d1",), slots=1),
    blocks_as_asked=True,
)

SCHEMA: dict[str, Any] = {
    "type": "object",
    "properties": {
        "city": {"type": "string", "maxLength": 12},
        "degrees": {"type": "integer", "minimum": -50, "maximum": 60},
        "sky": {"enum": ["clear", "clouds", "rain"]},
        "hours": {"type": "array", "items": {"type": "boolean"}, "maxItems": 4},
    },
    "required": ["city", "degrees", "sky", "hours"],
    "additionalProperties": False,
}
AS_SCHEMA = {"type": "json_schema", "json_schema": {"name": "weather", "schema": SCHEMA}}
AS_OBJECT = {"type": "json_object"}


def check(text: str) -> None:
    value = json.loads(text)
    assert list(value) == ["city", "degrees", "sky", "hours"]
    assert len(value["city"]) <= 12
    assert -50 <= value["degrees"] <= 60
    assert value["sky"] in ("clear", "clouds", "rain")
    assert len(value["hours"]) <= 4
    assert all(isinstance(one, bool) for one in value["hours"])


@pytest.mark.parametrize("sampling", [{}, {"temperature": 1.0, "seed": 5}])
@pytest.mark.parametrize("index", range(3))
def test_a_schema_holds_with_any_draft_and_the_text_is_the_plain_one(
    service: Service, index: int, sampling: dict[str, Any]
) -> None:
    """E6, at every block length."""
    prompt = prompts(3)[index]
    asked = {**complete("free", prompt, max_tokens=400, response_format=AS_SCHEMA), **sampling}
    plain = service.ask(COMPLETION, {**asked, **drafting("free", None)})
    assert plain["choices"][0]["finish_reason"] == "stop"
    check(text_of(plain))
    for draft in DRAFTS:
        for k in (1, 3, 8):
            answer = service.ask(COMPLETION, {**asked, **drafting("free", draft, k)})
            assert text_of(answer) == text_of(plain), (draft, k)
            for key in ("prompt_tokens", "completion_tokens"):
                assert answer["usage"][key] == plain["usage"][key]


def test_without_a_seed_every_answer_is_valid(service: Service) -> None:
    def one(index: int) -> str:
        draft = drafting("free", ("d1", "d2", "d3", "ngram")[index % 4], 5)
        asked = complete("free", prompts(1)[0], max_tokens=400, response_format=AS_SCHEMA, **draft)
        return text_of(service.ask(COMPLETION, {**asked, "temperature": 1.0}))

    with ThreadPoolExecutor(10) as pool:
        texts = list(pool.map(one, range(20)))
    assert len(set(texts)) > 10
    for text in texts:
        check(text)


def test_prose_becomes_an_object_and_the_next_answer_is_free_again(service: Service) -> None:
    """E6: ten at once, with a draft that likes prose."""

    def one(_: int) -> str:
        # Objects may be of any size; a bias makes the toy close what it opened.
        bias = {str(ord("}")): 100, str(ord('"')): 90}
        asked = chat("prose", "go", response_format=AS_OBJECT, logit_bias=bias, max_tokens=300)
        return text_of(service.ask(CHAT, {**asked, **drafting("prose", "d1", 6)}))

    with ThreadPoolExecutor(10) as pool:
        for text in pool.map(one, range(10)):
            assert isinstance(json.loads(text), dict)
    assert text_of(service.chat("prose", "go")) == "Sure! Here is the JSON: {}"


def test_what_breaks_the_grammar_is_cut_before_it_is_verified(service: Service) -> None:
    """Rows are for tokens that can come: n-gram lookup copies prose from the prompt."""
    prompt = 'yes no yes no yes no, and then: no"'
    grammar = 'start: "no" /[a-f]{6}/'
    asked = complete("free", prompt, max_tokens=40, grammar=grammar)
    plain = service.ask(COMPLETION, {**asked, **drafting("free", None)})
    answer = service.ask(COMPLETION, {**asked, **drafting("free", "ngram", 8)})
    assert text_of(answer) == text_of(plain)
    assert len(text_of(answer)) == 8
    found = answer["homespec"]
    assert found["draft_tokens_proposed"] - found["draft_tokens_accepted"] <= 8


@pytest.mark.parametrize("model", ["free", "single"])
def test_an_answer_that_is_cut_by_length_says_so(service: Service, model: str) -> None:
    asked = complete(model, "hello", max_tokens=6, response_format=AS_SCHEMA)
    for draft in (None, "d1"):
        answer = service.ask(COMPLETION, {**asked, **drafting(model, draft, 4)})
        assert answer["choices"][0]["finish_reason"] == "length"
        assert text_of(answer).lstrip().startswith("{")


def test_streams_and_logprobs_go_with_it(service: Service) -> None:
    asked = complete("free", "hello", max_tokens=400, response_format=AS_SCHEMA, logprobs=2)
    asked |= drafting("free", "d3", 5)
    whole = service.ask(COMPLETION, asked)
    assert "".join(deltas(service.stream(COMPLETION, asked))) == text_of(whole)
    found = whole["choices"][0]["logprobs"]
    assert len(found["tokens"]) == whole["usage"]["completion_tokens"]


BAD: list[tuple[dict[str, Any], str]] = [
    ({"response_format": {"type": "yaml"}}, "response_format"),
    ({"response_format": "json"}, "response_format"),
    ({"response_format": {"type": "json_schema"}}, "response_format"),
    ({"response_format": {"type": "json_schema", "json_schema": {"name": "x"}}}, "response_format"),
    ({"response_format": {"type": "json_schema", "json_schema": {
        "schema": {"type": "objekt"}}}}, "response_format"),
    ({"response_format": {"type": "json_schema", "json_schema": {
        "schema": {"$ref": "file:///etc/passwd"}}}}, "response_format"),
    ({"grammar": 'start: "a" | missing'}, "grammar"),
    ({"grammar": ""}, "grammar"),
    ({"grammar": 'start: "a"', "response_format": AS_OBJECT}, "grammar"),
    ({"grammar": 'start: "a"', "ignore_eos": True}, "ignore_eos"),
    ({"response_format": AS_OBJECT, "min_tokens": 3}, "min_tokens"),
]  # fmt: skip


@pytest.mark.parametrize(("more", "param"), BAD)
def test_what_cannot_be_had_is_refused_by_name(
    service: Service, more: dict[str, Any], param: str
) -> None:
    response = service.post(COMPLETION, complete("free", "hello", **more))
    assert response.status_code == 400, response.text
    assert response.json()["error"]["param"] == param
    assert service.post(COMPLETION, complete("free", "hi", max_tokens=1)).status_code == 200
