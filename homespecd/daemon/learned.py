"""What models were measured to hold on this machine, kept in the state directory.

A measured value belongs to a model as it lies on the disk and to the settings that decide about
memory. It replaces the estimate at the next load, after a restart too. Losing the file costs one
load by estimate, so nothing here is ever an error.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import logging
import os
from dataclasses import asdict, dataclass, replace
from pathlib import Path

from homespecd.daemon.estimate import Estimate, estimate
from homespecd.worker.messages import WorkerSettings

_FILE = "memory.json"
_MOST_BYTES = 1 << 20
_MOST_MODELS = 200
# No machine holds so much: a number that was never measured, and that would keep the model away.
_NO_SIZE = 1 << 50
# Less than this more is not worth a write to the disk while a model runs.
_GROWTH = 1.05

# Of what was once needed, so much is remembered from one load to the next: a short chat after a
# long one is no reason to forget what a long one takes.
_FORGETTING = 0.9

_SUFFIXES = (".onnx", ".data", ".onnx_data", ".bin", ".json")


@dataclass(frozen=True)
class Needs:
    """What a model will need, and the key under which that is learned."""

    key: str
    estimate: Estimate


def memory_key(settings: WorkerSettings) -> str:
    """What the memory of a model depends on, as a digest. Looks at the disk (names and sizes)."""
    shape = replace(settings, name="", state_dir="", device_memory_bytes=None).to_frame()
    shape["drafters"] = [one for one in shape["drafters"] if one["path"]]
    shape["speculation"] = settings.speculation.enabled
    sha = hashlib.sha256(json.dumps(shape, sort_keys=True, default=str).encode())
    for folder in (settings.path, *(one.path for one in settings.drafters if one.path)):
        for file in sorted(_files(Path(folder))):
            with contextlib.suppress(OSError):
                stat = file.stat()
                sha.update(f"{file}\0{stat.st_size}\0{stat.st_mtime_ns}\0".encode())
    return sha.hexdigest()[:32]


class LearnedMemory:
    """Estimates by key. `note` keeps them in memory, `save` writes them down if they changed."""

    def __init__(self, state_dir: Path) -> None:
        self.state_dir = state_dir
        self._file = state_dir / _FILE
        self._known = self._read()
        self._changed = False

    def needs(self, settings: WorkerSettings) -> Needs:
        """What was measured for these settings before, else an estimate. Looks at the disk.

        A target that was measured without drafts, is no other one
        for having a new draft: only that is estimated then.
        """
        key = memory_key(settings)
        if (known := self._known.get(key)) is not None:
            return Needs(key, known)
        guess = estimate(settings)
        alone = self._known.get(memory_key(replace(settings, drafters=())))
        if alone is not None:
            guess = replace(guess, target_bytes=alone.target_bytes)
        return Needs(key, guess)

    def get(self, key: str) -> Estimate | None:
        """What is known under a key."""
        return self._known.get(key)

    def note(self, key: str, measured: Estimate, *, exactly: bool) -> bool:
        """Remember a measured value; True when it was news.

        Growth of a few percent is left out, unless `exactly`, which also takes less than what is
        known, a little at a time.
        """
        known = self._known.get(key)
        if known is not None and exactly:
            least = int(known.target_bytes * _FORGETTING)
            measured = replace(measured, target_bytes=max(measured.target_bytes, least))
        if known == measured:
            return False
        if known is not None and not exactly:
            grown = measured.target_bytes > known.target_bytes * _GROWTH
            if not grown and measured.draft_bytes <= known.draft_bytes * _GROWTH:
                return False
        # To the end: the oldest go first when there are too many.
        self._known.pop(key, None)
        self._known[key] = measured
        self._changed = True
        return True

    def save(self) -> None:
        """Write what was noted. May be called on any thread, one at a time."""
        if not self._changed:
            return
        self._changed = False
        kept = list(self._known.items())[-_MOST_MODELS:]
        text = json.dumps({key: asdict(one) for key, one in kept}, indent=1)
        beside = self._file.with_name(f".{_FILE}.{os.getpid()}")
        try:
            self._file.parent.mkdir(parents=True, exist_ok=True)
            beside.write_text(text + "\n", encoding="utf-8")
            beside.replace(self._file)
        except OSError as error:
            with contextlib.suppress(OSError):
                beside.unlink(missing_ok=True)
            logging.getLogger(__name__).warning(
                "what models hold cannot be written down: %s: %s", self._file, error.strerror
            )

    def _read(self) -> dict[str, Estimate]:
        try:
            if self._file.stat().st_size > _MOST_BYTES:
                return {}
            content = json.loads(self._file.read_text(encoding="utf-8"))
            return {str(key): _estimate(one) for key, one in content.items()}
        except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError):
            return {}


def _estimate(entry: dict[str, int]) -> Estimate:
    values = {name: entry[name] for name in ("target_bytes", "draft_bytes", "floor_bytes")}
    if not all(type(value) is int and 0 <= value < _NO_SIZE for value in values.values()):
        raise ValueError("not sizes")
    return Estimate(**values)


def _files(folder: Path) -> list[Path]:
    try:
        return [
            file
            # Not `packed`: a load may make it, and its memory is still that model's.
            for place in (folder, folder / "onnx")
            if place.is_dir()
            for file in place.iterdir()
            if file.suffix in _SUFFIXES
        ]
    except OSError:
        return []
