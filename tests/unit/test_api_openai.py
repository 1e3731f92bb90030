"""What requests mean, and every kind of body that is refused, with the parameter it names."""

from __future__ import annotations

import json
import re
from typing import Any

import pytest

from homespecd.api.errors import error_code
from homespecd.api.openai import parse_chat, parse_completion
from homespecd.decoding.constraint import GrammarSpec
from homespecd.decoding.tool_calls import ToolChoice
from homespecd.errors import RequestError
from homespecd.governor.protocol import SpeculationMode
from homespecd.worker.messages import GenerationRequest, pack

USER = [{"role": "user", "content": "hi"}]
TOOL = {"type": "function", "function": {"name": "f", "parameters": {"type": "object"}}}
BASE = {"model": "m", "messages": USER}


def chat(**fields: Any) -> bytes:
    return json.dumps({**BASE, **fields}).encode()


BAD_CHATS: list[tuple[str, bytes, str | None]] = [
    ("not JSON", b"{", None),
    ("empty", b"", None),
    ("not UTF-8", b'{"model": "\xff"}', None),
    ("a list", b"[]", None),
    ("nested for ever", b'{"model":' + b"[" * 200_000, None),
    ("an integer without end", b'{"seed": ' + b"1" * 5000 + b"}", None),
    ("NaN", b'{"model": "m", "temperature": NaN}', None),
    ("Infinity", b'{"model": "m", "temperature": -Infinity}', None),
    ("no model", json.dumps({"messages": USER}).encode(), "model"),
    ("empty model", chat(model=""), "model"),
    ("model a number", chat(model=3), "model"),
    ("half a character", b'{"model":"m","user":"\\uD800"}', None),
    ("half a character, raw", b'{"model":"m","user":"\xed\xa0\x80"}', None),
    ("no messages", b'{"model": "m"}', "messages"),
    ("empty messages", chat(messages=[]), "messages"),
    ("messages a string", chat(messages="hi"), "messages"),
    ("message a string", chat(messages=["hi"]), "messages[0]"),
    ("no role", chat(messages=[{"content": "hi"}]), "messages[0].role"),
    ("other role", chat(messages=[{"role": "boss", "content": "hi"}]), "messages[0].role"),
    ("function role", chat(messages=[{"role": "function", "content": ""}]), "messages[0].role"),
    ("no content", chat(messages=[*USER, {"role": "user"}]), "messages[1].content"),
    ("null content", chat(messages=[{"role": "user", "content": None}]), "messages[0].content"),
    ("content a number", chat(messages=[{"role": "user", "content": 7}]), "messages[0].content"),
    ("no parts", chat(messages=[{"role": "user", "content": []}]), "messages[0].content"),
    ("an image", chat(messages=[{"role": "user", "content": [
        {"type": "image_url", "image_url": {"url": "data:"}}]}]), "messages[0].content"),
    ("a part of text alone", chat(messages=[{"role": "user", "content": ["hi"]}]),
     "messages[0].content"),
    ("a part with more", chat(messages=[{"role": "user", "content": [
        {"type": "text", "text": "a", "bold": True}]}]), "messages[0].content"),
    ("tool calls", chat(messages=[{"role": "assistant", "content": "", "tool_calls": [{}]}]),
     "messages[0].tool_calls[0].function"),
    ("tool calls a string", chat(messages=[{"role": "assistant", "tool_calls": "x"}]),
     "messages[0].tool_calls"),
    ("arguments an object", chat(messages=[{"role": "assistant", "tool_calls": [
        {"function": {"name": "f", "arguments": {}}}]}]),
     "messages[0].tool_calls[0].function.arguments"),
    ("unknown in message", chat(messages=[{**USER[0], "mood": 1}]), "messages[0].mood"),
    ("temperature negative", chat(temperature=-0.1), "temperature"),
    ("temperature high", chat(temperature=2.1), "temperature"),
    ("temperature overflows", b'{"model":"m","messages":[{"role":"user","content":""}],'
     b'"temperature":1e999}', "temperature"),
    ("temperature a bool", chat(temperature=True), "temperature"),
    ("temperature a string", chat(temperature="1"), "temperature"),
    ("top_p 0", chat(top_p=0), "top_p"),
    ("top_p high", chat(top_p=1.01), "top_p"),
    ("top_k negative", chat(top_k=-1), "top_k"),
    ("top_k a float", chat(top_k=1.5), "top_k"),
    ("top_k a bool", chat(top_k=True), "top_k"),
    ("min_p high", chat(min_p=1.5), "min_p"),
    ("max_tokens 0", chat(max_tokens=0), "max_tokens"),
    ("max_tokens negative", chat(max_tokens=-5), "max_tokens"),
    ("max_tokens a bool", chat(max_tokens=True), "max_tokens"),
    ("max_tokens a float", chat(max_tokens=3.0), "max_tokens"),
    ("both limits", chat(max_tokens=3, max_completion_tokens=4), "max_completion_tokens"),
    ("seed a bool", chat(seed=False), "seed"),
    ("seed negative", chat(seed=-1), "seed"),
    ("seed too large", chat(seed=2**63), "seed"),
    ("stop a number", chat(stop=3), "stop"),
    ("stop empty string", chat(stop=""), "stop"),
    ("stop holds empty", chat(stop=["a", ""]), "stop"),
    ("stop holds number", chat(stop=["a", 1]), "stop"),
    ("stop too many", chat(stop=["a"] * 17), "stop"),
    ("presence_penalty", chat(presence_penalty=2.5), "presence_penalty"),
    ("frequency_penalty", chat(frequency_penalty=-2.5), "frequency_penalty"),
    ("repetition_penalty", chat(repetition_penalty=0), "repetition_penalty"),
    # It divides logits: what is next to nothing makes them infinite.
    ("repetition_penalty tiny", chat(repetition_penalty=1e-308), "repetition_penalty"),
    ("logit_bias a list", chat(logit_bias=[1]), "logit_bias"),
    ("logit_bias of a word", chat(logit_bias={"the": 1}), "logit_bias"),
    ("logit_bias too strong", chat(logit_bias={"1": 101}), "logit_bias"),
    ("logit_bias a bool", chat(logit_bias={"1": True}), "logit_bias"),
    ("n 0", chat(n=0), "n"),
    ("n 17", chat(n=17), "n"),
    ("n a bool", chat(n=True), "n"),
    ("logprobs a number", chat(logprobs=3), "logprobs"),
    ("top_logprobs alone", chat(top_logprobs=3), "top_logprobs"),
    ("top_logprobs high", chat(logprobs=True, top_logprobs=21), "top_logprobs"),
    ("response_format a string", chat(response_format="json_object"), "response_format"),
    ("response_format unknown", chat(response_format={"type": "yaml"}), "response_format"),
    ("response_format without a schema", chat(response_format={"type": "json_schema"}),
     "response_format"),
    ("response_format with more", chat(response_format={"type": "text", "x": 1}),
     "response_format"),
    ("grammar empty", chat(grammar=""), "grammar"),
    ("grammar a list", chat(grammar=["a"]), "grammar"),
    ("grammar beside a format", chat(grammar="a", response_format={"type": "json_object"}),
     "grammar"),
    ("ignore_eos in a grammar", chat(grammar="a", ignore_eos=True), "ignore_eos"),
    ("min_tokens in a grammar", chat(grammar="a", min_tokens=1), "min_tokens"),
    ("tools an object", chat(tools={}), "tools"),
    ("a tool without a function", chat(tools=[{"type": "function"}]), "tools[0].function"),
    ("a tool of another kind", chat(tools=[{"type": "web", "function": {"name": "f"}}]),
     "tools[0].type"),
    ("a tool's name", chat(tools=[{"type": "function", "function": {"name": "a b"}}]),
     "tools[0].function.name"),
    ("tools of one name", chat(tools=[TOOL, TOOL]), "tools"),
    ("tool_choice without tools", chat(tool_choice="required"), "tool_choice"),
    ("tool_choice unknown", chat(tools=[TOOL], tool_choice="perhaps"), "tool_choice"),
    ("tool_choice of no tool", chat(tools=[TOOL], tool_choice={
        "type": "function", "function": {"name": "other"}}), "tool_choice"),
    ("tools and a grammar", chat(tools=[TOOL], grammar="start: a"), "grammar"),
    ("tools that must, without an end", chat(tools=[TOOL], tool_choice="required",
     ignore_eos=True), "ignore_eos"),
    ("parallel_tool_calls a string", chat(tools=[TOOL], parallel_tool_calls="no"),
     "parallel_tool_calls"),
    ("functions", chat(functions=[{"name": "f"}]), "functions"),
    ("reasoning_effort", chat(reasoning_effort="low"), "reasoning_effort"),
    ("stream a string", chat(stream="yes"), "stream"),
    ("stream a number", chat(stream=1), "stream"),
    ("stream_options alone", chat(stream_options={"include_usage": True}), "stream_options"),
    ("stream_options unknown", chat(stream=True, stream_options={"x": 1}), "stream_options.x"),
    ("ignore_eos a number", chat(ignore_eos=1), "ignore_eos"),
    ("min_tokens negative", chat(min_tokens=-1), "min_tokens"),
    ("user a number", chat(user=1), "user"),
    ("misspelt", chat(temprature=1), "temprature"),
    ("homespec a string", chat(homespec="off"), "homespec"),
    ("speculation", chat(homespec={"speculation": "maybe"}), "homespec.speculation"),
    ("max_draft_tokens", chat(homespec={"max_draft_tokens": 0}), "homespec.max_draft_tokens"),
    ("homespec unknown", chat(homespec={"k": 3}), "homespec.k"),
]  # fmt: skip

