"""Calls in texts, however they are cut into pieces, and the grammars that make calls come right."""

from __future__ import annotations

import json
from typing import Any

import pytest

from homespecd.decoding.call_reader import CallPiece
from homespecd.decoding.constraint import GrammarSpec
from homespecd.decoding.grammar import Grammar, GrammarVocabulary
from homespecd.decoding.tool_calls import (
    Part,
    ToolCall,
    ToolCalls,
    ToolChoice,
    ToolFormat,
    format_of,
)
from homespecd.decoding.tool_grammar import tool_grammar

TAGGED, BARE = ToolFormat("tagged"), ToolFormat("bare")
NAMES = ("get_weather", "now")
ROME = ToolCall("get_weather", '{"city": "Rome"}')
NOW = ToolCall("now", "{}")
AS_ROME = '{"name": "get_weather", "arguments": {"city": "Rome"}}'
AS_NOW = '{"name": "now", "arguments": {}}'

CASES: list[tuple[str, ToolFormat, str, str, list[ToolCall]]] = [
    ("one", TAGGED, f"<tool_call>\n{AS_ROME}\n</tool_call>", "", [ROME]),
    ("two", TAGGED, f"<tool_call>{AS_ROME}</tool_call>\n<tool_call>{AS_NOW}</tool_call>", "",
     [ROME, NOW]),
    ("a list", TAGGED, f"<tool_call>[{AS_ROME}, {AS_NOW}]</tool_call>", "", [ROME, NOW]),
    ("text before", TAGGED, f"Let me see.\n\n<tool_call>{AS_NOW}</tool_call>", "Let me see.",
     [NOW]),
    ("text after", TAGGED, f"<tool_call>{AS_NOW}</tool_call> done", " done", [NOW]),
    ("no end tag", TAGGED, f"<tool_call>\n{AS_NOW}\n", "", [NOW]),
    ("only text", TAGGED, "a <b> and <tool_cat> \n", "a <b> and <tool_cat> \n", []),
    ("a beginning of a tag", TAGGED, "x <tool_c", "x <tool_c", []),
    ("no JSON", TAGGED, "<tool_call>oops</tool_call>", "<tool_call>oops</tool_call>", []),
    ("no call", TAGGED, '<tool_call>{"a": 1}</tool_call>', '<tool_call>{"a": 1}</tool_call>', []),
    ("a tag in a string", TAGGED,
     '<tool_call>{"name": "now", "arguments": {"s": "</tool_call>"}}</tool_call>', "",
     [ToolCall("now", '{"s": "</tool_call>"}')]),
    ("parameters", TAGGED, '<tool_call>{"name": "now", "parameters": {}}</tool_call>', "", [NOW]),
    ("arguments as text", TAGGED,
     '<tool_call>{"name": "now", "arguments": "{\\"é\\": 1}"}</tool_call>', "",
     [ToolCall("now", '{"é": 1}')]),
    ("bare", BARE, AS_ROME, "", [ROME]),
    ("bare, Llama's key", BARE, '{"name": "get_weather", "parameters": {"city": "Rome"}}', "",
     [ROME]),
    ("bare, several", BARE, f"\n{AS_ROME}; {AS_NOW}\n", "", [ROME, NOW]),
    ("bare, a list", BARE, f"[{AS_ROME}, {AS_NOW}]", "", [ROME, NOW]),
    ("bare, text", BARE, f" It is {AS_NOW}", f" It is {AS_NOW}", []),
    ("bare, another object", BARE, '{"name": "Bob", "arguments": {}}',
     '{"name": "Bob", "arguments": {}}', []),
    ("bare, data", BARE, '{"a": [1]}', '{"a": [1]}', []),
    ("bare, cut off", BARE, AS_ROME[:-3], "", [ToolCall("get_weather", '{"city": "Rome')]),
    ("bare, cut off in its head", BARE, AS_ROME[:30], AS_ROME[:30], []),
    ("bare, and more", BARE, AS_NOW + " I think", "I think", [NOW]),
    ("bare, another one then", BARE, AS_NOW + ';{"name": "x", "arguments": {}}',
     '{"name": "x", "arguments": {}}', [NOW]),
    ("bare, in another order", BARE, '{"arguments": {}, "name": "now"}', "", [NOW]),
    ("braces in strings", TAGGED,
     '<tool_call>{"name": "now", "arguments": {"s": "}\\"}", "t": [{}]}}</tool_call>', "",
     [ToolCall("now", '{"s": "}\\"}", "t": [{}]}')]),
    ("more keys", TAGGED, '<tool_call>{"name": "now", "arguments": {}, "id": 3}</tool_call>!', "!",
     [NOW]),
    ("a list of two orders", TAGGED,
     f'<tool_call>[{AS_ROME}, {{"arguments": {{}}, "name": "now"}}]</tool_call>', "", [ROME, NOW]),
    ("cut off", TAGGED, f"Now <tool_call>{AS_ROME[:-3]}", "Now",
     [ToolCall("get_weather", '{"city": "Rome')]),
    ("a name with a quote", TAGGED, '<tool_call>{"name": "a\\"b", "arguments": {}}</tool_call>',
     "", [ToolCall('a"b', "{}")]),
    ("nested for ever", BARE, "[" * 50_000, "[" * 50_000, []),
]  # fmt: skip


