"""`/tokenize` and `/detokenize`: what a prompt comes to, without asking for an answer."""

from __future__ import annotations

from typing import Any

from pydantic import Field

from homespecd.api import fields
from homespecd.api.bodies import prepared
from homespecd.api.conversation import Message, Schema, Tool
from homespecd.api.openai import validated
from homespecd.errors import RequestError


class TokenizeRequest(Schema):
    model: str = Field(min_length=1)
    content: str | None = None
    messages: list[Message] | None = Field(default=None, min_length=1)
    tools: list[Tool] = Field(default_factory=list)
    add_special: bool = False


class DetokenizeRequest(Schema):
    model: str = Field(min_length=1)
    tokens: fields.TokenIds


def parse_tokenize(body: bytes) -> tuple[str, dict[str, Any]]:
    """The model, and what its worker needs to know. Raises RequestError (400)."""
    given = prepared(body)
    if "content" not in given and "prompt" in given:  # vLLM's word
        given["content"] = given.pop("prompt")
    asked = validated(TokenizeRequest, given)
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
    asked = validated(DetokenizeRequest, prepared(body))
    return asked.model, {"tokens": list(asked.tokens)}
