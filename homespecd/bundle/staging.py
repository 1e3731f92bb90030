"""A folder that appears whole or not at all.

Work happens in a hidden folder beside the destination; only when all of it is on the disk is it
renamed into place. Whatever ends the work early (a full disk, Ctrl-C, a bad file) removes it. What
a killed process left is removed by the next one to work on the same destination: a folder in use
is locked by its process, and the lock ends with it.
"""

from __future__ import annotations

import fcntl
import os
import shutil
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from homespecd.errors import BundleError

# A folder is made a moment before it is locked; one that is older and unlocked is nobody's.
_ABANDONED_AFTER_S = 60.0


@contextmanager
def staged_folder(destination: Path, *, force: bool) -> Iterator[Path]:
    """Yield an empty folder that becomes `destination` when the block ends well.

    Args:
        force: replace what is there; it stays until the new folder is complete.

    Raises:
        BundleError: the destination exists without `force`, or the disk refused something.
    """
    if not force:
        _refuse_existing(destination)
    staging: Path | None = None
    lock: int | None = None
    try:
        destination.parent.mkdir(parents=True, exist_ok=True)
        _sweep(destination)
        staging = Path(tempfile.mkdtemp(prefix=f".{destination.name}.", dir=destination.parent))
        staging.chmod(0o755)  # mkdtemp's 0700 would hide the model from the service's user
        lock = os.open(staging, os.O_RDONLY)
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield staging
        _sync_tree(staging)
        if not force:
            _refuse_existing(destination)  # somebody else may have been faster
        _replace(staging, destination)
    except OSError as error:
        raise BundleError(
            f"cannot be written: {error.strerror or error}",
            where=str(destination),
            hint="is there room on the disk, and may this user write there?",
        ) from error
    finally:
        if lock is not None:
            os.close(lock)
        if staging is not None:
            shutil.rmtree(staging, ignore_errors=True)


def _refuse_existing(destination: Path) -> None:
    if destination.exists():
        raise BundleError(
            "exists already", where=str(destination), hint="choose another name, or remove it first"
        )


def _sweep(destination: Path) -> None:
    """Remove what killed processes left of earlier work on this destination."""
    for left in destination.parent.iterdir():
        if not left.name.startswith(f".{destination.name}.") or not left.is_dir():
            continue
        if time.time() - left.stat().st_mtime < _ABANDONED_AFTER_S:
            continue
        descriptor = os.open(left, os.O_RDONLY)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            shutil.rmtree(left, ignore_errors=True)
        except BlockingIOError:
            pass  # at work, and slow
        finally:
            os.close(descriptor)


def _replace(staging: Path, destination: Path) -> None:
    """Rename into place; a folder cannot be renamed over a full one, so the old one steps aside."""
    if not destination.exists():
        staging.rename(destination)
    else:
        aside = Path(tempfile.mkdtemp(prefix=f".{destination.name}.old.", dir=destination.parent))
        destination.rename(aside / "old")
        try:
            staging.rename(destination)
        except OSError:
            (aside / "old").rename(destination)
            raise
        finally:
            shutil.rmtree(aside, ignore_errors=True)
    _sync(destination.parent)


def _sync_tree(folder: Path) -> None:
    for path in folder.rglob("*"):
        _sync(path)
    _sync(folder)


def _sync(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
