"""Tools over the real service: rendered by the template, called by the model, streamed as whole."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from typing import Any

import pytest

from tests.integration.service import CHAT, Served, Service, chat, drafting, text_of
from tests.oracle import ASSISTANT, Toy, say

pytestmark = pytest.mark.integration

TEMPLATE = (
    "{% if tools %}<|system|>HOW{% for t in tools %}{{ t | tojson }}{% endfor %}<|end|>{% endif %}"
    "{% for m in messages %}<|{{ 'user' if m.role == 'tool' else m.role }}|>{{ m.content }}"
    "{% for c in m.tool_calls or [] %}{{ c.function | tojson }}{% endfor %}<|end|>{% endfor %}"
    "<|assistant|>"
)
AS_CALL = '{"name": "get_weather", "arguments": {"city": "Rome"}}'
TAGGED = f"Let me see.\n<tool_call>\n{AS_CALL}\n</tool_call>"
WEATHER = {
    "type": "function",
    "function": {
        "name": "get_weather",
        "description": "What the sky does",
        "parameters": {
            "type": "object",
            "properties": {"city": {"type": "string", "maxLength": 8}},
            "required": ["city"],
            "additionalProperties": False,
        },
    },
}
NOW = {"type": "function", "function": {"name": "now"}}


def speaking(text: str) -> Toy:
    return Toy(layout="lanes", script=say(text), script_after=ASSISTANT)


@pytest.fixture(scope="module", name="running")
def _running(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Service]:
    folder = tmp_path_factory.mktemp("tools")
    service = Service(
        folder,
        [
            Served("tagged", speaking(TAGGED), ("d1", "d3"), slots=2),
            Served("bare", speaking(AS_CALL), ("d1",)),
            Served("toolless", speaking("Hello")),
        ],
        blocks_as_asked=True,
    )
    for name, how in (("tagged", "<tool_call></tool_call>"), ("bare", "as JSON")):
        template = service.model_folder(name) / "chat_template.jinja"
        template.write_text(TEMPLATE.replace("HOW", how))
    try:
        service.start()
        yield service
    finally:
        service.close()
        sys.stderr.write(service.log())


@pytest.fixture(name="service")
def _service(running: Service) -> Service:
    return running


def calls_of(answer: dict[str, Any]) -> list[tuple[str, Any]]:
    calls = answer["choices"][0]["message"].get("tool_calls", [])
    assert all(one["type"] == "function" and one["id"].startswith("call_") for one in calls)
    assert len({one["id"] for one in calls}) == len(calls)
    return [(one["function"]["name"], json.loads(one["function"]["arguments"])) for one in calls]


@pytest.mark.parametrize("draft", [None, "d1", "d3"])
def test_a_call_is_found_and_the_rest_is_text(service: Service, draft: str | None) -> None:
    asked = chat("tagged", "weather?", tools=[WEATHER, NOW], **drafting("tagged", draft, 5))
    answer = service.ask(CHAT, asked)
    choice = answer["choices"][0]
    assert choice["finish_reason"] == "tool_calls"
    assert choice["message"]["content"] == "Let me see."
    assert calls_of(answer) == [("get_weather", {"city": "Rome"})]


def test_a_call_that_is_cut_off_says_so(service: Service) -> None:
    asked = chat("bare", "weather?", tools=[WEATHER])
    whole = service.ask(CHAT, asked)
    cut = service.ask(CHAT, {**asked, "max_tokens": whole["usage"]["completion_tokens"] - 4})
    choice = cut["choices"][0]
    assert choice["finish_reason"] == "length"
    [call] = choice["message"]["tool_calls"]
    [complete] = whole["choices"][0]["message"]["tool_calls"]
    arguments = call["function"]["arguments"]
    assert arguments != complete["function"]["arguments"]
    assert complete["function"]["arguments"].startswith(arguments)


def test_a_bare_call_has_no_content(service: Service) -> None:
    answer = service.chat("bare", "weather?", tools=[WEATHER])
    assert answer["choices"][0]["message"]["content"] is None
    assert calls_of(answer) == [("get_weather", {"city": "Rome"})]
    # Where there is no such tool the same text is an answer.
    other = service.chat("bare", "weather?", tools=[NOW])
    assert text_of(other) == AS_CALL
    assert other["choices"][0]["finish_reason"] == "stop"


@pytest.mark.parametrize(("model", "draft"), [("tagged", None), ("tagged", "d3"), ("bare", "d1")])
def test_streamed_calls_are_the_whole_ones(service: Service, model: str, draft: str | None) -> None:
    """As OpenAI streams them: id and name once, then the arguments in pieces."""
    asked = chat(model, "weather?", tools=[WEATHER], logprobs=True, **drafting(model, draft, 3))
    whole = service.ask(CHAT, asked)
    content, calls, reason, entries = "", [], None, 0
    for _, data in service.stream(CHAT, asked)[:-1]:
        choice = data["choices"][0]
        content += choice["delta"].get("content") or ""
        for piece in choice["delta"].get("tool_calls", []):
            if "id" in piece:
                assert (piece["index"], piece["type"]) == (len(calls), "function")
                calls.append({"name": piece["function"]["name"], "arguments": ""})
            calls[piece["index"]]["arguments"] += piece["function"]["arguments"]
        entries += len((choice["logprobs"] or {"content": []})["content"])
        reason = choice["finish_reason"] or reason
    message = whole["choices"][0]["message"]
    assert content == (message["content"] or "")
    assert calls == [one["function"] for one in message["tool_calls"]]
    assert reason == "tool_calls"
    assert entries == whole["usage"]["completion_tokens"]


def streamed(events: list[tuple[str, Any]], count: int) -> list[dict[str, Any]]:
    """The choices that the chunks of a stream add up to."""
    choices: list[dict[str, Any]] = [
        {"content": "", "calls": [], "reason": None, "logprobs": []} for _ in range(count)
    ]
    for _, data in events[:-1]:
        for piece in data["choices"]:
            into = choices[piece["index"]]
            into["content"] += piece["delta"].get("content") or ""
            for call in piece["delta"].get("tool_calls", []):
                if "id" in call:
                    into["calls"].append({"name": call["function"]["name"], "arguments": ""})
                into["calls"][call["index"]]["arguments"] += call["function"]["arguments"]
            into["logprobs"] += (piece["logprobs"] or {"content": []})["content"]
            into["reason"] = piece["finish_reason"] or into["reason"]
    return choices


@pytest.mark.parametrize("choice", ["auto", "required"])
def test_choices_tools_stops_and_logprobs_go_together(service: Service, choice: str) -> None:
    """Everything at once is the same text whole, streamed, and however it is drafted."""
    asked = chat(
        "tagged", "weather?", tools=[WEATHER, NOW], tool_choice=choice, n=3, temperature=1.0,
        seed=4, logprobs=True, top_logprobs=2, stop=["Rome", "zz"], presence_penalty=0.5,
        max_tokens=60,
    )  # fmt: skip
    plain = service.ask(CHAT, {**asked, **drafting("tagged", None)})
    assert plain["usage"]["completion_tokens"] > 0
    want = [
        {
            "content": one["message"]["content"] or "",
            "calls": [call["function"] for call in one["message"].get("tool_calls", [])],
            "reason": one["finish_reason"],
            "logprobs": one["logprobs"]["content"],
        }
        for one in plain["choices"]
    ]
    assert all(one["logprobs"] for one in want)
    for draft in (None, "d1", "d3"):
        body = {**asked, **drafting("tagged", draft, 5)}
        again = service.ask(CHAT, body)
        assert again["usage"]["completion_tokens"] == plain["usage"]["completion_tokens"]
        assert [one["logprobs"]["content"] for one in again["choices"]] == [
            one["logprobs"] for one in want
        ]
        assert streamed(service.stream(CHAT, body), 3) == want


@pytest.mark.parametrize("model", ["tagged", "bare"])
@pytest.mark.parametrize("choice", ["required", {"type": "function", "function": {"name": "now"}}])
def test_a_tool_that_must_be_called_is_called(service: Service, model: str, choice: Any) -> None:
    """Whatever the model would rather say, and whatever its draft proposes."""
    named = choice != "required"
    answers = []
    for draft in (None, "d1"):
        asked = chat(model, "hello", tools=[WEATHER, NOW], tool_choice=choice, max_tokens=400)
        asked |= {"parallel_tool_calls": False, **drafting(model, draft, 6)}
        answer = service.ask(CHAT, asked)
        [(name, arguments)] = calls_of(answer)
        assert (name, arguments) == ("now", {}) if named else name in ("get_weather", "now")
        assert answer["choices"][0]["message"]["content"] is None
        answers.append((name, arguments))
    assert answers[0] == answers[1]


def test_strict_tools_leave_text_free(service: Service) -> None:
    strict = {**WEATHER, "function": {**WEATHER["function"], "strict": True}}
    answer = service.chat("tagged", "weather?", tools=[strict], **drafting("tagged", "d1", 6))
    assert text_of(answer) == "Let me see."
    assert calls_of(answer) == [("get_weather", {"city": "Rome"})]


def test_a_conversation_with_results_goes_on(service: Service) -> None:
    """K: roles and calls of earlier turns reach the template; `none` hides the tools."""
    first = service.chat("tagged", "weather?", tools=[WEATHER])
    message = first["choices"][0]["message"]
    result = {"role": "tool", "tool_call_id": message["tool_calls"][0]["id"], "content": "sun"}
    said = [{"role": "user", "content": "weather?"}, message, result]
    answer = service.chat("tagged", said, tools=[WEATHER])
    assert answer["usage"]["prompt_tokens"] > first["usage"]["prompt_tokens"]
    hidden = service.chat("tagged", "weather?", tools=[WEATHER], tool_choice="none")
    assert hidden["usage"]["prompt_tokens"] < first["usage"]["prompt_tokens"]
    assert text_of(hidden) == TAGGED


@pytest.mark.parametrize(
    ("more", "param"),
    [
        ({"tools": [WEATHER]}, "tools"),
        ({"messages": [{"role": "user", "content": "a"}, {"role": "assistant", "tool_calls": [
            {"id": "1", "type": "function", "function": {"name": "f", "arguments": "{}"}}]}]},
         "messages[1].tool_calls"),
    ],
)  # fmt: skip
def test_a_template_that_drops_tools_is_not_asked_to(
    service: Service, more: dict[str, Any], param: str
) -> None:
    response = service.post(CHAT, {**chat("toolless", "hi"), **more})
    assert response.status_code == 400
    assert response.json()["error"]["param"] == param
