"""On which line of a TOML text each key stands, which `tomllib` does not tell.

A scanner, not a parser: it is only given text that `tomllib` has accepted, so it never has to say
what is wrong, only where things are. Values are skipped, not read.
"""

from __future__ import annotations

import re
import tomllib
from collections.abc import Mapping

# Keys, and indices into arrays.
KeyPath = tuple[str | int, ...]

_BLANK = re.compile(r"[ \t]*")
_BLANK_OR_COMMENT = re.compile(r"(?:[ \t\n]+|#[^\n]*)*")
_BARE_KEY = re.compile(r"[^\s.=\]#\"',{}\[]+")
_SCALAR = re.compile(r"[^,\]}#\n]*")
_QUOTED = re.compile(r'"(?:[^"\\\n]|\\.)*"|' r"'[^'\n]*'")
# Up to two quotes right before the closing three belong to the text.
_MULTI_LINE = {
    '"""': re.compile(r'"""(?:[^"\\]|\\[\s\S]|"{1,2}(?!"))*"{3,5}'),
    "'''": re.compile(r"'''(?:[^']|'{1,2}(?!'))*'{3,5}"),
}


def locate(text: str) -> dict[KeyPath, int]:
    """The 1-based line of every key, table header and array item of valid TOML.

    A table that is opened more than once (its header, then dotted keys) has its first line.
    """
    return _Scanner(text.replace("\r\n", "\n")).scan()


def nearest_line(lines: Mapping[KeyPath, int], key: KeyPath) -> int:
    """The line of `key`, else of the innermost table around it that has one, else 0."""
    for length in range(len(key), 0, -1):
        if key[:length] in lines:
            return lines[key[:length]]
    return 0


class _Scanner:
    def __init__(self, text: str) -> None:
        self._text = text
        self._at = 0
        self._line = 1
        self._lines: dict[KeyPath, int] = {}
        self._tables_in: dict[KeyPath, int] = {}  # arrays of tables → how many so far

    def scan(self) -> dict[KeyPath, int]:
        table: KeyPath = ()
        self._skip(_BLANK_OR_COMMENT)
        while self._at < len(self._text):
            table = self._header() if self._peek() == "[" else self._pair(table)
            self._skip(_BLANK_OR_COMMENT)
        return self._lines

    def _header(self) -> KeyPath:
        line = self._line
        is_array = self._text.startswith("[[", self._at)
        self._at += 2 if is_array else 1
        names = self._dotted_key()
        self._at += 2 if is_array else 1
        path: KeyPath = ()
        for name in names[:-1]:
            path = self._enter((*path, name), line)
        path = (*path, names[-1])
        if not is_array:
            self._note(path, line)
            return path
        self._note(path, line)
        index = self._tables_in.get(path, 0)
        self._tables_in[path] = index + 1
        self._note((*path, index), line)
        return (*path, index)

    def _enter(self, path: KeyPath, line: int) -> KeyPath:
        """A table on the way to another; of an array of tables it is the last one."""
        self._note(path, line)
        return (*path, self._tables_in[path] - 1) if path in self._tables_in else path

    def _pair(self, table: KeyPath) -> KeyPath:
        line = self._line
        path = table
        for name in self._dotted_key():
            path = (*path, name)
            self._note(path, line)
        self._at += 1  # the equals sign
        self._skip(_BLANK)
        self._value(path)
        return table

    def _dotted_key(self) -> list[str]:
        names = []
        while True:
            self._skip(_BLANK)
            quoted = _QUOTED.match(self._text, self._at)
            if quoted:
                # Escapes are tomllib's business.
                names.append(str(tomllib.loads(f"key = {quoted[0]}")["key"]))
                self._at = quoted.end()
            else:
                bare = _BARE_KEY.match(self._text, self._at)
                assert bare is not None, "not valid TOML"
                names.append(bare[0])
                self._at = bare.end()
            self._skip(_BLANK)
            if self._peek() != ".":
                return names
            self._at += 1

    def _value(self, path: KeyPath) -> None:
        first = self._peek()
        if first == "[":
            self._items(path)
        elif first == "{":
            self._inline_table(path)
        elif self._text[self._at : self._at + 3] in _MULTI_LINE:
            self._skip(_MULTI_LINE[self._text[self._at : self._at + 3]])
        else:
            self._skip(_QUOTED if first in "\"'" else _SCALAR)

    def _items(self, path: KeyPath) -> None:
        self._at += 1
        index = 0
        while True:
            self._skip(_BLANK_OR_COMMENT)
            if self._peek() == "]":
                self._at += 1
                return
            if self._peek() == ",":
                self._at += 1
                continue
            item = (*path, index)
            self._note(item, self._line)
            self._value(item)
            index += 1

    def _inline_table(self, path: KeyPath) -> None:
        self._at += 1
        while True:
            self._skip(_BLANK_OR_COMMENT)
            if self._peek() == "}":
                self._at += 1
                return
            if self._peek() == ",":
                self._at += 1
                continue
            self._pair(path)

    def _peek(self) -> str:
        return self._text[self._at : self._at + 1]

    def _skip(self, pattern: re.Pattern[str]) -> None:
        match = pattern.match(self._text, self._at)
        assert match is not None, "not valid TOML"
        self._line += self._text.count("\n", self._at, match.end())
        self._at = match.end()

    def _note(self, path: KeyPath, line: int) -> None:
        self._lines.setdefault(path, line)
