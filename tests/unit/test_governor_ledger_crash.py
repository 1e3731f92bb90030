"""The ledger when its process or the machine dies: the old record is there, or the new one."""

from __future__ import annotations

import os
import signal
import sys
from pathlib import Path
from types import FrameType
from typing import Any

import pytest

from homespecd.governor.ledger import Environment, Ledger


def ledger(folder: Path) -> Ledger:
    here = Environment(provider="cpu", threads=2, machine="x86-64 avx512-vnni")
    return Ledger(folder, target="sha256:t", environment=here)


def record(number: int) -> dict[str, object]:
    """As large as one that has seen many kinds of requests."""
    kinds = {str(key): [number, 0.25, 0.125, 1.5, 96.0, 0.75] for key in range(3000)}
    return {"steps": {"1": number}, "drafters": {"sha256:d": {"fares": kinds}}}


def test_every_byte_is_on_the_disk_before_the_name_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What a disk was told, in its order: a machine may stop after any of it."""
    told: list[tuple[str, str, int]] = []
    one = ledger(tmp_path)
    fsync, rename = os.fsync, os.replace

    def flushed(handle: int) -> None:
        path = Path(f"/proc/self/fd/{handle}").readlink()
        size = 0 if path.is_dir() else path.stat().st_size
        told.append(("fsync", "folder" if path.is_dir() else path.name, size))
        fsync(handle)

    def renamed(before: Path, after: Path) -> None:
        told.append(("replace", Path(before).name, Path(before).stat().st_size))
        assert Path(after) == one.path
        rename(before, after)

    monkeypatch.setattr(os, "fsync", flushed)
    monkeypatch.setattr(os, "replace", renamed)
    # A short one may wait in a buffer.
    short: dict[str, object] = {"drafters": {}}
    for new in (short, record(2)):
        told.clear()
        assert one.save(new, now_s=0.0)

        beside, size = told[0][1], one.path.stat().st_size
        assert beside != one.path.name
        assert told == [("fsync", beside, size), ("replace", beside, size), ("fsync", "folder", 0)]
    assert one.load() == record(2)


def touches_files(function: Any) -> bool:
    return function.__module__ in ("posix", "io") or function.__qualname__.startswith("Buffered")


def save_and_die(folder: Path, at: int) -> None:
    """Save, and be killed before the call with this number, of those that may touch files."""
    reached = 0

    def count(_frame: FrameType, event: str, function: Any) -> None:
        nonlocal reached
        reached += event == "c_call" and touches_files(function)
        if reached == at:
            os.kill(os.getpid(), signal.SIGKILL)

    one, new = ledger(folder), record(2)
    sys.setprofile(count)
    one.save(new, now_s=0.0)
    sys.setprofile(None)


def killed_at(folder: Path, at: int) -> bool:
    """Whether it came to be killed; False: it had saved before."""
    child = os.fork()
    if child == 0:
        save_and_die(folder, at)
        os._exit(0)
    _, status = os.waitpid(child, 0)
    assert os.WIFSIGNALED(status) or os.WEXITSTATUS(status) == 0
    return os.WIFSIGNALED(status)


def test_it_survives_being_killed_anywhere(tmp_path: Path) -> None:
    """kill -9 before each call that touches files: what is there is whole, nothing is left."""
    one = ledger(tmp_path)
    assert one.save(record(1), now_s=0.0)
    old = one.path.read_bytes()
    found = []
    at = 1
    while killed_at(tmp_path, at):
        loaded = one.load()
        assert loaded in (record(1), record(2)), f"killed at call {at}"
        assert list(tmp_path.iterdir()) == [one.path]
        found.append(loaded == record(2))
        one.path.write_bytes(old)
        at += 1

    assert found == sorted(found)  # the old one up to some call, the new one from there on
    assert set(found) == {False, True}
    assert one.load() == record(2)