def parsed(form: ToolFormat, pieces: list[str]) -> tuple[str, list[ToolCall]]:
    calls = ToolCalls(form, NAMES)
    parts = [calls.push(piece) for piece in pieces] + [calls.finish()]
    found: list[ToolCall] = []
    for piece in (one for part in parts for one in part.calls):
        if piece.name is not None:
            assert piece.index == len(found)
            found.append(ToolCall(piece.name, ""))
        assert piece.index == len(found) - 1
        found[-1] = ToolCall(found[-1].name, found[-1].arguments + piece.arguments)
    assert calls.count == len(found)
    assert calls.finish() == Part()
    return "".join(part.text for part in parts), found


@pytest.mark.parametrize(
    ("form", "text", "said", "calls"), [case[1:] for case in CASES], ids=[c[0] for c in CASES]
)
def test_calls_are_found_however_the_text_is_cut(
    form: ToolFormat, text: str, said: str, calls: list[ToolCall]
) -> None:
    assert parsed(form, [text]) == (said, calls)
    if len(text) < 1000:
        assert parsed(form, list(text)) == (said, calls)
        for cut in range(len(text) + 1):
            assert parsed(form, [text[:cut], text[cut:]]) == (said, calls)


def test_text_is_not_held_back_longer_than_it_must_be() -> None:
    calls = ToolCalls(TAGGED, NAMES)
    assert calls.push("Hello <b").text == "Hello <b"
    assert calls.push(" <tool").text == ""
    assert calls.push("s").text == " <tools"
    bare = ToolCalls(BARE, NAMES)
    assert bare.push("  ").text == ""
    assert bare.push("Hi").text == "  Hi"
    assert bare.push(" {").text == " {"


@pytest.mark.parametrize("form", [TAGGED, BARE])
def test_arguments_come_while_they_are_written(form: ToolFormat) -> None:
    calls = ToolCalls(form, NAMES)
    calls.push("<tool_call>\n" if form is TAGGED else "\n")
    assert calls.push('{"name": "get_wea') == Part()
    head = calls.push('ther", "arguments": {"ci')
    assert head.calls == (CallPiece(0, "get_weather", ""), CallPiece(0, None, '{"ci'))
    assert calls.push('ty"').calls == (CallPiece(0, None, 'ty"'),)
    assert calls.push(': "R}"}}').calls == (CallPiece(0, None, ': "R}"}'),)
    assert calls.push("\n") == Part()


@pytest.mark.parametrize(
    ("template", "form"),
    [
        ("within <tool_call></tool_call> XML tags", TAGGED),
        ('Respond in the format {"name": name, "parameters": dictionary}.',
         ToolFormat("bare", "parameters")),
        ("{% for tool in tools %}{{ tool | tojson }}{% endfor %}", BARE),
    ],
)  # fmt: skip
def test_the_format_follows_the_template(template: str, form: ToolFormat) -> None:
    assert format_of(template) == form


