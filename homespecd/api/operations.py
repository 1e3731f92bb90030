"""The routes of the API, as they are described: what each takes, answers and refuses.

A test holds this table and the application's routes together.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from pydantic import BaseModel

from homespecd.api import jobs, metrics, ollama, openai, response_schemas, tokens
from homespecd.api.ollama_routes import NOT_SERVED

Schema = dict[str, Any]

JSON = "application/json"

# What a status stands for; the codes are those of the error's body.
ERRORS: Mapping[int, str] = {
    400: "The request cannot be understood or done; `param` names the parameter. Codes: "
    "invalid_json, invalid_type, invalid_value, missing_required_parameter, unknown_parameter, "
    "unsupported_parameter, unsupported_value, context_length_exceeded.",
    401: "Over TCP, without a key that is known: invalid_api_key.",
    403: "Not for this peer: model_not_allowed, control_not_allowed, no_web_pages, unknown_host.",
    404: "There is no such model: model_not_found.",
    408: "The body did not come in: request_timeout.",
    413: "The body is larger than server.max_body: body_too_large.",
    415: "Its Content-Encoding cannot be read here: unsupported_encoding. With Accept-Encoding.",
    422: "The configuration is refused, and the old one stays in use: invalid_config.",
    429: "The peer is over its quota: quota_exceeded, token_quota_exceeded. With Retry-After.",
    500: "The service or the model failed: internal_error, model_error.",
    501: "Not served here: not_served.",
    503: "Not now: model_loading, queue_full, insufficient_memory, model_failed, worker_died, "
    "job_cancelled, shutting_down. With Retry-After.",
}
ALWAYS = (401, 403, 500)
_BODY = (400, 408, 413, 415)
_MODEL = (404, 503)


@dataclass(frozen=True)
class Operation:
    """One route.

    errors: statuses beside those that every route may have.
    stream: the media type of the answer's pieces, where the request may ask for these.
    body_required: False = no body asks for the defaults.
    """

    method: Literal["get", "post", "delete"]
    path: str
    summary: str
    answer: type[BaseModel] | str
    request: type[BaseModel] | Schema | None = None
    errors: Sequence[int] = ()
    stream: str = ""
    body_required: bool = True

    @property
    def ollama(self) -> bool:
        return self.path.startswith("/api/")


ANYTHING: Schema = {"type": "object"}


def operations() -> Iterator[Operation]:
    """Every route."""
    given = response_schemas
    generating = (*_BODY, *_MODEL, 429)
    yield Operation(
        "post",
        "/v1/chat/completions",
        "An answer to a conversation",
        given.ChatCompletion,
        openai.ChatRequest,
        generating,
        "text/event-stream",
    )
    yield Operation(
        "post",
        "/v1/completions",
        "A text that goes on",
        given.Completion,
        openai.CompletionRequest,
        generating,
        "text/event-stream",
    )
    yield Operation(
        "post", "/v1/embeddings", "Not served: these models write text", "", ANYTHING, (501,)
    )
    yield Operation("get", "/v1/models", "The configured models", given.ModelList)
    yield Operation("get", "/v1/models/{name}", "One of them", given.ModelObject, errors=(404,))
    yield Operation(
        "post",
        "/tokenize",
        "Text or messages to token ids",
        given.Tokens,
        tokens.TokenizeRequest,
        (*_BODY, *_MODEL),
    )
    yield Operation(
        "post",
        "/detokenize",
        "Token ids to text",
        given.Text,
        tokens.DetokenizeRequest,
        (*_BODY, *_MODEL),
    )
    yield Operation("get", "/healthz", "The process answers", given.Health)
    yield Operation("get", "/readyz", "All pinned models are loaded (503: not yet)", given.Ready)
    yield Operation("get", "/metrics", "For Prometheus", metrics.CONTENT_TYPE)
    yield Operation("get", "/openapi.json", "This description", JSON)
    yield Operation("get", "/homespec/status", "The snapshot", given.Status)
    yield Operation(
        "post", "/homespec/reload", "Read the configuration again", given.Changes, errors=(422,)
    )
    for what in ("load", "unload"):
        yield Operation(
            "post",
            f"/homespec/models/{{name}}/{what}",
            f"{what.title()} a model",
            given.Loaded,
            errors=_MODEL,
        )
    for what, options in (("bench", jobs.BenchRequest), ("verify", jobs.VerifyRequest)):
        yield Operation(
            "post",
            f"/homespec/models/{{name}}/{what}",
            f"{what.title()} a model",
            JSON,
            options,
            (*_BODY, *_MODEL),
            body_required=False,
        )
    yield Operation(
        "post",
        "/api/chat",
        "An answer to a conversation",
        given.OllamaChat,
        ollama.OllamaChatRequest,
        generating,
        "application/x-ndjson",
    )
    yield Operation(
        "post",
        "/api/generate",
        "An answer to a prompt; without one, load or unload",
        given.OllamaGenerated,
        ollama.OllamaGenerateRequest,
        generating,
        "application/x-ndjson",
    )
    yield Operation("get", "/api/tags", "The configured models", given.OllamaTags)
    yield Operation("get", "/api/ps", "The models in memory", given.OllamaProcesses)
    yield Operation(
        "post",
        "/api/show",
        "About a model",
        given.OllamaShown,
        ollama.OllamaShowRequest,
        (*_BODY, 404),
    )
    yield Operation("get", "/api/version", "Whose API this speaks", given.OllamaVersion)
    for what in NOT_SERVED:
        yield Operation(
            "post",
            f"/api/{what}",
            "Not served: the configuration says which models there are, and answers are text",
            "",
            ANYTHING,
            (501,),
        )
    yield Operation("delete", "/api/delete", "Not served", "", ANYTHING, (501,))  # fmt: skip
