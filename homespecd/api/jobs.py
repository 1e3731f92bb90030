"""What `bench` and `verify` may be asked. Their defaults are the worker's, who runs them."""

from __future__ import annotations

from typing import Any

from pydantic import Field

from homespecd.api.bodies import json_object
from homespecd.api.conversation import Schema
from homespecd.api.openai import validated


class PromptMessage(Schema):
    role: str
    content: str


class Prompt(Schema):
    category: str
    messages: list[PromptMessage] = Field(min_length=1)


class BenchRequest(Schema):
    """prompts: instead of the shipped ones; seed: sample with it rather than greedily."""

    prompts: list[Prompt] | None = Field(default=None, min_length=1)
    max_tokens: int | None = Field(default=None, ge=1, le=4096)
    repeats: int | None = Field(default=None, ge=1, le=100)
    seed: int | None = Field(default=None, ge=0, lt=2**63)
    each_drafter: bool = False


class VerifyRequest(Schema):
    max_tokens: int | None = Field(default=None, ge=1, le=4096)
    samples: int | None = Field(default=None, ge=1, le=1_000_000)
    seed: int | None = Field(default=None, ge=1, le=2**31)


def parse_job(schema: type[BenchRequest | VerifyRequest], body: bytes) -> dict[str, Any]:
    """The options that are given; an empty body gives none. Raises RequestError (400)."""
    asked = validated(schema, json_object(body) if body else {})
    return asked.model_dump(exclude_unset=True)
