"""Calls read while they are written: the name as soon as it is there, then the arguments' own text.

Only the common way of writing a call can be read so: `{"name": "…", "arguments": {…}}`, in this
order, alone or one after the other. `tool_calls` waits for the end of all others.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from enum import Enum, auto


@dataclass(frozen=True)
class CallPiece:
    """Some of a call. index: which of the answer's; name: given with the first piece alone.

    arguments: what comes next of the JSON text of an object; that of a whole answer is cut off
    where the answer is.
    """

    index: int
    name: str | None
    arguments: str


class Place(Enum):
    """Where in the calls the text has come to."""

    BEFORE = auto()  # a call has to begin here
    ARGUMENTS = auto()
    AFTER = auto()  # another call may begin here
    ELSEWHERE = auto()  # no call begins here


def _parts(lead: str, key: str) -> Sequence[str]:
    """The beginning of a call, as patterns of what follows each other."""
    blank = r"\s*"
    return [
        lead, r"\{", blank, *'"name"', blank, ":", blank, '"', r'[^"\\\x00-\x1f]{1,200}', '"',
        blank, ",", blank, *f'"{key}"', blank, ":", blank, r"\{",
    ]  # fmt: skip


def _beginnings(parts: Sequence[str]) -> str:
    """A pattern of every text that can be gone on with to all of `parts`."""
    pattern = ""
    for part in reversed(parts):
        pattern = f"{part}(?:{pattern})?" if pattern else f"{part}"
    return f"(?:{pattern})?"


_NAME = re.compile(r'"name"\s*:\s*"([^"]*)"')
_LEADS = {Place.BEFORE: r"[\s\[]*", Place.AFTER: r"[\s\]},;\[]*"}
_HEADS = {
    place: [re.compile("".join(_parts(lead, key))) for key in ("arguments", "parameters")]
    for place, lead in _LEADS.items()
}
_BEGINNINGS = {
    place: [re.compile(_beginnings(_parts(lead, key))) for key in ("arguments", "parameters")]
    for place, lead in _LEADS.items()
}
_CLOSING = re.compile(_LEADS[Place.AFTER])


class CallReader:
    """Reads from where calls begin to where something else does.

    Args:
        first: the number of the first call.
        names: who can be called; None = anybody.
    """

    def __init__(self, first: int = 0, *, names: Collection[str] | None = None) -> None:
        self._names = names
        self.place = Place.BEFORE
        self.count = 0
        self._next = first
        self._object = _Object()

    def read(self, text: str) -> tuple[tuple[CallPiece, ...], str]:
        """The pieces of calls in `text`, and what of it must be seen again with more behind it; all
        that is left, once `place` is ELSEWHERE."""
        pieces: list[CallPiece] = []
        while text:
            if self.place is Place.ARGUMENTS:
                end = self._object.end(text)
                pieces.append(CallPiece(self._next - 1, None, text[:end]))
                if end is None:
                    return tuple(pieces), ""
                self.place, text = Place.AFTER, text[end:]
                continue
            if self.place is Place.ELSEWHERE:
                break
            heads = [head for one in _HEADS[self.place] if (head := one.match(text))]
            if not heads:
                if not any(one.fullmatch(text) for one in _BEGINNINGS[self.place]):
                    self.place = Place.ELSEWHERE
                break
            name = _NAME.search(heads[0].group())
            assert name is not None
            if self._names is not None and name[1] not in self._names:
                self.place = Place.ELSEWHERE
                break
            pieces.append(CallPiece(self._next, name[1], ""))
            self._next += 1
            self.count += 1
            self._object = _Object()
            self.place, text = Place.ARGUMENTS, text[heads[0].end() - 1 :]
        return tuple(pieces), text


def without_closing(text: str) -> str:
    """What follows a call, without what ends it."""
    closing = _CLOSING.match(text)
    assert closing is not None
    return text[closing.end() :]


class _Object:
    """Where a JSON object ends that comes in pieces."""

    def __init__(self) -> None:
        self._depth = 0
        self._in_string = self._escaped = False

    def end(self, text: str) -> int | None:
        """The length of `text` up to the object's last brace, None if it goes on."""
        for at, character in enumerate(text):
            if self._in_string:
                if self._escaped:
                    self._escaped = False
                elif character == "\\":
                    self._escaped = True
                elif character == '"':
                    self._in_string = False
            elif character == '"':
                self._in_string = True
            elif character in "{[":
                self._depth += 1
            elif character in "}]":
                self._depth -= 1
                if self._depth == 0:
                    return at + 1
        return None
