"""The description of the API and the application's routes are one and the same."""

from __future__ import annotations

import json
from typing import Any, cast

import pytest
import schemathesis
from jsonschema_rs import Draft202012Validator

from homespecd.api import ollama, openai
from homespecd.api.app import create_app
from homespecd.api.connections import Connections
from homespecd.api.openapi import description, document
from homespecd.api.service import Service
from homespecd.errors import RequestError
from tests.unit.test_api_openai import BAD_CHATS, BASE

DESCRIPTION = description()


def test_every_route_is_described_and_the_reverse() -> None:
    app = create_app(cast("Service", None), Connections())
    routes = {
        (route.method.lower(), route.resource.canonical)
        for route in app.router.routes()
        if route.resource is not None and route.method != "HEAD"
    }
    described = {
        (method, path) for path, methods in DESCRIPTION["paths"].items() for method in methods
    }
    assert routes == described


def test_it_can_be_read() -> None:
    assert json.loads(document()) == DESCRIPTION
    operations = list(schemathesis.openapi.from_dict(DESCRIPTION).get_all_operations())
    assert len(operations) == sum(map(len, DESCRIPTION["paths"].values()))
    assert all(one.ok() for one in operations)
    ids = [one["operationId"] for path in DESCRIPTION["paths"].values() for one in path.values()]
    assert len(set(ids)) == len(ids)


def validator(name: str) -> Draft202012Validator:
    return Draft202012Validator(
        {"$ref": f"#/components/schemas/{name}", "components": DESCRIPTION["components"]}
    )


CHATS: list[dict[str, Any]] = [
    BASE,
    {**BASE, "stop": ["a"], "n": 2, "seed": None, "logit_bias": {"3": 1}, "stream_options": None},
    {**BASE, "homespec": {"speculation": "off", "drafter": None}, "store": False},
    {**BASE, "tools": [{"type": "function", "function": {"name": "f", "strict": None}}],
     "tool_choice": {"type": "function", "function": {"name": "f"}}},
    {**BASE, "response_format": {"type": "json_schema", "json_schema": {"schema": {}}}},
]  # fmt: skip


@pytest.mark.parametrize("body", CHATS)
def test_what_is_understood_is_described(body: dict[str, Any]) -> None:
    validator("ChatRequest").validate(body)
    openai.parse_chat(json.dumps(body).encode())


# Refused for what one parameter means to another, which a schema does not say.
BEYOND = {
    "both limits", "top_logprobs alone", "grammar beside a format", "ignore_eos in a grammar",
    "min_tokens in a grammar", "tools of one name", "tool_choice without tools",
    "tool_choice of no tool", "tools and a grammar", "tools that must, without an end",
    "stream_options alone", "half a character", "half a character, raw", "max_tokens a float",
}  # fmt: skip


@pytest.mark.parametrize(
    "body",
    [
        pytest.param(body, id=name)
        for name, body, param in BAD_CHATS
        if param is not None and name not in BEYOND
    ],
)
def test_what_is_refused_is_not_described(body: bytes) -> None:
    assert not validator("ChatRequest").is_valid(json.loads(body))


@pytest.mark.parametrize(
    ("body", "good"),
    [
        ({"model": "m", "keep_alive": "1h30m", "format": "json", "options": {"top_k": 3}}, True),
        ({"model": "m", "keep_alive": -1, "format": {"type": "object"}, "options": None}, True),
        ({"model": "m", "keep_alive": "soon"}, False),
        ({"model": "m", "format": "yaml"}, False),
    ],
)
def test_ollamas_fields_are_described(body: dict[str, Any], good: bool) -> None:
    assert validator("OllamaChatRequest").is_valid(body) is good
    try:
        ollama.parse_chat(json.dumps(body).encode())
    except RequestError:
        assert not good
    else:
        assert good
