"""A cgroup of its own for each worker, where the service manager lets us make them.

With `Delegate=memory` in the unit (cgroup v2) the kernel itself keeps a model within its cap, and
kills the worker of that model and nothing else when it cannot. Elsewhere there are no cells, and
the supervisor measures.
"""

from __future__ import annotations

import contextlib
import itertools
import logging
import os
import re
from pathlib import Path

# cgroup v2 forbids processes beside child groups: the supervisor moves into one of this name.
_OWN = "supervisor"

_CGROUP_ROOT = Path("/sys/fs/cgroup")
_VMSTAT = Path("/proc/vmstat")


class Cell:
    """The cgroup of one worker."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def limit(self, max_bytes: int) -> None:
        """Set the most the kernel lets it hold."""
        _write(self._folder / "memory.max", str(max_bytes))

    def enter(self, pid: int) -> None:
        """Move a process that has not begun to work here."""
        _write(self._folder / "cgroup.procs", str(pid))

    @property
    def oom_kills(self) -> int:
        """Processes of this cell that the kernel killed for want of memory."""
        return _counter(self._folder / "memory.events", "oom_kill")

    def remove(self) -> None:
        """Once nothing runs in it any more."""
        with contextlib.suppress(OSError):
            self._folder.rmdir()


class Cells:
    """Makes cells below the service's own cgroup. Without delegation it makes none."""

    def __init__(self, folder: Path | None) -> None:
        self._folder = folder
        self._numbers = itertools.count(1)

    @classmethod
    def below_own_cgroup(
        cls, root: Path = _CGROUP_ROOT, own_cgroup: Path = Path("/proc/self/cgroup")
    ) -> Cells:
        """Take over the delegated cgroup, if there is one: the supervisor moves into a child."""
        log = logging.getLogger(__name__)
        folder = _delegated(root, own_cgroup)
        if folder is None:
            return cls(None)
        try:
            own = folder / _OWN
            own.mkdir(exist_ok=True)
            _write(own / "cgroup.procs", str(os.getpid()))
            _write(folder / "cgroup.subtree_control", "+memory")
            for left in folder.glob("worker-*"):
                Cell(left).remove()
        except OSError as error:
            log.info("models have no cgroups of their own: %s: %s", folder, error.strerror)
            return cls(None)
        log.info("each model has a cgroup of its own, below %s", folder)
        return cls(folder)

    def open(self, name: str, *, max_bytes: int) -> Cell | None:
        """A new cell for a worker of model `name`; None where there are none."""
        if self._folder is None:
            return None
        shown = re.sub(r"[^A-Za-z0-9_.-]", "_", name)[:64]
        folder = self._folder / f"worker-{next(self._numbers)}-{shown}"
        try:
            folder.mkdir()
            cell = Cell(folder)
            cell.limit(max_bytes)
            with contextlib.suppress(OSError):
                _write(folder / "memory.oom.group", "1")
        except OSError as error:
            logging.getLogger(__name__).warning("%s: no cgroup: %s", folder, error.strerror)
            return None
        return cell


def system_oom_kills(source: Path = _VMSTAT) -> int:
    """How often the kernel killed a process for want of memory, anywhere on this machine."""
    return _counter(source, "oom_kill")


def _delegated(root: Path, own_cgroup: Path) -> Path | None:
    """The cgroup v2 folder that was given to us, with memory to hand on; None when none was."""
    try:
        lines = own_cgroup.read_text().splitlines()
    except OSError:
        return None
    [path] = [line[3:] for line in lines if line.startswith("0::/")] or [""]
    if path in ("", "/"):
        return None  # not in a unit: nothing here is ours
    folder = root / path.lstrip("/")
    try:
        # In a terminal's cgroup, say, there are others: it is not ours to divide.
        if (folder / "cgroup.procs").read_text().split() != [str(os.getpid())]:
            return None
        if folder.name == _OWN:
            folder = folder.parent  # systemd's DelegateSubgroup=, or our own earlier move
        controllers = (folder / "cgroup.controllers").read_text().split()
    except OSError:
        return None
    return folder if "memory" in controllers and os.access(folder, os.W_OK) else None


def _write(file: Path, text: str) -> None:
    # These are the kernel's: opened, never created.
    with file.open("r+") as stream:
        stream.write(text)


def _counter(file: Path, name: str) -> int:
    try:
        for line in file.read_text().splitlines():
            key, _, value = line.partition(" ")
            if key == name:
                return int(value)
    except (OSError, ValueError):
        pass
    return 0
