"""What in the way the service is run, and in who may use it, gets in the way."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from homespecd.cli.finding import Finding
from homespecd.cli.machine import Machine, group_members
from homespecd.config.schema import Config
from homespecd.config.units import format_size


def unit_findings(config: Config, unit: Mapping[str, str], machine: Machine) -> Iterator[Finding]:
    """How the service is run; nothing to say where systemd does not run it."""
    if not unit:
        return
    if not machine.cgroups_unified:
        yield Finding(
            "warning",
            "this system still has version 1 of cgroups: a model's memory_cap is not enforced by "
            "the kernel",
            "boot with systemd.unified_cgroup_hierarchy=1",
        )
    elif unit.get("Delegate") == "no":
        yield Finding(
            "warning",
            "the unit delegates no cgroups: a model's memory_cap is not enforced by the kernel",
            "take the shipped homespecd.service, or add Delegate=memory pids",
        )
    most = unit.get("MemoryMax", "")
    if most.isdigit() and int(most) < config.memory.cap_bytes:
        yield Finding(
            "bad",
            f"memory.cap is {format_size(config.memory.cap_bytes)}, and the unit's MemoryMax "
            f"{format_size(int(most))}",
            "lower memory.cap, or raise MemoryMax: systemctl edit homespecd",
        )
    outside = [str(one) for one in config.server.listen if not one.loopback]
    if outside and unit.get("IPAddressDeny") and "0.0.0.0/0" not in unit.get("IPAddressAllow", ""):
        yield Finding(
            "bad",
            f"server.listen has {', '.join(outside)}, and the unit lets nobody in from the network",
            "install network.conf (docs/operations.md)",
        )


def group_findings(config: Config) -> Iterator[Finding]:
    """Whether anybody may use the socket."""
    group = config.server.socket_group
    if not group:
        return
    members = group_members(group)
    if members is None:
        yield Finding("bad", f"there is no group {group}", f"groupadd --system {group}")
    elif not set(members) - {group}:
        yield Finding(
            "warning",
            f"nobody is in group {group}: only root can use the socket",
            f"usermod -aG {group} USER, for each user and app that should",
        )
