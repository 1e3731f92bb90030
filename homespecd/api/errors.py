"""Errors as OpenAI's clients expect them: a status, a body, and when to try again."""

from __future__ import annotations

import json
import math
from typing import Any

from aiohttp import web

from homespecd.api.content_encoding import ACCEPTED
from homespecd.errors import ConfigError, HomespecError, RequestError

_TYPES = {
    401: "authentication_error",
    403: "permission_error",
    429: "rate_limit_error",
}


# What a program can tell errors apart by, where nothing more exact is said.
_CODES = {
    401: "invalid_api_key",
    403: "not_allowed",
    404: "not_found",
    405: "method_not_allowed",
    408: "request_timeout",
    417: "expectation_failed",
    500: "internal_error",
}


def error_code(error: RequestError) -> str:
    """`error.code`: every error has one."""
    if error.code is not None:
        return error.code
    if error.status == 400:
        return "invalid_request" if error.param is None else "invalid_value"
    return _CODES.get(error.status, "error")


def error_type(status: int) -> str:
    """OpenAI's `error.type` for an HTTP status."""
    return _TYPES.get(status, "invalid_request_error" if status < 500 else "server_error")


def as_request_error(error: HomespecError) -> RequestError:
    """Any of the program's errors as one that has a status."""
    if isinstance(error, RequestError):
        return error
    return RequestError(error.message, status=500, hint=error.hint)


def error_body(error: RequestError) -> dict[str, Any]:
    """`{"error": {message, type, param, code}}`."""
    return {
        "error": {
            "message": str(error),
            "type": error_type(error.status),
            "param": error.param,
            "code": error_code(error),
        }
    }


def error_response(error: RequestError, *, ollama: bool = False) -> web.Response:
    """The error as a whole response, with Retry-After where it says when.

    ollama: as Ollama's clients read it, where `error` is the message itself.
    """
    headers = {}
    if error.retry_after_s is not None:
        headers["Retry-After"] = str(max(1, math.ceil(error.retry_after_s)))
    if error.status == 401:
        headers["WWW-Authenticate"] = "Bearer"
    if error.status == 415:
        headers["Accept-Encoding"] = ACCEPTED
    body = {"error": str(error)} if ollama else error_body(error)
    return json_response(body, status=error.status, headers=headers)


def config_error_response(error: ConfigError) -> web.Response:
    """422: the first problem in OpenAI's shape, and all of them beside it."""
    count = len(error.problems)
    noun = "problem" if count == 1 else "problems"
    summary = RequestError(
        f"the new configuration has {count} {noun}, the old one stays in use",
        status=422,
        code="invalid_config",
    )
    problems = [
        {
            "file": one.file,
            "line": one.line,
            "key": one.key,
            "message": one.message,
            "hint": one.hint,
        }
        for one in error.problems
    ]
    return json_response({**error_body(summary), "problems": problems}, status=422)


def json_response(
    body: Any, *, status: int = 200, headers: dict[str, str] | None = None
) -> web.Response:
    return web.Response(
        body=json.dumps(body, ensure_ascii=False).encode(),
        status=status,
        headers=headers,
        content_type="application/json",
    )
