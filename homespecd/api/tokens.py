"""`/tokenize` and `/detokenize`: what a prompt comes to, without asking for an answer."""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import BeforeValidator, Field

from homespecd.api import values
from homespecd.api.bodies import prepared
from homespecd.api.conversation import Message, Schema, Tool
from homespecd.api.openai import validated
from homespecd.errors import RequestError


class _Tokenize(Schema):
    model: str = Field(min_length=1)
    content: str | None = None
    messages: list[Message] | None = Field(default=None, min_length=1)
    tools: list[Tool] = Field(default_factory=list)
    add_special: bool = False


class _Detokenize(Schema):
    model: str = Field(min_length=1)
    tokens: Annotated[tuple[int, ...], BeforeValidator(values.token_ids)]


def parse_tokenize(body: bytes) -> tuple[str, dict[str, Any]]:
    """The model, and what its worker needs to know. Raises RequestError (400)."""
    fields = prepared(body)
    if "prompt" in fields:  # vLLM's word
        fields.setdefault("content", fields.pop("prompt"))
    asked = validated(_Tokenize, fields)
    if (asked.content is None) == (asked.messages is None):
        raise RequestError("give either content or messages", param="content")
    if asked.messages is None:
        return asked.model, {"content": asked.content, "add_special": asked.add_special}
    return asked.model, {
        "messages": [message.rendered() for message in asked.messages],
        "tools": [tool.model_dump(exclude_none=True) for tool in asked.tools],
    }


def parse_detokenize(body: bytes) -> tuple[str, dict[str, Any]]:
    """The model, and the ids. Raises RequestError (400)."""
    asked = validated(_Detokenize, prepared(body))
    return asked.model, {"tokens": list(asked.tokens)}
