"""Fields that pydantic has no words for: how they are read, and how they are described."""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import BeforeValidator, WithJsonSchema

from homespecd.api import values
from homespecd.decoding.constraint import GrammarSpec

_STRING: dict[str, Any] = {"type": "string"}
_TOKENS = {"type": "array", "items": {"type": "integer", "minimum": 0, "maximum": 2**31 - 1}}
_SOME_TOKENS = {**_TOKENS, "minItems": 1}


def _object(**properties: Any) -> dict[str, Any]:
    """An object with all of these and nothing else."""
    return {
        "type": "object",
        "properties": properties,
        "required": list(properties),
        "additionalProperties": False,
    }


def _any_of(*schemas: dict[str, Any]) -> WithJsonSchema:
    return WithJsonSchema({"anyOf": list(schemas)})


_TEXT_PART = _object(type={"const": "text"}, text=_STRING)
_NAMED_SCHEMA = {
    "type": "object",
    "properties": {
        "name": _STRING,
        "description": _STRING,
        "schema": {"type": "object"},
        "strict": {"type": ["boolean", "null"]},
    },
    "required": ["schema"],
    "additionalProperties": False,
}
_WORDS = {"enum": ["none", "auto", "required"]}

Stop = Annotated[
    tuple[str, ...],
    BeforeValidator(values.stop),
    _any_of(
        {"type": "string", "minLength": 1},
        {
            "type": "array",
            "items": {"type": "string", "minLength": 1},
            "maxItems": values.MAX_STOPS,
        },
    ),
]
LogitBias = Annotated[
    dict[int, float],
    BeforeValidator(values.logit_bias),
    WithJsonSchema(
        {
            "type": "object",
            "propertyNames": {"pattern": "^[0-9]{1,9}$"},
            "additionalProperties": {"type": "number", "minimum": -100, "maximum": 100},
        }
    ),
]
Content = Annotated[
    str,
    BeforeValidator(values.content),
    _any_of(_STRING, {"type": "array", "items": _TEXT_PART, "minItems": 1}),
]
Prompt = Annotated[
    str | tuple[int, ...],
    BeforeValidator(values.prompt),
    _any_of(
        _STRING,
        _SOME_TOKENS,
        {
            "type": "array",
            "items": {"anyOf": [_STRING, _SOME_TOKENS]},
            "minItems": 1,
            "maxItems": 1,
        },
    ),
]
TokenIds = Annotated[tuple[int, ...], BeforeValidator(values.token_ids), WithJsonSchema(_TOKENS)]
ResponseFormat = Annotated[
    GrammarSpec | None,
    BeforeValidator(values.response_format),
    _any_of(
        _object(type={"enum": ["text", "json_object"]}),
        _object(type={"const": "json_schema"}, json_schema=_NAMED_SCHEMA),
    ),
]
ToolChoice = Annotated[
    str | values.NamedTool | None,
    BeforeValidator(values.tool_choice),
    _any_of(_WORDS, _object(type={"const": "function"}, function=_object(name=_STRING))),
]
OllamaFormat = Annotated[
    GrammarSpec | None,
    BeforeValidator(values.ollama_format),
    _any_of({"enum": ["", "json"]}, {"type": "object"}),
]
KeepAlive = Annotated[
    float | None,
    BeforeValidator(values.keep_alive),
    _any_of(
        {"type": "number"},
        {"type": "string", "pattern": r"^-?([0-9]+|([0-9]+(\.[0-9]+)?(ms|s|m|h))+)$"},
    ),
]
