"""Grammars that make tool calls come, or come out right.

Without one a model writes what it likes, and what it writes is parsed if it is a call. A request
that says `required`, names a tool, has strict tools or wants JSON as well gets a grammar.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from homespecd.decoding.constraint import JSON_BLANKS, GrammarSpec
from homespecd.decoding.tool_calls import CLOSE, OPEN, ToolChoice, ToolFormat

Schema = Mapping[str, Any]

_JSON_OPTIONS: Schema = {"whitespace_pattern": JSON_BLANKS}
_NO_ARGUMENTS: Schema = {"type": "object", "properties": {}, "additionalProperties": False}
_ANYTHING: Schema = {"type": "object"}


def tool_grammar(
    tools: Sequence[Mapping[str, Any]],
    choice: ToolChoice,
    form: ToolFormat,
    *,
    otherwise: GrammarSpec | None,
) -> GrammarSpec | None:
    """What an answer must be so that every call in it is one of these; None = anything.

    Args:
        tools: as OpenAI writes them; a tool that is not `strict` takes any arguments, unless it
            must be called.
        otherwise: a JSON schema that an answer without calls has to follow.
    """
    strict = any(tool["function"].get("strict") for tool in tools)
    if not (choice.must or strict or otherwise is not None or not choice.parallel):
        return None
    called = [tool["function"] for tool in tools if choice.name in (None, tool["function"]["name"])]
    calls = [_call_schema(one, form, must=choice.must) for one in called]
    several = choice.parallel and choice.name is None
    make = _tagged if form.style == "tagged" else _bare
    lines = make(calls, several=several, must=choice.must, otherwise=otherwise)
    return GrammarSpec("grammar", "\n".join(lines) + "\n", "tools")


def _tagged(
    calls: Sequence[Schema], *, several: bool, must: bool, otherwise: GrammarSpec | None
) -> list[str]:
    body = f'"\\n" {_json(calls)} "\\n{CLOSE}"'
    call = f'call: "{OPEN}" {body}'
    many = 'call ("\\n" call)*' if several else "call"
    if must:
        return [f"start: {many}", call]
    if otherwise is not None:
        return [f"start: {many} | other", call, f"other: {_json([json.loads(otherwise.text)])}"]
    # Text up to and with the first tag is one lexeme, and a lazy one: from there on it is a call.
    return [
        f"start: (lead body){'*' if several else '?'} TAIL",
        f'lead[lazy]: ANY "{OPEN}"',
        f"body: {body}",
        r"ANY: /(.|\n)*/",
        rf"TAIL: /(.|\n)*/ & ~/(.|\n)*{OPEN}(.|\n)*/",
    ]


def _bare(
    calls: Sequence[Schema], *, several: bool, must: bool, otherwise: GrammarSpec | None
) -> list[str]:
    more = f' | {_json(calls)} (";" {_json(calls)})+' if several else ""
    if must:
        return [f"start: {_json(calls)}{more}"]
    if otherwise is not None:
        # One schema, so that an object may turn out to be either.
        return [f"start: {_json([*calls, json.loads(otherwise.text)])}"]
    return [f"start: TEXT? | {_json(calls)}{more}", r"TEXT: /[^{\[\s](.|\n)*/"]


def _json(schemas: Sequence[Schema]) -> str:
    schema = schemas[0] if len(schemas) == 1 else {"anyOf": list(schemas)}
    return f"%json {json.dumps({**schema, 'x-guidance': _JSON_OPTIONS})}"


def _call_schema(function: Mapping[str, Any], form: ToolFormat, *, must: bool) -> Schema:
    arguments = _ANYTHING
    if must or function.get("strict"):
        arguments = function.get("parameters") or _NO_ARGUMENTS
    return {
        "type": "object",
        "properties": {"name": {"const": function["name"]}, form.arguments: arguments},
        "required": ["name", form.arguments],
        "additionalProperties": False,
    }
