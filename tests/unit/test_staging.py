"""A folder appears whole or not at all, and what killed processes left goes."""

from __future__ import annotations

import fcntl
import os
from pathlib import Path

import pytest

from homespecd.bundle.staging import staged_folder
from homespecd.errors import BundleError


def old_folder(path: Path) -> Path:
    (path / "half").mkdir(parents=True)
    os.utime(path, (1.0, 1.0))
    return path


def test_what_a_killed_process_left_goes_with_the_next_one(tmp_path: Path) -> None:
    left = old_folder(tmp_path / ".model.abc")
    other = old_folder(tmp_path / ".another.abc")
    young = tmp_path / ".model.young"
    young.mkdir()
    with staged_folder(tmp_path / "model", force=False) as staging:
        (staging / "file").touch()
    assert not left.exists()
    assert other.exists()
    assert young.exists()
    assert (tmp_path / "model" / "file").exists()


def test_what_is_at_work_stays(tmp_path: Path) -> None:
    busy = old_folder(tmp_path / ".model.abc")
    lock = os.open(busy, os.O_RDONLY)
    fcntl.flock(lock, fcntl.LOCK_EX)
    with staged_folder(tmp_path / "model", force=False):
        pass
    os.close(lock)
    assert busy.exists()


def test_of_two_at_once_the_first_wins(tmp_path: Path) -> None:
    def import_slowly() -> None:
        with staged_folder(tmp_path / "model", force=False) as slow:
            (slow / "slow").touch()
            with staged_folder(tmp_path / "model", force=False) as fast:
                (fast / "fast").touch()

    with pytest.raises(BundleError, match="exists already"):
        import_slowly()
    assert [path.name for path in (tmp_path / "model").iterdir()] == ["fast"]
    assert [path.name for path in tmp_path.iterdir()] == ["model"]