BAD_COMPLETIONS: list[tuple[str, dict[str, Any], str]] = [
    ("no prompt", {}, "prompt"),
    ("null prompt", {"prompt": None}, "prompt"),
    ("a number", {"prompt": 3}, "prompt"),
    ("an empty list", {"prompt": []}, "prompt"),
    ("two prompts", {"prompt": ["a", "b"]}, "prompt"),
    ("negative id", {"prompt": [1, -1]}, "prompt"),
    ("bool id", {"prompt": [True]}, "prompt"),
    ("mixed", {"prompt": [1, "a"]}, "prompt"),
    ("echo", {"prompt": "a", "echo": True}, "echo"),
    ("suffix", {"prompt": "a", "suffix": "b"}, "suffix"),
    ("best_of", {"prompt": "a", "best_of": 2}, "best_of"),
    ("logprobs a bool", {"prompt": "a", "logprobs": True}, "logprobs"),
    ("messages", {"prompt": "a", "messages": USER}, "messages"),
]


@pytest.mark.parametrize(
    ("body", "param"), [case[1:] for case in BAD_CHATS], ids=[case[0] for case in BAD_CHATS]
)
def test_bad_chat_is_refused_by_name(body: bytes, param: str | None) -> None:
    with pytest.raises(RequestError) as caught:
        parse_chat(body)
    assert (caught.value.status, caught.value.param) == (400, param)
    assert param is None or param.rpartition(".")[2] in str(caught.value)
    # In our own words: neither pydantic's, nor what is said when there are none.
    said = str(caught.value)
    assert not re.search(r"Input|[Ee]xtra|_[A-Z]|valid(ation)?\b|sys\.", said), said
    assert error_code(caught.value) not in ("error", "invalid_request")


