"""From the bytes of a request to an object, without what is known and not offered."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, NoReturn

from homespecd.api.faults import broken_json
from homespecd.errors import RequestError

# Known, and not offered: parameter → the values that ask for nothing.
UNSUPPORTED: Mapping[str, tuple[Any, ...]] = {
    "best_of": (1,),
    "functions": ([],),
    "function_call": ("none",),
    "suffix": ("",),
    "echo": (False,),
    "modalities": (["text"],),
    "audio": (),
    "prediction": (),
    "reasoning_effort": (),
    "verbosity": (),
    "service_tier": ("auto", "default"),
    "store": (False,),
    "metadata": ({},),
    "web_search_options": (),
    "guided_json": (),
    "chat_template_kwargs": ({},),
}

# Whatever reads a body on its way has room for so much, and no schema of any use has more.
MAX_DEPTH = 128

# What a client's library echoes back of an earlier answer; null or empty says nothing.
_ECHOED = ("refusal", "annotations", "audio", "function_call", "reasoning_content")


def parse_json(body: bytes) -> Any:
    """Strict JSON in UTF-8. Raises RequestError (400) for anything else, NaN included."""
    try:
        value = json.loads(body.decode("utf-8-sig"), parse_constant=_no_constant)
        if b"\\ud" in body.lower():
            # An escape may stand for half a character, which no text on the way can hold.
            json.dumps(value, ensure_ascii=False).encode()
        if body.count(b"[") + body.count(b"{") > MAX_DEPTH and _deeper(value, MAX_DEPTH):
            raise RecursionError
    except UnicodeError:
        raise _not_json("a character in it is not Unicode") from None
    except RecursionError:
        raise _not_json("it is nested too deeply") from None
    except ValueError as error:
        raise _not_json(broken_json(error)) from None
    return value


def _deeper(value: Any, most: int) -> bool:
    """Whether lists and objects lie in each other more than so many times."""
    level = [value]
    for _ in range(most):
        level = [
            child
            for one in level
            if isinstance(one, list | dict)
            for child in (one.values() if isinstance(one, dict) else one)
        ]
        if not level:
            return False
    return any(isinstance(one, list | dict) for one in level)


def json_object(body: bytes) -> dict[str, Any]:
    """The body as a JSON object. Raises RequestError (400) when it is none."""
    fields = parse_json(body)
    if not isinstance(fields, dict):
        raise RequestError("the body must be a JSON object", code="invalid_type")
    return fields


def _not_json(why: str) -> RequestError:
    return RequestError(f"the body is not JSON: {why}", code="invalid_json")


def _no_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is not a JSON number")


def prepared(body: bytes) -> dict[str, Any]:
    """The body as an object without nulls, nothing in it that is known to be unsupported."""
    fields = {key: value for key, value in json_object(body).items() if value is not None}
    for name, neutral in UNSUPPORTED.items():
        if name in fields and not _neutral(fields.pop(name), neutral):
            raise RequestError(
                f"{name} is not supported" + (" with this value" if neutral else ""),
                code="unsupported_parameter",
                param=name,
            )
    messages = fields.get("messages")
    if isinstance(messages, list):
        fields["messages"] = [_prepared_message(i, one) for i, one in enumerate(messages)]
    return fields


def _neutral(value: Any, neutral: tuple[Any, ...]) -> bool:
    # `True == 1` in Python; not in JSON.
    return any(type(value) is type(one) and value == one for one in neutral)


def _prepared_message(index: int, message: Any) -> Any:
    if not isinstance(message, dict):
        return message
    for name in _ECHOED:
        if message.get(name):
            raise RequestError(
                f"messages[{index}].{name} is not supported",
                code="unsupported_parameter",
                param=f"messages[{index}].{name}",
            )
    calls = message.get("tool_calls")
    if calls == []:
        calls = None
    kept = {
        key: value
        for key, value in {**message, "tool_calls": calls}.items()
        if key not in _ECHOED and (value is not None or key == "content")
    }
    if calls and kept.get("content") is None:
        kept["content"] = ""  # what calls a tool need not say anything
    return kept