# -- grammars ----------------------------------------------------------------------------------

END = 256
PIECES = [bytes([i]) for i in range(256)] + [b"</s>"]
SCHEMA = {
    "type": "object",
    "properties": {"city": {"type": "string"}},
    "required": ["city"],
    "additionalProperties": False,
}
OTHER = GrammarSpec(
    "json", json.dumps({**SCHEMA, "properties": {"city": {"const": "x"}}}), "response_format"
)


@pytest.fixture(scope="module")
def vocabulary() -> GrammarVocabulary:
    return GrammarVocabulary(
        PIECES, encode=lambda text: list(text.encode()), special=[END], end_ids=[END]
    )


def tools(*, strict: bool = True) -> list[dict[str, Any]]:
    weather = {"name": "get_weather", "parameters": SCHEMA, "strict": strict}
    return [{"type": "function", "function": one} for one in (weather, {"name": "now"})]


def fits(vocabulary: GrammarVocabulary, spec: GrammarSpec | None, text: str) -> bool:
    assert spec is not None
    ids = [*text.encode(), END]
    return Grammar(vocabulary, spec, prompt_length=0).possible_run([], ids) == len(ids)


MUST, NAMED, AUTO, SINGLE = (
    ToolChoice(must=True),
    ToolChoice(must=True, name="now"),
    ToolChoice(),
    ToolChoice(parallel=False),
)


@pytest.mark.parametrize("form", [TAGGED, BARE, ToolFormat("bare", "parameters")])
@pytest.mark.parametrize(
    ("choice", "otherwise", "expected"),
    [
        # rome, now, both, wrong arguments, text, JSON of the other format
        (MUST, None, (True, True, True, False, False, False)),
        (NAMED, None, (False, True, False, False, False, False)),
        (AUTO, None, (True, True, True, False, True, None)),
        (SINGLE, None, (True, True, False, False, True, None)),
        (ToolChoice(parallel=False), OTHER, (True, True, False, False, False, True)),
    ],
    ids=["must", "named", "auto", "single", "json"],
)
def test_only_good_calls_fit(
    vocabulary: GrammarVocabulary,
    form: ToolFormat,
    choice: ToolChoice,
    otherwise: GrammarSpec | None,
    expected: tuple[bool | None, ...],
) -> None:
    def call(text: str) -> str:
        text = text.replace("arguments", form.arguments)
        return f"<tool_call>\n{text}\n</tool_call>" if form.style == "tagged" else text

    rome, now = call(AS_ROME), call(AS_NOW)
    both = rome + ("\n" if form.style == "tagged" else ";") + now
    wrong = call('{"name": "get_weather", "arguments": {"town": 1}}')
    texts = (rome, now, both, wrong, "It rains <b>.", '{"city": "x"}')
    spec = tool_grammar(tools(), choice, form, otherwise=otherwise)
    for text, fit in zip(texts, expected, strict=True):
        if fit is not None:
            assert fits(vocabulary, spec, text) is fit, text


def test_text_may_lead_to_a_tagged_call(vocabulary: GrammarVocabulary) -> None:
    spec = tool_grammar(tools(), AUTO, TAGGED, otherwise=None)
    assert fits(vocabulary, spec, f"Let me <see>.\n<tool_call>\n{AS_ROME}\n</tool_call>")
    assert not fits(vocabulary, spec, "Let me see.\n<tool_call>\noops\n</tool_call>")


def test_nothing_is_constrained_unless_it_is_asked_for() -> None:
    assert tool_grammar(tools(strict=False), AUTO, TAGGED, otherwise=None) is None
    assert tool_grammar(tools(strict=False), MUST, TAGGED, otherwise=None) is not None


def test_a_tool_that_is_not_strict_takes_any_arguments(vocabulary: GrammarVocabulary) -> None:
    spec = tool_grammar(tools(strict=False), SINGLE, BARE, otherwise=None)
    assert fits(vocabulary, spec, '{"name": "get_weather", "arguments": {"town": 1}}')
    assert not fits(vocabulary, spec, '{"name": "other", "arguments": {}}')
