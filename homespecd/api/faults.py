"""What is wrong with a field of a request, in words of our own.

The schemas are pydantic's, and so are its findings; what clients read names their parameter and
says what it must be, and never anything of how this program checks it.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from pydantic import ValidationError
from pydantic_core import ErrorDetails

from homespecd.errors import RequestError

UNKNOWN, MISSING = "unknown_parameter", "missing_required_parameter"
INVALID_TYPE, INVALID_VALUE = "invalid_type", "invalid_value"
UNSUPPORTED_VALUE = "unsupported_value"

Context = Mapping[str, Any]

# pydantic's type of fault → OpenAI's code, and the sentence that goes on after the parameter.
_SENTENCES: Mapping[str, tuple[str, str | Callable[[Context], str]]] = {
    "extra_forbidden": (UNKNOWN, "is not a parameter that is known"),
    "missing": (MISSING, "is missing"),
    "string_type": (INVALID_TYPE, "must be a string"),
    "bool_type": (INVALID_TYPE, "must be true or false"),
    "int_type": (INVALID_TYPE, "must be a whole number"),
    "int_from_float": (INVALID_TYPE, "must be a whole number"),
    "float_type": (INVALID_TYPE, "must be a number"),
    "finite_number": (INVALID_VALUE, "must be a number that is not infinite"),
    "list_type": (INVALID_TYPE, "must be a list"),
    "dict_type": (INVALID_TYPE, "must be an object"),
    "model_type": (INVALID_TYPE, "must be an object"),
    "greater_than": (INVALID_VALUE, lambda ctx: f"must be greater than {_number(ctx['gt'])}"),
    "greater_than_equal": (INVALID_VALUE, lambda ctx: f"must be at least {_number(ctx['ge'])}"),
    "less_than": (INVALID_VALUE, lambda ctx: f"must be less than {_number(ctx['lt'])}"),
    "less_than_equal": (INVALID_VALUE, lambda ctx: f"must be at most {_number(ctx['le'])}"),
    "too_short": (INVALID_VALUE, "must not be empty"),
    "string_too_short": (INVALID_VALUE, "must not be empty"),
    "string_pattern_mismatch": (INVALID_VALUE, lambda ctx: f"must match {ctx['pattern']}"),
    "literal_error": (INVALID_VALUE, lambda ctx: f"must be {ctx['expected']}"),
}


def refused(error: ValidationError) -> RequestError:
    """The first fault as a 400, its parameter written as a path: `messages[0].content`."""
    return _refusal(error.errors(include_url=False)[0])


def _refusal(fault: ErrorDetails) -> RequestError:
    param = path_of(fault["loc"])
    context = fault.get("ctx", {})
    if fault["type"] == "homespecd":  # `values.bad`
        code, sentence = context["code"], context["message"]
    else:
        code, said = _SENTENCES.get(fault["type"], (INVALID_VALUE, "is not valid"))
        sentence = said if isinstance(said, str) else said(context)
    return RequestError(f"{param}: {sentence}", param=param, code=code)


def path_of(location: Sequence[int | str]) -> str:
    """Where a fault is, as a client would write it."""
    path = ""
    for part in location:
        if isinstance(part, int):
            path += f"[{part}]"
        else:
            path += f".{part}" if path else part
    return path


def broken_json(error: ValueError) -> str:
    """Why a text is not JSON."""
    if isinstance(error, json.JSONDecodeError):
        return f"it breaks at line {error.lineno}, column {error.colno}"
    if "digits" in str(error):  # Python's limit on the length of whole numbers
        return "a number in it has too many digits"
    return str(error)


def _number(value: float) -> str:
    return f"{value:g}" if isinstance(value, float) else str(value)
