"""What the system says about the machine, for `homespecctl doctor`. Reads only."""

from __future__ import annotations

import grp
import os
import pwd
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

_PROPERTIES = (
    "LoadState",
    "Delegate",
    "MemoryMax",
    "IPAddressDeny",
    "IPAddressAllow",
    "PrivateDevices",
    "MemoryDenyWriteExecute",
)


@dataclass(frozen=True)
class Machine:
    """Facts, below `root`. What a system does not tell is None or empty."""

    root: Path = Path("/")

    def text(self, path: str) -> str:
        """A file of /proc or /sys; "" when there is none."""
        try:
            return (self.root / path).read_text("utf-8", "replace")
        except OSError:
            return ""

    @property
    def cpu_flags(self) -> frozenset[str]:
        """Of the first processor, by the names that Linux gives them."""
        for line in self.text("proc/cpuinfo").splitlines():
            key, _, value = line.partition(":")
            if key.strip() in ("flags", "Features"):
                return frozenset(value.split())
        return frozenset()

    @property
    def memory(self) -> Mapping[str, int]:
        """/proc/meminfo in bytes."""
        found = {}
        for line in self.text("proc/meminfo").splitlines():
            key, _, value = line.partition(":")
            words = value.split()
            if words and words[0].isdigit():
                found[key] = int(words[0]) * (1024 if words[1:] == ["kB"] else 1)
        return found

    @property
    def frequency(self) -> tuple[str, str, str]:
        """Driver, governor and energy preference of the first processor."""
        folder = "sys/devices/system/cpu/cpu0/cpufreq"
        names = ("scaling_driver", "scaling_governor", "energy_performance_preference")
        driver, governor, preference = (self.text(f"{folder}/{name}").strip() for name in names)
        return driver, governor, preference

    @property
    def cgroups_unified(self) -> bool:
        return (self.root / "sys/fs/cgroup/cgroup.controllers").exists()

    def rotational(self, folder: Path) -> bool | None:
        """Whether the disk below `folder` spins; None where that cannot be told."""
        try:
            device = _existing(folder).stat().st_dev
        except OSError:
            return None
        block = self.root / f"sys/dev/block/{os.major(device)}:{os.minor(device)}"
        for candidate in (block / "queue/rotational", block / "../queue/rotational"):
            try:
                return candidate.read_text().strip() == "1"
            except OSError:
                continue
        return None


def unit_properties(unit: str = "homespecd.service") -> dict[str, str]:
    """What systemd says about the unit; empty where there is no systemd or no such unit."""
    command = ["systemctl", "show", unit, f"--property={','.join(_PROPERTIES)}"]
    try:
        result = subprocess.run(command, capture_output=True, text=True, timeout=10, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return {}
    pairs = (line.partition("=") for line in result.stdout.splitlines())
    found = {key: value for key, _, value in pairs}
    return found if found.get("LoadState") == "loaded" else {}


def group_members(group: str) -> list[str] | None:
    """Users in a group, by name; None when there is no such group."""
    try:
        found = grp.getgrnam(group)
    except KeyError:
        return None
    own = [user.pw_name for user in pwd.getpwall() if user.pw_gid == found.gr_gid]
    return sorted({*found.gr_mem, *own})


def _existing(folder: Path) -> Path:
    while not folder.exists() and folder != folder.parent:
        folder = folder.parent
    return folder
