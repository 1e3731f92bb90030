"""What the kernel says of a process, read cheaply enough to ask several times a second."""

from __future__ import annotations

import os
from dataclasses import dataclass, replace
from pathlib import Path

_PROC = Path("/proc")
_TICKS_PER_S = float(os.sysconf("SC_CLK_TCK"))

# Of the fields of /proc/PID/stat that follow the name: see proc_pid_stat(5).
_STATE, _MAJOR_FAULTS, _USER_TICKS, _SYSTEM_TICKS = 0, 9, 11, 12


@dataclass(frozen=True)
class ProcessState:
    """letter: R running, S asleep, D waiting for the disk, T or t stopped, Z dead. "" = gone.

    cpu_s: processor time used by all its threads. major_faults: pages it waited for the disk for.
    ran_ns: processor time of its first thread, exactly: it moves as soon as that runs at all.
    """

    letter: str = ""
    cpu_s: float = 0.0
    major_faults: int = 0
    ran_ns: int = 0


def process_state(pid: int, proc: Path = _PROC) -> ProcessState:
    """The state of a process (of its first thread, where that makes a difference)."""
    try:
        state = _parse((proc / str(pid) / "stat").read_text())
    except (OSError, ValueError, IndexError):
        return ProcessState()
    return replace(state, ran_ns=_ran_ns(proc / str(pid) / "schedstat"))


def _ran_ns(schedstat: Path) -> int:
    try:
        return int(schedstat.read_text().split()[0])
    except (OSError, ValueError, IndexError):
        return 0  # a kernel that does not count it


def is_asleep(pid: int, proc: Path = _PROC) -> bool:
    """Whether every thread sleeps: none runs, wants to run, or waits for the disk."""
    try:
        threads = list((proc / str(pid) / "task").iterdir())
    except OSError:
        return False
    for thread in threads:
        try:
            letter = _parse((thread / "stat").read_text()).letter
        except (OSError, ValueError, IndexError):
            continue  # it has just ended
        if letter not in ("S", "I"):
            return False
    return True


def _parse(text: str) -> ProcessState:
    # The name, in parentheses, may hold anything, parentheses too.
    fields = text.rpartition(")")[2].split()
    ticks = int(fields[_USER_TICKS]) + int(fields[_SYSTEM_TICKS])
    return ProcessState(fields[_STATE], ticks / _TICKS_PER_S, int(fields[_MAJOR_FAULTS]))
