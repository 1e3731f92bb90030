"""Values of a request that pydantic has no words for: checked, and turned into what they mean.

Each raises what pydantic takes for a fault of the field.
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from typing import Any

from pydantic_core import PydanticCustomError

from homespecd.api.faults import INVALID_VALUE, UNSUPPORTED_VALUE
from homespecd.decoding.constraint import GrammarSpec

MAX_STOPS = 16
FOR_EVER_S = 100.0 * 365 * 86400

_SCHEMA_KEYS = {"name", "description", "schema", "strict"}


def bad(message: str, code: str = INVALID_VALUE) -> PydanticCustomError:
    # Braces would be taken for a template of pydantic's.
    return PydanticCustomError("homespecd", "{message}", {"message": message, "code": code})


def stop(value: Any) -> tuple[str, ...]:
    stops = [value] if isinstance(value, str) else value
    if not isinstance(stops, list) or not all(isinstance(one, str) for one in stops):
        raise bad("must be a string or a list of strings")
    if len(stops) > MAX_STOPS:
        raise bad(f"has {len(stops)} strings, at most {MAX_STOPS} are possible")
    if "" in stops:
        raise bad("must not hold an empty string")
    return tuple(stops)


def logit_bias(value: Any) -> dict[int, float]:
    if not isinstance(value, dict):
        raise bad("must be an object of token ids and biases")
    biases: dict[int, float] = {}
    for token, bias in value.items():
        if not (token.isascii() and token.isdigit() and len(token) < 10):
            raise bad(f"{token!r} is not a token id")
        if isinstance(bias, bool) or not isinstance(bias, int | float) or not abs(bias) <= 100:
            raise bad(f"the bias of token {token} must be a number from -100 to 100")
        biases[int(token)] = float(bias)
    return biases


def content(value: Any) -> str:
    """A string, or a list of text parts, which are joined."""
    if isinstance(value, str):
        return value
    if not isinstance(value, list) or not value:
        raise bad("must be a string or a list of text parts")
    texts = []
    for part in value:
        if not isinstance(part, dict) or not isinstance(part.get("type"), str):
            raise bad("a part must be an object with a `type`")
        if part["type"] != "text":
            raise bad(
                f'parts of type {part["type"]!r} are not supported, only "text"', UNSUPPORTED_VALUE
            )
        if set(part) != {"type", "text"} or not isinstance(part["text"], str):
            raise bad("a text part has `type` and `text` and nothing else")
        texts.append(part["text"])
    return "".join(texts)


def prompt(value: Any) -> str | tuple[int, ...]:
    if isinstance(value, list) and len(value) == 1 and isinstance(value[0], str | list):
        value = value[0]
    if isinstance(value, str):
        return value
    if not isinstance(value, list) or not value:
        raise bad("must be a string or a list of token ids")
    if all(type(token) is int and 0 <= token < 2**31 for token in value):
        return tuple(value)
    if all(isinstance(one, str | list) for one in value):
        raise bad("several prompts in one request are not supported", UNSUPPORTED_VALUE)
    raise bad("token ids must be non-negative integers")


def response_format(value: Any) -> GrammarSpec | None:
    kind = value.get("type") if isinstance(value, dict) else None
    if kind == "text" and len(value) == 1:
        return None
    if kind == "json_object" and len(value) == 1:
        return GrammarSpec("json", '{"type":"object"}', "response_format")
    if kind != "json_schema" or set(value) != {"type", "json_schema"}:
        raise bad('must be {"type": "text"}, {"type": "json_object"} or of type "json_schema"')
    given = value["json_schema"]
    schema = given.get("schema") if isinstance(given, dict) else None
    if not isinstance(schema, dict) or not set(given) <= _SCHEMA_KEYS:
        raise bad("json_schema must have a `name`, a `schema` (an object) and nothing unknown")
    # `strict` or not: what comes out follows the schema.
    return GrammarSpec("json", json.dumps(schema, ensure_ascii=False), "response_format")


def token_ids(value: Any) -> tuple[int, ...]:
    if not isinstance(value, list) or not all(
        type(token) is int and 0 <= token < 2**31 for token in value
    ):
        raise bad("must be a list of token ids")
    return tuple(value)


@dataclass(frozen=True)
class NamedTool:
    """The tool that must be called."""

    name: str


def tool_choice(value: Any) -> str | NamedTool:
    match value:
        case "none" | "auto" | "required":
            return str(value)
        case {"type": "function", "function": {"name": str(name), **rest}} if not rest:
            return NamedTool(name)
    raise bad('must be "none", "auto", "required" or {"type": "function", "function": {"name": …}}')


def ollama_format(value: Any) -> GrammarSpec | None:
    """Ollama's `format`: "json", or a JSON schema."""
    if value == "":
        return None
    if value == "json":
        return GrammarSpec("json", '{"type":"object"}', "format")
    if isinstance(value, dict):
        return GrammarSpec("json", json.dumps(value, ensure_ascii=False), "format")
    raise bad('must be "json" or a JSON schema')


_DURATION = re.compile(r"([0-9]+(?:\.[0-9]+)?)(ms|s|m|h)")
_UNIT_S = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0}


def keep_alive(value: Any) -> float:
    """Ollama's `keep_alive` in seconds: a number of them, or "1h30m"; below 0 = for ever."""
    if isinstance(value, str):
        text = value.strip()
        negative, text = text.startswith("-"), text.lstrip("-")
        parts = _DURATION.findall(text)
        if re.fullmatch(r"[0-9]+", text):
            seconds = float(text)
        elif parts and "".join(number + unit for number, unit in parts) == text:
            seconds = sum(float(number) * _UNIT_S[unit] for number, unit in parts)
        else:
            raise bad('must be a number of seconds or a duration like "5m"')
        value = -seconds if negative else seconds
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise bad('must be a number of seconds or a duration like "5m"')
    return FOR_EVER_S if value < 0 or value > FOR_EVER_S else float(value)
