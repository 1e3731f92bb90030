"""The files of a configuration, read and merged, with the place of every key.

The main file comes first, then `conf.d/*.toml` beside it in the order of their names; a later file
may set a key again. Nothing here knows what the keys mean.
"""

from __future__ import annotations

import os
import re
import tomllib
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, BinaryIO

from homespecd.config.lines import KeyPath, locate
from homespecd.errors import Problem

# A configuration is kilobytes; what is larger is some other file, or a device without an end.
MAX_FILE_BYTES = 4 * 1024 * 1024


@dataclass(frozen=True)
class Place:
    file: str
    line: int


@dataclass
class Document:
    """All files as one.

    complete: every file could be read, so that a name which is nowhere is really missing.
    """

    main: Path
    data: dict[str, Any] = field(default_factory=dict)
    places: dict[KeyPath, Place] = field(default_factory=dict)
    problems: list[Problem] = field(default_factory=list)
    complete: bool = True

    def place(self, key: KeyPath) -> Place:
        """Where `key` stands, or the innermost table around it; line 0 when neither is there."""
        for length in range(len(key), 0, -1):
            if key[:length] in self.places:
                return self.places[key[:length]]
        return Place(str(self.main), 0)

    def problem(self, key: KeyPath, message: str, hint: str = "") -> None:
        self.problems.append(self.described(key, message, hint))

    def described(self, key: KeyPath, message: str, hint: str = "") -> Problem:
        """A fault with its place, fit to be shown."""
        place = self.place(key)
        shown = (one_line(text) for text in (show_key(key), message, hint))
        return Problem(place.file, place.line, *shown)


def one_line(text: str) -> str:
    """Text from a file, fit for a terminal and a log: whatever does not print is escaped."""
    return "".join(
        one if one.isprintable() else one.encode("unicode_escape").decode() for one in text
    )


def show_key(key: KeyPath) -> str:
    """A key as TOML writes it: `models."my model".drafters[0]`."""
    text = ""
    for part in key:
        if isinstance(part, int):
            text += f"[{part}]"
        else:
            bare = re.fullmatch(r"[A-Za-z0-9_-]+", part)
            text += ("." if text else "") + (part if bare else f'"{part}"')
    return text


def read(path: Path) -> Document:
    """Read `path` and its drop-ins. Faults are in `problems`; nothing is raised."""
    document = Document(path)
    for file in (path, *_drop_ins(path, document)):
        text = _text(file, document)
        data = None if text is None else _parse(file, text, document)
        if text is None or data is None:
            document.complete = False
            continue
        lines = {key: Place(str(file), line) for key, line in locate(text).items()}
        _merge(document, data, lines, document.data, ())
    return document


def opened(file: Path) -> BinaryIO:
    """`file`, open for reading. A pipe to which nobody writes is empty, and not waited for: whoever
    waits for it hears of no other change."""

    def at_once(name: str, flags: int) -> int:
        return os.open(name, flags | os.O_NONBLOCK)

    stream = open(file, "rb", opener=at_once)  # noqa: SIM115 - a Path has no opener
    os.set_blocking(stream.fileno(), True)
    return stream


def drop_in_files(path: Path) -> list[Path]:
    """`conf.d/*.toml` beside `path`, in the order in which they are read; [] when unreadable."""
    try:
        return _list_drop_ins(path)
    except OSError:
        return []


def _list_drop_ins(path: Path) -> list[Path]:
    folder = path.parent / "conf.d"
    if not folder.is_dir():
        return []
    return sorted(
        file
        for file in folder.iterdir()
        if file.suffix == ".toml" and not file.name.startswith(".")
    )


def _drop_ins(path: Path, document: Document) -> list[Path]:
    try:
        return _list_drop_ins(path)
    except OSError as error:
        folder = path.parent / "conf.d"
        document.problems.append(Problem(str(folder), 0, "", f"cannot be listed: {error.strerror}"))
        document.complete = False
        return []


def _text(file: Path, document: Document) -> str | None:
    def fault(message: str, hint: str = "", line: int = 0) -> None:
        document.problems.append(Problem(str(file), line, "", message, hint))

    try:
        with opened(file) as stream:
            raw = stream.read(MAX_FILE_BYTES + 1)
    except FileNotFoundError:
        fault("there is no such file")
        return None
    except IsADirectoryError:
        fault("is a folder, not a file")
        return None
    except PermissionError:
        fault("cannot be read: permission denied", "see its owner and mode with ls -l")
        return None
    except (OSError, ValueError) as error:
        fault(f"cannot be read: {getattr(error, 'strerror', None) or error}")
        return None
    if len(raw) > MAX_FILE_BYTES:
        fault(f"is larger than {MAX_FILE_BYTES} bytes, so it is no configuration file")
        return None
    try:
        # Editors on Windows put a byte-order mark in front.
        return raw.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = raw.count(b"\n", 0, error.start) + 1
        fault(f"byte 0x{raw[error.start]:02x} is not UTF-8", "save the file as UTF-8", line)
        return None


def _parse(file: Path, text: str, document: Document) -> dict[str, Any] | None:
    try:
        return tomllib.loads(text)
    except RecursionError:
        document.problems.append(Problem(str(file), 0, "", "is nested too deeply"))
    except ValueError as error:
        message, line = _syntax(str(error), text)
        again = message.startswith(("Cannot declare", "Cannot overwrite"))
        hint = "it is there already: leave one of the two out" if again else ""
        document.problems.append(Problem(str(file), line, "", f"not valid TOML: {message}", hint))
    return None


def _syntax(message: str, text: str) -> tuple[str, int]:
    """tomllib's message without its place, and the line of it."""
    at = re.search(r" \(at line (\d+), column (\d+)\)$", message)
    if at:
        return f"{message[: at.start()]} (column {at[2]})", int(at[1])
    at_end = message.endswith(" (at end of document)")
    last = text.rstrip("\r\n").count("\n") + 1
    return message.removesuffix(" (at end of document)"), last if at_end else 0


def _merge(
    document: Document,
    new: dict[str, Any],
    lines: dict[KeyPath, Place],
    into: dict[str, Any],
    path: KeyPath,
) -> None:
    """Put `new` over `into`: tables are joined, everything else is replaced."""
    for name, value in new.items():
        key = (*path, name)
        old = into.get(name)
        if isinstance(old, dict) and isinstance(value, dict):
            _merge(document, value, lines, old, key)
            continue
        if name in into and isinstance(old, dict) != isinstance(value, dict):
            what = "a table" if isinstance(old, dict) else "a value"
            before = document.place(key)
            here = lines[key]
            document.problems.append(
                Problem(
                    here.file,
                    here.line,
                    show_key(key),
                    f"is {what} in {before.file}:{before.line} and cannot be replaced",
                )
            )
            continue
        into[name] = value
        for stale in list(_below(document.places, key)):
            del document.places[stale]
        document.places.update({one: lines[one] for one in _below(lines, key)})


def _below(places: dict[KeyPath, Place], key: KeyPath) -> Iterator[KeyPath]:
    return (one for one in places if one[: len(key)] == key)
