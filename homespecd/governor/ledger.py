"""What was learned, kept on disk: one small file per target.

A file holds one entry per environment (provider, threads, machine): the target's costs, and
one part per drafter, under the draft's digest. Numbers and digests only, never text.

A file is replaced as a whole: written beside, flushed to the disk, renamed over. Whenever the
process or the machine dies, either the old or the new one is there. Its first line has a checksum
of the rest, so one that was damaged by anything else is recognised, set aside, and rebuilt by use.
One that only cannot be read now, or that another version of the program wrote, is not damaged: the
first is left alone until it can be read, the second is replaced.

Not covered: two processes that keep the same target at once. Each replaces the file with what it
knows and with what it found of others; the last one wins, and a few measurements are lost.
"""

from __future__ import annotations

import hashlib
import json
import logging
import os
import re
import tempfile
import time
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

_NAME = "homespecd-ledger"
# Raised whenever a record's layout changes (what `MeasuredGovernor.to_record` returns).
_VERSION = 3
_HEAD = re.compile(rf"{_NAME} (\d{{1,9}}) ([0-9a-f]{{64}})")

# Bounds, least recently used first out: machines do not change often, drafts a little more.
_MOST_ENVIRONMENTS = 8
_MOST_DRAFTERS = 16
# Anything larger was not written by this program.
_MOST_BYTES = 4 * 1024 * 1024

# Nobody takes so long to write a file: one that is not there by now never will be. (Its writer is
# known by a number, which somebody else may have meanwhile.)
_ABANDONED_S = 3600.0

# Losing this much learning to a power cut is no loss worth more flushes than that.
_SAVE_EVERY_S = 15.0

Record = Mapping[str, Any]


@dataclass(frozen=True)
class Environment:
    """What measurements hold for, besides the models: the same target is another matter elsewhere.

    machine: whatever tells processors and accelerators apart (see `runtime`).
    """

    provider: str
    threads: int
    machine: str

    @property
    def key(self) -> str:
        return f"{self.provider}|{self.threads}|{self.machine}"


class _UnreadableError(Exception):
    """It may be whole, and cannot be read now: no descriptors left, no permission, a bad disk."""


class _OtherVersionError(ValueError):
    """It is whole, and its records are not what this program writes."""


class Ledger:
    """The file of one target, for one environment. Opening it never fails.

    Args:
        folder: the state directory; made when it is missing.
        target: the target's digest.
    """

    def __init__(self, folder: Path, *, target: str, environment: Environment) -> None:
        name = hashlib.sha256(target.encode()).hexdigest()[:32]
        self.path = folder / f"governor-{name}.json"
        self._target = target
        self._environment = environment
        self._saved_s: float | None = None
        self._said: set[str] = set()

    def load(self) -> Record | None:
        """What was saved for this environment, None when there is nothing (usable)."""
        self._sweep()
        try:
            entry = self._read().get(self._environment.key)
        except _UnreadableError:
            return None
        return entry if isinstance(entry, dict) else None

    def save(self, record: Record, *, now_s: float) -> bool:
        """Replace the entry of this environment; False (and one log line) when that fails.

        record: what `MeasuredGovernor.to_record` returns. Drafters that the file knows and the
        record does not are kept: they may come back.
        """
        self._saved_s = now_s
        try:
            entries = self._read()
            _enter(entries, self._environment.key, record)
            _replace(self.path, _packed(self._target, entries))
        except _UnreadableError:
            return False
        except (OSError, ValueError, TypeError) as error:
            self._say_once("cannot be written", str(error))
            return False
        self._said.clear()
        return True

    def due(self, now_s: float) -> bool:
        """Whether it is time to save again."""
        return self._saved_s is None or now_s - self._saved_s >= _SAVE_EVERY_S

    def _read(self) -> dict[str, Any]:
        """The file's entries; none where there is none of ours. Raises _UnreadableError."""
        try:
            if self.path.stat().st_size > _MOST_BYTES:
                raise ValueError(f"larger than {_MOST_BYTES} bytes")
            return _entries(self.path.read_bytes(), target=self._target)
        except (FileNotFoundError, NotADirectoryError):
            return {}
        except OSError as error:
            # What is in it is known to nobody: it is neither thrown away nor written over.
            self._say_once("cannot be read, and is left alone until it can be", str(error))
            raise _UnreadableError from error
        except _OtherVersionError as error:
            self._say_once("will be replaced, measuring again", str(error))
            return {}
        except (ValueError, KeyError, TypeError, RecursionError) as error:
            self._set_aside(error)
            return {}

    def _sweep(self) -> None:
        """Remove what a process that was killed while it saved has left behind."""
        with suppress(OSError):
            for left in self.path.parent.glob(f".{self.path.name}.*"):
                if _abandoned(left, now_s=time.time()):
                    left.unlink(missing_ok=True)

    def _set_aside(self, error: Exception) -> None:
        # One name: a disk that goes bad must not fill up with copies.
        aside = self.path.with_name(f"{self.path.name}.corrupt")
        try:
            self.path.replace(aside)
            kept = f"kept as {aside.name}"
        except OSError as also:
            kept = f"and cannot be moved: {also}"
        self._say_once("unusable, measuring again", f"{error}; {kept}")

    def _say_once(self, what: str, why: str) -> None:
        """In the log, once until it was written again."""
        if what not in self._said:
            logging.getLogger(__name__).warning("%s: %s: %s", self.path, what, why)
        self._said.add(what)