@pytest.mark.parametrize(
    ("fields", "param"), [case[1:] for case in BAD_COMPLETIONS], ids=[c[0] for c in BAD_COMPLETIONS]
)
def test_bad_completion_is_refused_by_name(fields: dict[str, Any], param: str) -> None:
    with pytest.raises(RequestError) as caught:
        parse_completion(json.dumps({"model": "m", **fields}).encode())
    assert (caught.value.status, caught.value.param) == (400, param)
    assert "not valid" not in str(caught.value)


def test_everything_reaches_the_generation_request() -> None:
    body = chat(
        messages=[
            {"role": "developer", "content": "be brief"},
            {"role": "user", "content": [{"type": "text", "text": one} for one in "ab"]},
            {"role": "assistant", "content": "c", "refusal": None, "tool_calls": []},
            {"role": "user", "content": "d", "name": "ann"},
        ],
        stream=True,
        stream_options={"include_usage": True},
        max_completion_tokens=7,
        temperature=0,
        top_p=0.5,
        top_k=3,
        min_p=0.1,
        seed=42,
        stop=["x", "y"],
        presence_penalty=1,
        frequency_penalty=-1,
        repetition_penalty=1.5,
        logit_bias={"5": -100},
        ignore_eos=True,
        min_tokens=2,
        n=3,
        logprobs=True,
        top_logprobs=4,
        user="ann",
        homespec={"speculation": "on", "drafter": "ngram", "max_draft_tokens": 4},
    )  # fmt: skip
    asked = parse_chat(body)
    assert (asked.model, asked.stream, asked.include_usage) == ("m", True, True)
    request = asked.generation
    assert request.messages == (
        {"role": "system", "content": "be brief"},
        {"role": "user", "content": "ab"},
        {"role": "assistant", "content": "c"},
        {"role": "user", "content": "d", "name": "ann"},
    )
    assert (request.max_tokens, request.min_tokens, request.stop) == (7, 2, ("x", "y"))
    assert (request.choices, request.logprobs) == (3, 4)
    assert (request.ignore_eos, request.speculation) == (True, SpeculationMode.ON)
    assert (request.drafter, request.max_draft_tokens) == ("ngram", 4)
    sampling = request.sampling
    assert sampling.greedy
    assert (sampling.top_p, sampling.top_k, sampling.min_p, sampling.seed) == (0.5, 3, 0.1, 42)
    assert (sampling.presence_penalty, sampling.frequency_penalty) == (1.0, -1.0)
    assert (sampling.repetition_penalty, sampling.logit_bias) == (1.5, {5: -100.0})
    frame = json.loads(pack({"request": request.to_frame()})[4:])
    assert GenerationRequest.from_frame(frame["request"]) == request


