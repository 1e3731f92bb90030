"""Tool calls in a model's text: found as the text comes, and told apart from what is for a reader.

Two ways of writing calls cover the families that are imported:

- *tagged* (Hermes, Qwen, SmolLM): `<tool_call>{"name": …, "arguments": {…}}</tool_call>` anywhere
  in the text, as often as needed; SmolLM puts a list of calls between the tags;
- *bare* (Llama 3, and models without a way of their own): the whole answer is such an object, a
  list of them, or several with `;` between; Llama 3 says `parameters` for `arguments`.

A call that is written in the common way goes out while it is written (`call_reader`); others are
known when they are complete. What looks like a call and is none goes to the reader unchanged.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass
from typing import Any, Literal

from homespecd.decoding.call_reader import CallPiece, CallReader, Place, without_closing

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
    """What a piece of text came to: text for the reader, and pieces of calls."""

    text: str = ""
    calls: tuple[CallPiece, ...] = ()

    def __add__(self, other: Part) -> Part:
        return Part(self.text + other.text, self.calls + other.calls)


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
        self._inside = not self._tagged  # where calls are read; a bare answer may be one
        self._reader = CallReader(names=self._names)
        self.count = 0

    def push(self, text: str) -> Part:
        """Add text; what can be told of it now."""
        self._held += text
        return self._push_tagged() if self._tagged else self._push_bare()

    def finish(self) -> Part:
        """The text is over."""
        held, self._held = self._held, ""
        if not self._inside:
            return Part(held)
        self._inside = False
        if self._reader.count:
            return self._others(held) if self._tagged else Part(without_closing(held))
        if self._tagged:
            part = self._whole(_calls(held))
            return part if part.calls else Part(OPEN + held)
        found = list(_bare_calls(held))
        known = all(one.name in self._names for one in found)
        return self._whole(found) if found and known else Part(held)

    def _whole(self, calls: Iterable[ToolCall]) -> Part:
        """Calls that were waited for."""
        pieces = [
            CallPiece(index, one.name, one.arguments)
            for index, one in enumerate(calls, start=self.count)
        ]
        self.count += len(pieces)
        return Part(calls=tuple(pieces))

    def _others(self, text: str) -> Part:
        """What else is between the tags: calls in another form, or nothing for a reader."""
        values = _objects(without_closing(text))
        return self._whole(call for value in values for call in _as_calls(value))

    def _read(self) -> Part:
        """The pieces of calls that can be read as they come."""
        before = self._reader.count
        pieces, self._held = self._reader.read(self._held)
        self.count += self._reader.count - before
        return Part(calls=pieces)

    def _push_bare(self) -> Part:
        part = Part()
        if self._inside:
            part = self._read()
            if self._reader.place is not Place.ELSEWHERE:
                return part
            if self._reader.count:
                self._held = without_closing(self._held)
            elif self._held.lstrip()[0] in "{[":
                return part  # a call in another form, or data: the end will tell
            self._inside = False
        text, self._held = self._held, ""
        return part + Part(text)

    def _push_tagged(self) -> Part:
        whole = Part()
        while True:
            part, more = self._read_call() if self._inside else self._read_text()
            whole += part
            if not more:
                return whole

    def _read_text(self) -> tuple[Part, bool]:
        before, tag, after = self._held.partition(OPEN)
        if tag:
            self._held, self._inside = after, True
            self._reader = CallReader(self.count)
            return Part(before.rstrip()), True
        keep = len(before) - _held_back(before)
        self._held = before[keep:]
        return Part(before[:keep]), False

    def _read_call(self) -> tuple[Part, bool]:
        part = self._read()
        at = self._held.find(CLOSE)
        if self._reader.count:
            if self._reader.place is Place.ARGUMENTS or at < 0:
                return part, False
            part += self._others(self._held[:at])
            self._held, self._inside = self._held[at + len(CLOSE) :], False
            return part, True
        while at >= 0:
            # A string in the arguments may hold the tag; then what is before it is no JSON yet.
            found = self._whole(_calls(self._held[:at]))
            if found.calls:
                self._held, self._inside = self._held[at + len(CLOSE) :], False
                return found, True
            at = self._held.find(CLOSE, at + 1)
        return part, False


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