def _enter(entries: dict[str, Any], key: str, record: Record) -> None:
    """The record under its key, to the end: the most recently used."""
    old = entries.pop(key, None)
    entries[key] = {**record, "drafters": _merged(old, record.get("drafters", {}))}
    while len(entries) > _MOST_ENVIRONMENTS:
        del entries[next(iter(entries))]


def _merged(old: Any, drafters: Mapping[str, Any]) -> dict[str, Any]:
    known = old.get("drafters") if isinstance(old, dict) else None
    merged = dict(known) if isinstance(known, dict) else {}
    for key, part in drafters.items():
        merged.pop(key, None)  # to the end: the most recently used
        merged[key] = part
    while len(merged) > _MOST_DRAFTERS:
        del merged[next(iter(merged))]
    return merged


def _packed(target: str, entries: dict[str, Any]) -> bytes:
    """The whole file; the oldest entries go where it would be too large to be read again.

    Raises ValueError or TypeError: an entry cannot be written.
    """
    while True:
        data = _pack({"target": target, "entries": entries})
        if len(data) <= _MOST_BYTES:
            return data
        if len(entries) == 1:
            raise ValueError(f"it would be larger than {_MOST_BYTES} bytes")
        del entries[next(iter(entries))]


def _entries(data: bytes, *, target: str) -> dict[str, Any]:
    """Raises _OtherVersionError; ValueError, KeyError, TypeError: it is damaged, or no ledger."""
    content = _unpack(data)
    if content["target"] != target:
        raise ValueError("written for another target")
    entries = content["entries"]
    if not isinstance(entries, dict):
        raise ValueError("no entries")
    return entries


def _pack(content: Mapping[str, Any]) -> bytes:
    # allow_nan=False: what is not a number would be read back by nobody.
    body = json.dumps(content, separators=(",", ":"), allow_nan=False).encode()
    return f"{_NAME} {_VERSION} {_checksum(_VERSION, body)}\n".encode() + body


def _unpack(data: bytes) -> dict[str, Any]:
    head, _, body = data.partition(b"\n")
    said = _HEAD.fullmatch(head.decode("ascii", "replace"))
    if said is None or said[2] != _checksum(int(said[1]), body):
        raise ValueError("the checksum does not match")
    if int(said[1]) != _VERSION:
        writer = "an earlier" if int(said[1]) < _VERSION else "a later"
        raise _OtherVersionError(f"written by {writer} version of the program")
    content = json.loads(body)
    if not isinstance(content, dict):
        raise ValueError("not an object")
    return content


def _checksum(version: int, body: bytes) -> str:
    # The first version's did not cover its own number.
    covered = b"" if version == 1 else f"{version}\n".encode()
    return hashlib.sha256(covered + body).hexdigest()


def _abandoned(left: Path, *, now_s: float) -> bool:
    """Whether the one that began this file is gone, or has had far more time than it takes."""
    if now_s - left.stat().st_mtime > _ABANDONED_S:
        return True
    writer = left.name.split(".")[-2]
    return writer.isdigit() and not _lives(int(writer))


def _lives(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except (ProcessLookupError, OverflowError):
        return False
    except OSError:
        pass  # somebody else's
    return True


def _replace(path: Path, data: bytes) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    prefix = f".{path.name}.{os.getpid()}."
    handle, name = tempfile.mkstemp(prefix=prefix, dir=path.parent)
    temporary = Path(name)
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(path)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise
    folder = os.open(path.parent, os.O_RDONLY)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)
