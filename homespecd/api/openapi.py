"""The description of the API (OpenAPI 3.1), made from the schemas that requests are read by.

What there is to describe is `operations`'; how OpenAPI wants it written is here.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from functools import cache
from typing import Any

from pydantic import BaseModel
from pydantic.json_schema import models_json_schema

from homespecd import __version__
from homespecd.api import openai, response_schemas
from homespecd.api.bodies import UNSUPPORTED
from homespecd.api.operations import ALWAYS, ANYTHING, ERRORS, JSON, Operation, Schema, operations

_REF = "#/components/schemas/"

_STREAMS: dict[str, Schema] = {
    "text/event-stream": {
        "description": "Events whose data are chunks as OpenAI sends them; the last one is [DONE], "
        "or of the type `error`.",
        "type": "object",
        "properties": {
            "data": {"type": "string"},
            "event": {"enum": ["message", "error"]},
        },
        "required": ["data"],
    },
    "application/x-ndjson": {
        "description": "A JSON object a line; the last one is `done`, or an error.",
        "type": "string",
    },
}


@cache
def document() -> bytes:
    """The description as JSON; the same at every call."""
    return json.dumps(description(), ensure_ascii=False).encode()


def description() -> Schema:
    """The description, made anew."""
    rows = tuple(operations())
    paths: dict[str, Schema] = {}
    for one in rows:
        paths.setdefault(one.path, {})[one.method] = _operation(one)
    return {
        "openapi": "3.1.0",
        "info": {
            "title": "homespecd",
            "version": __version__,
            "description": "Language models on a home server: OpenAI's API and Ollama's, on a Unix "
            "socket and, if configured, on TCP addresses.",
            "license": {"name": "Apache-2.0", "identifier": "Apache-2.0"},
        },
        "servers": [{"url": "http://localhost"}],
        "security": [{}, {"key": []}],
        "paths": paths,
        "components": {
            "schemas": _schemas(rows),
            "securitySchemes": {"key": {"type": "http", "scheme": "bearer"}},
        },
    }


def _operation(one: Operation) -> Schema:
    described: Schema = {"summary": one.summary, "operationId": _operation_id(one)}
    if "{name}" in one.path:
        described["parameters"] = [
            {
                "name": "name",
                "in": "path",
                "required": True,
                "description": "The model's name in the configuration",
                "schema": {"type": "string", "minLength": 1},
            }
        ]
    if one.request is not None:
        schema = one.request if isinstance(one.request, dict) else _ref(one.request)
        required = one.body_required and 501 not in one.errors
        described["requestBody"] = {"required": required, "content": {JSON: {"schema": schema}}}
    return {**described, "responses": _responses(one)}


def _operation_id(one: Operation) -> str:
    words = one.path.replace("{name}", "name").replace(".", "/").split("/")
    return "_".join([one.method, *filter(None, words)])


def _responses(one: Operation) -> Schema:
    responses: Schema = {}
    if one.answer:
        responses["200"] = {"description": "As asked", "content": _content(one)}
    for status in sorted({*ALWAYS, *one.errors}):
        shape: type[BaseModel] = response_schemas.ErrorBody
        if status == 422:
            shape = response_schemas.InvalidConfig
        elif one.ollama:
            shape = response_schemas.OllamaErrorBody
        content = {JSON: {"schema": _ref(shape)}}
        responses[str(status)] = {"description": ERRORS[status], "content": content}
        if status in (429, 503):
            retry = {"description": "Seconds", "schema": {"type": "integer", "minimum": 1}}
            responses[str(status)]["headers"] = {"Retry-After": retry}
    if one.path == "/readyz":
        content = {JSON: {"schema": _ref(response_schemas.NotReady)}}
        responses["503"] = {"description": "Some are not", "content": content}
    return responses


def _content(one: Operation) -> Schema:
    if isinstance(one.answer, str):
        media = one.answer.partition(";")[0]
        return {media: {"schema": ANYTHING if media == JSON else {"type": "string"}}}
    content: Schema = {JSON: {"schema": _ref(one.answer)}}
    if one.stream:
        content[one.stream] = {"schema": _STREAMS[one.stream]}
    return content


def _ref(model: type[BaseModel]) -> Schema:
    return {"$ref": _REF + model.__name__}


def _schemas(rows: Sequence[Operation]) -> Schema:
    requests = [one.request for one in rows if isinstance(one.request, type)]
    answers = [one.answer for one in rows if isinstance(one.answer, type)]
    errors = [
        response_schemas.ErrorBody,
        response_schemas.OllamaErrorBody,
        response_schemas.InvalidConfig,
        response_schemas.NotReady,
    ]
    schemas: Schema = {}
    for mode, models in (("serialization", [*answers, *errors]), ("validation", requests)):
        _, found = models_json_schema(
            [(model, mode) for model in models],  # type: ignore[misc]
            ref_template=_REF + "{model}",
        )
        for name, schema in found["$defs"].items():
            assert schemas.setdefault(name, schema) == schema, name
    for model in requests:
        _nullable(schemas[model.__name__], schemas)
    for name in (openai.ChatRequest.__name__, openai.CompletionRequest.__name__):
        schemas[name]["properties"] |= {
            unsupported: {"enum": [*neutral, None], "description": "Not supported otherwise."}
            for unsupported, neutral in UNSUPPORTED.items()
        }
    return schemas


def _nullable(schema: Any, schemas: Schema, seen: set[str] | None = None) -> None:
    """In requests null is as good as nothing wherever nothing is allowed."""
    seen = set() if seen is None else seen
    if isinstance(schema, list):
        for one in schema:
            _nullable(one, schemas, seen)
    if not isinstance(schema, dict):
        return
    name = str(schema.get("$ref", "")).removeprefix(_REF)
    if name and name not in seen:
        seen.add(name)
        _nullable(schemas[name], schemas, seen)
    for one in schema.values():
        _nullable(one, schemas, seen)
    if "title" not in schema or schema.get("additionalProperties") is not False:
        return
    for key, one in schema.get("properties", {}).items():
        if key not in schema.get("required", ()) and {"type": "null"} not in one.get("anyOf", ()):
            schema["properties"][key] = {"anyOf": [one, {"type": "null"}]}