def test_formats_become_grammars() -> None:
    asked = parse_chat(chat(response_format={"type": "json_object"})).generation.grammar
    assert asked == GrammarSpec("json", '{"type":"object"}', "response_format")
    schema = {"type": "array", "items": {"const": "é"}}
    given = {"name": "x", "description": "y", "schema": schema, "strict": True}
    body = chat(response_format={"type": "json_schema", "json_schema": given})
    request = parse_chat(body).generation
    assert request.grammar is not None
    assert json.loads(request.grammar.text) == schema
    assert parse_chat(chat(grammar="start: a")).generation.grammar == GrammarSpec(
        "grammar", "start: a", "grammar"
    )
    frame = json.loads(pack({"request": request.to_frame()})[4:])
    assert GenerationRequest.from_frame(frame["request"]) == request


def test_tools_and_calls_reach_the_template_as_they_are() -> None:
    call = {"id": "c1", "type": "function", "function": {"name": "f", "arguments": '{"a": 1}'}}
    messages = [
        *USER,
        {"role": "assistant", "content": None, "tool_calls": [call], "refusal": None},
        {"role": "tool", "content": "3", "tool_call_id": "c1"},
    ]
    request = parse_chat(chat(messages=messages, tools=[TOOL])).generation
    assert request.tools == (TOOL,)
    assert request.tool_choice == ToolChoice()
    assert request.messages == (
        *USER,
        {"role": "assistant", "content": "", "tool_calls": [call]},
        {"role": "tool", "content": "3", "tool_call_id": "c1"},
    )
    frame = json.loads(pack({"request": request.to_frame()})[4:])
    assert GenerationRequest.from_frame(frame["request"]) == request


def test_what_tool_choice_means() -> None:
    named = {"type": "function", "function": {"name": "f"}}

    def choice(**more: Any) -> ToolChoice:
        return parse_chat(chat(tools=[TOOL], **more)).generation.tool_choice

    assert choice(tool_choice="auto") == ToolChoice()
    assert choice(tool_choice="required") == ToolChoice(must=True)
    assert choice(tool_choice=named) == ToolChoice(must=True, name="f")
    assert choice(parallel_tool_calls=False) == ToolChoice(parallel=False)
    none = parse_chat(chat(tools=[TOOL], tool_choice="none")).generation
    assert none.tools == ()


def test_null_and_neutral_values_ask_for_nothing() -> None:
    names = (
        "stream stream_options max_tokens temperature top_p seed stop logit_bias n tools user "
        "response_format logprobs homespec presence_penalty"
    )
    plain = parse_chat(chat())
    assert parse_chat(chat(**dict.fromkeys(names.split()))) == plain
    neutral = {"n": 1, "logprobs": False, "tools": [], "response_format": {"type": "text"}}
    assert parse_chat(chat(**neutral, tool_choice="none", store=False)) == plain
    assert plain.generation.max_tokens is None
    assert parse_chat(chat(max_tokens=5, max_completion_tokens=5)).generation.max_tokens == 5


def test_escaped_characters_beyond_the_first_plane_are_whole() -> None:
    asked = parse_chat(chat(messages=[{"role": "user", "content": "🙂"}]))
    [message] = asked.generation.messages or ()
    assert message["content"] == "🙂"


def test_stop_may_be_one_string() -> None:
    assert parse_chat(chat(stop="\n")).generation.stop == ("\n",)
    assert len(parse_chat(chat(stop=list("abcdefghijklmnop"))).generation.stop) == 16


@pytest.mark.parametrize(
    ("prompt", "expected"),
    [("a", "a"), ("", ""), (["a"], "a"), ([1, 2], (1, 2)), ([[1, 2]], (1, 2))],
)
def test_prompts_of_completions(prompt: Any, expected: Any) -> None:
    asked = parse_completion(json.dumps({"model": "m", "prompt": prompt}).encode())
    assert asked.generation.prompt == expected
    assert asked.generation.max_tokens == 16
