"""A folder that appears whole or not at all.

Work happens in a hidden folder beside the destination; only when all of it is on the disk is it
renamed into place. Whatever ends the work early (a full disk, Ctrl-C, a bad file) removes it.
"""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from homespecd.errors import BundleError


@contextmanager
def staged_folder(destination: Path, *, force: bool) -> Iterator[Path]:
    """Yield an empty folder that becomes `destination` when the block ends well.

    Args:
        force: replace what is there; it stays until the new folder is complete.

    Raises:
        BundleError: the destination exists without `force`, or the disk refused something.
    """
    if destination.exists() and not force:
        raise BundleError(
            "exists already", where=str(destination), hint="choose another name, or remove it first"
        )
    staging: Path | None = None
    try:
        destination.parent.mkdir(parents=True, exist_ok=True)
        staging = Path(tempfile.mkdtemp(prefix=f".{destination.name}.", dir=destination.parent))
        staging.chmod(0o755)  # mkdtemp's 0700 would hide the model from the service's user
        yield staging
        _sync_tree(staging)
        _replace(staging, destination)
    except OSError as error:
        raise BundleError(
            f"cannot be written: {error.strerror or error}",
            where=str(destination),
            hint="is there room on the disk, and may this user write there?",
        ) from error
    finally:
        if staging is not None:
            shutil.rmtree(staging, ignore_errors=True)


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
