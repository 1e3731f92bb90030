"""Tool calls in a model's text: found as the text comes, and told apart from what is for a reader.

Two ways of writing calls cover the families that are imported:

- *tagged* (Hermes, Qwen, SmolLM): `<tool_call>{"name": …, "arguments": {…}}</tool_call>` anywhere
  in the text, as often as needed; SmolLM puts a list of calls between the tags;
- *bare* (Llama 3, and models without a way of their own): the whole answer is such an object, a
  list of them, or several with `;` between; Llama 3 says `parameters` for `arguments`.

What looks like a call and is none goes to the reader unchanged.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Iterator
from dataclasses import dataclass, replace
from typing import Any, Literal

OPEN, CLOSE = "<tool_call>", "</tool_call>"


@dataclass(frozen=True)
class ToolFormat:
    """How a model writes calls. arguments: the key that holds them."""

    style: Literal["tagged", "bare"]
    arguments: str = "arguments"


@dataclass(frozen=True)
class ToolChoice:
    """Whether tools are called. must: at least one call; name: of this tool alone.

    parallel: there may be several calls.
    """

    must: bool = False
    name: str | None = None
    parallel: bool = True


@dataclass(frozen=True)
class ToolCall:
    """A call as the model made it. arguments: JSON text of an object."""

    name: str
    arguments: str


@dataclass(frozen=True)
class Part:
    """What a piece of text came to: text for the reader, and calls that are complete."""

    text: str = ""
    calls: tuple[ToolCall, ...] = ()


def format_of(template: str) -> ToolFormat:
    """How a model writes calls, as its chat template tells it to."""
    if OPEN in template:
        return ToolFormat("tagged")
    says_parameters = '"parameters":' in template and '"arguments":' not in template
    return ToolFormat("bare", "parameters" if says_parameters else "arguments")


class ToolCalls:
    """The calls of one answer.

    Args:
        names: the tools there are. A bare object that names none of them is text.
    """

    def __init__(self, form: ToolFormat, names: Collection[str]) -> None:
        self._tagged = form.style == "tagged"
        self._names = frozenset(names)
        self._held = ""
        self._inside = False
        self._free = False  # bare: the answer has begun as text, so it is text
        self.count = 0

    def push(self, text: str) -> Part:
        """Add text; what can be told of it now."""
        self._held += text
        return self._counted(self._push_tagged() if self._tagged else self._push_bare())

    def finish(self) -> Part:
        """The text is over."""
        held, self._held = self._held, ""
        if self._tagged:
            found = list(_calls(held)) if self._inside else []
            part = Part(calls=tuple(found)) if found else Part(OPEN * self._inside + held)
            self._inside = False
            return self._counted(part)
        found = [] if self._free else list(_bare_calls(held))
        known = found and all(one.name in self._names for one in found)
        return self._counted(Part(calls=tuple(found)) if known else Part(held))

    def _counted(self, part: Part) -> Part:
        self.count += len(part.calls)
        return part

    def _push_bare(self) -> Part:
        begun = self._held.lstrip()
        if not self._free and (not begun or begun[0] in "{["):
            return Part()
        self._free = True
        text, self._held = self._held, ""
        return Part(text)

    def _push_tagged(self) -> Part:
        whole = Part()
        while True:
            part, more = self._read_call() if self._inside else self._read_text()
            whole = replace(whole, text=whole.text + part.text, calls=whole.calls + part.calls)
            if not more:
                return whole

    def _read_text(self) -> tuple[Part, bool]:
        before, tag, after = self._held.partition(OPEN)
        if tag:
            self._held, self._inside = after, True
            return Part(before.rstrip()), True
        keep = len(before) - _held_back(before)
        self._held = before[keep:]
        return Part(before[:keep]), False

    def _read_call(self) -> tuple[Part, bool]:
        at = self._held.find(CLOSE)
        while at >= 0:
            # A string in the arguments may hold the tag; then what is before it is no JSON yet.
            found = list(_calls(self._held[:at]))
            if found:
                self._held, self._inside = self._held[at + len(CLOSE) :], False
                return Part(calls=tuple(found)), True
            at = self._held.find(CLOSE, at + 1)
        return Part(), False


def _held_back(text: str) -> int:
    """Length of the end that may be blank space before a call, or the beginning of a tag."""
    for length in range(min(len(OPEN) - 1, len(text)), 0, -1):
        if OPEN.startswith(text[-length:]):
            return len(text) - len(text[:-length].rstrip())
    return len(text) - len(text.rstrip())


def _bare_calls(text: str) -> Iterator[ToolCall]:
    """The calls that a whole answer consists of; none unless it is nothing else."""
    found: list[ToolCall] = []
    for part in _objects(text):
        calls = list(_as_calls(part))
        if not calls:
            return
        found += calls
    yield from found


def _objects(text: str) -> Iterator[Any]:
    """JSON values one after the other, `;` or blank space between; None for what is no JSON."""
    decoder = json.JSONDecoder()
    text = text.strip()
    while text:
        try:
            value, end = decoder.raw_decode(text)
        except (ValueError, RecursionError):
            yield None
            return
        yield value
        text = text[end:].lstrip("; \t\r\n")


def _calls(text: str) -> Iterator[ToolCall]:
    try:
        value = json.loads(text)
    except (ValueError, RecursionError):
        return
    yield from _as_calls(value)


def _as_calls(value: Any) -> Iterator[ToolCall]:
    """The calls of one object or a list of them; none if any is no call."""
    calls = [_as_call(one) for one in (value if isinstance(value, list) else [value])]
    if None not in calls:
        yield from (call for call in calls if call is not None)


def _as_call(value: Any) -> ToolCall | None:
    if not isinstance(value, dict) or not isinstance(value.get("name"), str):
        return None
    arguments = value.get("arguments", value.get("parameters", {}))
    if isinstance(arguments, str):
        try:
            arguments = json.loads(arguments)
        except (ValueError, RecursionError):
            return None
    if not isinstance(arguments, dict):
        return None
    return ToolCall(value["name"], json.dumps(arguments, ensure_ascii=False))
