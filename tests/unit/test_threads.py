"""How many threads a process may use, from given readings and from given files."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from homespecd.runtime.threads import (
    CpuReadings,
    quota_v1,
    quota_v2,
    read_cpus,
    threads_for,
    usable_threads,
)


@pytest.mark.parametrize(
    ("affinity", "quotas", "expected"),
    [
        (8, (), 8),
        (8, (2.0,), 2),
        (8, (1.5,), 2),
        (8, (0.5,), 1),
        (2, (6.0,), 2),
        (8, (4.0, 3.0, 16.0), 3),
        (1, (0.1,), 1),
        (0, (), 1),
    ],
)
def test_the_tightest_limit_counts(affinity: int, quotas: tuple[float, ...], expected: int) -> None:
    assert threads_for(CpuReadings(affinity, quotas)) == expected


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("max 100000\n", ()),
        ("50000 100000\n", (0.5,)),
        ("300000 100000", (3.0,)),
        ("", ()),
        ("1 0", ()),
    ],
)
def test_v2_quota(text: str, expected: tuple[float, ...]) -> None:
    assert quota_v2(text) == expected


def test_v1_quota() -> None:
    assert quota_v1("-1\n", "100000\n") == ()
    assert quota_v1("150000\n", "100000\n") == (1.5,)
    assert quota_v1("", "") == ()


def write(root: Path, files: dict[str, str]) -> Path:
    for name, text in files.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(text)
    return root


def test_quotas_of_the_groups_above_count(tmp_path: Path) -> None:
    root = write(
        tmp_path,
        {
            "proc/self/cgroup": "0::/system.slice/homespecd.service/model\n",
            "sys/fs/cgroup/system.slice/cpu.max": "400000 100000",
            "sys/fs/cgroup/system.slice/homespecd.service/cpu.max": "150000 100000",
            "sys/fs/cgroup/system.slice/homespecd.service/model/cpu.max": "max 100000",
        },
    )
    assert read_cpus(root).quota_cores == (1.5, 4.0)


def test_v1_beside_v2(tmp_path: Path) -> None:
    root = write(
        tmp_path,
        {
            "proc/self/cgroup": "4:memory:/a\n3:cpu,cpuacct:/a\n1:name=systemd:/\n0::/b\n",
            "sys/fs/cgroup/cpu,cpuacct/a/cpu.cfs_quota_us": "200000",
            "sys/fs/cgroup/cpu,cpuacct/a/cpu.cfs_period_us": "100000",
            "sys/fs/cgroup/unified/b/cpu.max": "70000 100000",
        },
    )
    assert sorted(read_cpus(root).quota_cores) == [0.7, 2.0]


def test_a_machine_without_cgroups_has_its_affinity(tmp_path: Path) -> None:
    assert read_cpus(tmp_path) == CpuReadings(len(os.sched_getaffinity(0)))


def test_a_request_is_respected_and_bounded() -> None:
    assert usable_threads(3) == 3
    assert 1 <= usable_threads(0) <= (os.cpu_count() or 1)
    for wrong in (-1, 100_000):
        with pytest.raises(ValueError, match=f"not {wrong}"):
            usable_threads(wrong)


def test_affinity_is_read_at_the_time_of_asking() -> None:
    mask = os.sched_getaffinity(0)
    try:
        os.sched_setaffinity(0, {min(mask)})
        assert usable_threads(0) == 1
    finally:
        os.sched_setaffinity(0, mask)
