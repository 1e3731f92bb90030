"""Every parameter means the same with and without speculation: text, log-probabilities, usage."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from typing import Any

import pytest

from tests.integration.service import (
    CHAT,
    COMPLETION,
    Served,
    Service,
    chat,
    chat_ids,
    complete,
    deltas,
    drafting,
    module_service,
    prompts,
    text_of,
)
from tests.oracle import ASSISTANT, END, PIECES, VOCAB, Oracle, Toy, say

pytestmark = pytest.mark.integration

TOY = Toy(layout="lanes")
# Speaks freely, then a word that can be foreseen, with a character cut in two, and an end.
SAYS = Toy(layout="lanes", script=say("in the end 😀 there is a stop"), script_after=ASSISTANT)
DRAFTS = ("d1", "d2", "d3", "ngram")

running, service = module_service(
    Served("toy", TOY, DRAFTS, slots=4),
    Served("says", SAYS, ("d1", "d3"), slots=2),
    blocks_as_asked=True,
)

PROMPT = prompts(1)[0]


def spelled(token: int) -> str:
    return PIECES[token].decode(errors="replace") if token < len(PIECES) else ""


def same(one: Any, other: Any) -> None:
    """Equal, numbers up to 1e-5."""
    assert json.dumps(one, default=str).count("[") == json.dumps(other, default=str).count("[")
    if isinstance(one, Mapping):
        assert one.keys() == other.keys()
        for key in one:
            same(one[key], other[key])
    elif isinstance(one, list):
        for left, right in zip(one, other, strict=True):
            same(left, right)
    elif isinstance(one, float):
        assert one == pytest.approx(other, abs=1e-5)
    else:
        assert one == other


# -- log-probabilities -------------------------------------------------------------------------


@pytest.mark.parametrize("draft", [None, *DRAFTS])
@pytest.mark.parametrize("k", [1, 5])
def test_logprobs_are_the_targets_own_for_every_committed_token(
    service: Service, draft: str | None, k: int
) -> None:
    """E1: greedy, with three alternatives, against the oracle."""
    oracle, length = Oracle(TOY), 30
    ids = oracle.greedy(PROMPT, length)
    asked = complete("toy", PROMPT, max_tokens=length, logprobs=3, **drafting("toy", draft, k))
    answer = service.ask(COMPLETION, asked)
    found = answer["choices"][0]["logprobs"]
    assert len(found["tokens"]) == answer["usage"]["completion_tokens"] == length
    assert found["tokens"] == [spelled(token) for token in ids]
    for index, token in enumerate(ids):
        exact = oracle.probabilities([*PROMPT, *ids[:index]])
        assert found["token_logprobs"][index] == pytest.approx(math.log(exact[token]), abs=1e-5)
        likeliest = sorted(range(VOCAB), key=lambda v: (-exact[v], v))[:3]
        assert list(found["top_logprobs"][index]) == [spelled(v) for v in likeliest]
        assert found["tokens"][index] in found["top_logprobs"][index]


@pytest.mark.parametrize("seeded", [False, True])
def test_logprobs_of_chats_end_with_the_answer(service: Service, seeded: bool) -> None:
    """The end token has one, and nothing after it; bytes put characters together."""
    more: dict[str, Any] = {"logprobs": True, "top_logprobs": 2}
    if seeded:
        more |= {"temperature": 0.7, "seed": 5}
    answers = [
        service.ask(CHAT, chat("says", "go", **more, **drafting("says", draft, 6)))
        for draft in (None, "d1", "d3")
    ]
    first = answers[0]["choices"][0]
    content = first["logprobs"]["content"]
    assert len(content) == answers[0]["usage"]["completion_tokens"]
    assert content[-1]["token"] == "<|end|>"
    own = b"".join(bytes(one["bytes"]) for one in content[:-1])
    assert own.decode() == first["message"]["content"] == "in the end 😀 there is a stop"
    assert all(len(one["top_logprobs"]) == 2 for one in content)
    for other in answers[1:]:
        same(other["choices"], answers[0]["choices"])
        same(other["usage"]["completion_tokens"], answers[0]["usage"]["completion_tokens"])


@pytest.mark.parametrize(
    ("stop", "text", "shown"), [(" the", "in", ["in"]), ("the", "in ", ["in", " the"])]
)
def test_a_cut_at_a_stop_string_cuts_the_logprobs(
    service: Service, stop: str, text: str, shown: list[str]
) -> None:
    """Tokens of the stop string are paid for; without a part in the text they are not seen."""
    for draft in (None, "d1"):
        asked = chat("says", "go", stop=stop, logprobs=True, **drafting("says", draft, 8))
        answer = service.ask(CHAT, asked)
        content = answer["choices"][0]["logprobs"]["content"]
        assert text_of(answer) == text
        assert [one["token"] for one in content] == shown
        assert answer["usage"]["completion_tokens"] == 2


@pytest.mark.parametrize("path", [CHAT, COMPLETION])
def test_streamed_logprobs_are_the_whole_ones(service: Service, path: str) -> None:
    draft = drafting("toy", "d3", 4)
    if path == CHAT:
        asked = chat("toy", "hello", max_tokens=25, logprobs=True, top_logprobs=1, **draft)
    else:
        asked = complete("toy", "hello", max_tokens=25, logprobs=1, **draft)
    whole = service.ask(path, asked)["choices"][0]
    chunks = [data for _, data in service.stream(path, asked) if data != "[DONE]"]
    pieces = [one["choices"][0]["logprobs"] for one in chunks]
    joined: dict[str, list[Any]] = {}
    for piece in pieces:
        for key, value in (piece or {}).items():
            joined.setdefault(key, []).extend(value or [])
    expected = {key: value or [] for key, value in whole["logprobs"].items()}
    same(joined, expected)
    assert all(one is None for one in pieces[:1]) or path == COMPLETION
    if path == COMPLETION:
        offsets = joined["text_offset"]
        assert [whole["text"][at:][:1] for at in offsets] == [one[:1] for one in joined["tokens"]]


def test_without_logprobs_there_are_none(service: Service) -> None:
    answer = service.complete("toy", PROMPT, max_tokens=3)
    assert answer["choices"][0]["logprobs"] is None


# -- several choices ---------------------------------------------------------------------------


@pytest.mark.parametrize("draft", [None, "d1", "d3"])
def test_choices_of_a_seeded_request_differ_and_are_always_the_same(
    service: Service, draft: str | None
) -> None:
    asked = complete("toy", PROMPT, max_tokens=20, temperature=1.0, seed=7, n=3)
    answer = service.ask(COMPLETION, {**asked, **drafting("toy", draft, 4)})
    plain = service.ask(COMPLETION, {**asked, **drafting("toy", None)})
    texts = [one["text"] for one in answer["choices"]]
    assert [one["index"] for one in answer["choices"]] == [0, 1, 2]
    assert len(set(texts)) == 3
    assert texts == [one["text"] for one in plain["choices"]]
    alone = service.ask(COMPLETION, {**asked, "n": 1})
    assert texts[0] == text_of(alone)
    assert answer["usage"]["completion_tokens"] == 60
    assert answer["usage"]["prompt_tokens"] == len(PROMPT)


def test_more_choices_than_slots_and_a_stream_of_them(service: Service) -> None:
    asked = chat("toy", "hello", max_tokens=12, n=6)
    whole = service.ask(CHAT, asked)
    texts = {one["index"]: one["message"]["content"] for one in whole["choices"]}
    expected = Oracle.text(Oracle(TOY).greedy(chat_ids("hello"), 12))
    assert texts == dict.fromkeys(range(6), expected)
    streamed: dict[int, str] = dict.fromkeys(range(6), "")
    reasons: dict[int, str] = {}
    events = service.stream(CHAT, asked)
    assert events[-1][1] == "[DONE]"
    for _, data in events[:-1]:
        [choice] = data["choices"]
        streamed[choice["index"]] += choice["delta"].get("content", "")
        if choice["finish_reason"] is not None:
            reasons[choice["index"]] = choice["finish_reason"]
    assert streamed == texts
    assert reasons == dict.fromkeys(range(6), "length")
    [last] = [data for _, data in events[:-1] if "homespec" in data]
    assert last["choices"][0]["index"] == 5


# -- parameters --------------------------------------------------------------------------------

PARAMETERS: dict[str, dict[str, Any]] = {
    "temperature": {"temperature": 0.8, "seed": 3},
    "top_p": {"temperature": 1.0, "top_p": 0.4, "seed": 3},
    "top_k": {"temperature": 1.0, "top_k": 3, "seed": 3},
    "min_p": {"temperature": 1.0, "min_p": 0.3, "seed": 3},
    "seed": {"temperature": 1.0, "seed": 99},
    "presence_penalty": {"presence_penalty": 2.0},
    "frequency_penalty": {"frequency_penalty": 1.5},
    "repetition_penalty": {"repetition_penalty": 1.3},
    "logit_bias": {"logit_bias": {str(ord("e")): 60, str(ord("q")): 59.9}, "presence_penalty": 1.0},
    "stop": {"stop": ["e", "1"]},
    "ignore_eos": {"ignore_eos": True},
    "n": {"n": 2, "temperature": 1.0, "seed": 4},
    "logprobs": {"logprobs": 2},
    "max_tokens": {"max_tokens": 7},
}


@pytest.mark.parametrize("name", PARAMETERS)
def test_a_parameter_means_the_same_however_it_is_drafted(service: Service, name: str) -> None:
    """E4: every mode, every draft, the same answer; and the parameter does something."""
    asked = {**complete("toy", PROMPT, max_tokens=40), **PARAMETERS[name]}
    plain = service.ask(COMPLETION, {**asked, **drafting("toy", None)})
    for draft in DRAFTS:
        for mode in ("on", "auto"):
            part = drafting("toy", draft, 5)["homespec"] | {"speculation": mode}
            answer = service.ask(COMPLETION, {**asked, "homespec": part})
            same(answer["choices"], plain["choices"])
            for key in ("prompt_tokens", "completion_tokens", "total_tokens"):
                assert answer["usage"][key] == plain["usage"][key]
    if name != "ignore_eos":  # nothing here ends by itself
        neutral = service.complete("toy", PROMPT, max_tokens=40)
        assert neutral["choices"] != plain["choices"]


def test_min_tokens_keep_the_end_away(service: Service) -> None:
    """C9: the draft proposes the end, and is right, before it may come."""
    for draft in (None, "d1", "d3"):
        asked = chat("says", "go", min_tokens=40, max_tokens=60, logprobs=True)
        answer = service.ask(CHAT, {**asked, **drafting("says", draft, 8)})
        content = answer["choices"][0]["logprobs"]["content"]
        ends = [i for i, one in enumerate(content) if one["token"] in ("<|end|>", "<|stop|>")]
        assert all(at >= 40 for at in ends)
        assert answer["usage"]["completion_tokens"] >= 40


def test_a_penalty_that_makes_ends_unlikely_is_no_ban(service: Service) -> None:
    answer = service.chat("says", "go", logit_bias={str(END): -1}, max_tokens=60)
    assert answer["choices"][0]["finish_reason"] == "stop"


def test_both_modes_refuse_the_same(service: Service) -> None:
    for more, param in (({"logit_bias": {"99999": 1}}, "logit_bias"), ({"n": 0}, "n")):
        for draft in (None, "d1"):
            body = {**complete("toy", PROMPT, **more), **drafting("toy", draft)}
            response = service.post(COMPLETION, body)
            assert response.status_code == 400
            assert response.json()["error"]["param"] == param


def test_deltas_of_a_sampled_stream_are_the_whole(service: Service) -> None:
    asked = complete("toy", PROMPT, max_tokens=30, temperature=1.0, seed=11)
    for draft in (None, "d3"):
        body = {**asked, **drafting("toy", draft, 5)}
        assert "".join(deltas(service.stream(COMPLETION, body))) == text_of(
            service.ask(COMPLETION, body)
        )
