"""How many threads this process may use: affinity, cgroup quota, and the user's own word.

onnxruntime sizes its pool from the host's cores. In a cpuset or under a CPU quota that means
affinity errors and throttled threads that hold up everybody else in the pool, so the number is
always given explicitly.
"""

from __future__ import annotations

import math
import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

# More threads than this in one pool is a typing error, whatever the machine.
MOST_THREADS = 512


@dataclass(frozen=True)
class CpuReadings:
    """What the machine says. `quota_cores` holds every quota that applies, in cores."""

    affinity_cores: int
    quota_cores: tuple[float, ...] = ()


def usable_threads(requested: int) -> int:
    """Threads for one model: `requested`, or for 0 what this process may use.

    Raises:
        ValueError: `requested` is negative or more than `MOST_THREADS`.
    """
    if not 0 <= requested <= MOST_THREADS:
        raise ValueError(f"threads must be between 0 and {MOST_THREADS}, not {requested}")
    return requested or threads_for(read_cpus())


def threads_for(readings: CpuReadings) -> int:
    """Cores in the affinity mask, no more than the tightest quota rounded up, at least 1.

    A quota of 1.5 cores gives 2 threads: one would leave half a core unused, and two are throttled
    only when both are busy all the time.
    """
    quotas = [max(1, math.ceil(cores)) for cores in readings.quota_cores if cores > 0]
    return max(1, min([readings.affinity_cores, *quotas]))


def read_cpus(root: Path = Path("/")) -> CpuReadings:
    """Read this process's affinity and the CPU quotas of its cgroup and all above it."""
    if hasattr(os, "sched_getaffinity"):
        affinity = len(os.sched_getaffinity(0))
    else:  # Windows, macOS
        affinity = os.cpu_count() or 1
    return CpuReadings(affinity, tuple(_quotas(root)))


def _quotas(root: Path) -> Iterator[float]:
    mounts = root / "sys/fs/cgroup"
    for line in _read(root / "proc/self/cgroup").splitlines():
        hierarchy, _, rest = line.partition(":")
        controllers, _, group = rest.partition(":")
        if hierarchy == "0":
            # Pure v2, or the v2 tree beside v1 ("unified"), whichever is mounted.
            for mount in (mounts, mounts / "unified"):
                for folder in _upwards(mount, group):
                    yield from quota_v2(_read(folder / "cpu.max"))
        elif "cpu" in controllers.split(","):
            for mount in (mounts / controllers, mounts / "cpu"):
                for folder in _upwards(mount, group):
                    quota = _read(folder / "cpu.cfs_quota_us")
                    yield from quota_v1(quota, _read(folder / "cpu.cfs_period_us"))


def _upwards(mount: Path, group: str) -> Sequence[Path]:
    """The folder of a cgroup and of every one above it: each may have a quota of its own."""
    names = [name for name in PurePosixPath(group).parts if name != "/"]
    return [mount.joinpath(*names[:depth]) for depth in range(len(names), -1, -1)]


def quota_v2(cpu_max: str) -> tuple[float, ...]:
    """Cores from the text of `cpu.max` ("200000 100000", "max 100000"); () = no quota."""
    match cpu_max.split():
        case [quota, period] if quota.isdigit() and period.isdigit() and int(period):
            return (int(quota) / int(period),)
    return ()


def quota_v1(quota_us: str, period_us: str) -> tuple[float, ...]:
    """Cores from `cpu.cfs_quota_us` ("-1" = no quota) and `cpu.cfs_period_us`; () = no quota."""
    return quota_v2(f"{quota_us.strip()} {period_us.strip()}")


def _read(path: Path) -> str:
    try:
        return path.read_text(encoding="ascii", errors="replace")
    except OSError:
        return ""
