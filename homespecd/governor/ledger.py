"""What was learned, kept on disk: one small file per target.

A file holds one entry per environment (provider, threads, machine): the target's costs, and
one part per drafter, under the draft's digest. Numbers and digests only, never text.

A file is replaced as a whole: written beside, flushed to the disk, renamed over. Whenever the
process or the machine dies, either the old or the new one is there. Its first line is a checksum of
the rest, so one that was damaged by anything else is recognised, set aside, and rebuilt by use.

Not covered: two processes that keep the same target at once. Each replaces the file with what it
knows and with what it found of others; the last one wins, and a few measurements are lost.
"""

from __future__ import annotations

import hashlib
import json
import logging
import os
import tempfile
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

_MAGIC = "homespecd-ledger 1"

# Bounds, least recently used first out: machines do not change often, drafts a little more.
_MOST_ENVIRONMENTS = 8
_MOST_DRAFTERS = 16
# Anything larger was not written by this program.
_MOST_BYTES = 4 * 1024 * 1024

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
        self._failed = False

    def load(self) -> Record | None:
        """What was saved for this environment, None when there is nothing (usable)."""
        self._sweep()
        entry = self._read().get(self._environment.key)
        return entry if isinstance(entry, dict) else None

    def save(self, record: Record, *, now_s: float) -> bool:
        """Replace the entry of this environment; False (and one log line) when that fails.

        record: what `MeasuredGovernor.to_record` returns. Drafters that the file knows and the
        record does not are kept: they may come back.
        """
        self._saved_s = now_s
        entries = self._read()
        old = entries.pop(self._environment.key, None)
        entry = dict(record)
        entry["drafters"] = _merged(old, record.get("drafters", {}))
        entries[self._environment.key] = entry
        while len(entries) > _MOST_ENVIRONMENTS:
            del entries[next(iter(entries))]
        try:
            _replace(self.path, _pack({"target": self._target, "entries": entries}))
        except OSError as error:
            if not self._failed:
                logging.getLogger(__name__).warning("%s: cannot be written: %s", self.path, error)
            self._failed = True
            return False
        self._failed = False
        return True

    def due(self, now_s: float) -> bool:
        """Whether it is time to save again."""
        return self._saved_s is None or now_s - self._saved_s >= _SAVE_EVERY_S

    def _read(self) -> dict[str, Any]:
        try:
            if self.path.stat().st_size > _MOST_BYTES:
                raise ValueError(f"larger than {_MOST_BYTES} bytes")
            content = _unpack(self.path.read_bytes())
            if content["target"] != self._target:
                raise ValueError("written for another target")
            entries = content["entries"]
            if not isinstance(entries, dict):
                raise ValueError("no entries")
            return entries
        except FileNotFoundError:
            return {}
        except (OSError, ValueError, KeyError, TypeError) as error:
            self._set_aside(error)
            return {}

    def _sweep(self) -> None:
        """Remove what a process that was killed while it saved has left behind."""
        with suppress(OSError):
            for left in self.path.parent.glob(f".{self.path.name}.*"):
                left.unlink(missing_ok=True)

    def _set_aside(self, error: Exception) -> None:
        # One name: a disk that goes bad must not fill up with copies.
        aside = self.path.with_name(f"{self.path.name}.corrupt")
        try:
            self.path.replace(aside)
            kept = f"kept as {aside.name}"
        except OSError as also:
            kept = f"and cannot be moved: {also}"
        logging.getLogger(__name__).warning(
            "%s: unusable (%s), %s; measuring again", self.path, error, kept
        )


def _merged(old: Any, drafters: Mapping[str, Any]) -> dict[str, Any]:
    known = old.get("drafters") if isinstance(old, dict) else None
    merged = dict(known) if isinstance(known, dict) else {}
    for key, part in drafters.items():
        merged.pop(key, None)  # to the end: the most recently used
        merged[key] = part
    while len(merged) > _MOST_DRAFTERS:
        del merged[next(iter(merged))]
    return merged


def _pack(content: Mapping[str, Any]) -> bytes:
    # allow_nan=False: what is not a number would be read back by nobody.
    body = json.dumps(content, separators=(",", ":"), allow_nan=False).encode()
    return f"{_MAGIC} {hashlib.sha256(body).hexdigest()}\n".encode() + body


def _unpack(data: bytes) -> dict[str, Any]:
    head, _, body = data.partition(b"\n")
    if head != f"{_MAGIC} {hashlib.sha256(body).hexdigest()}".encode():
        raise ValueError("the checksum does not match")
    content = json.loads(body)
    if not isinstance(content, dict):
        raise ValueError("not an object")
    return content


def _replace(path: Path, data: bytes) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    handle, name = tempfile.mkstemp(prefix=f".{path.name}.", dir=path.parent)
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
