"""`homespecctl doctor`: what would make this machine slow or unsafe for models, and the mends."""

from __future__ import annotations

import argparse
import json
import os
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from rich.text import Text

from homespecd.cli import exits
from homespecd.cli.context import Commands, Context
from homespecd.cli.exits import CommandError
from homespecd.cli.machine import Machine, group_members, unit_properties
from homespecd.cli.status import STATUS_TIMEOUT_S
from homespecd.cli.status_view import troubles
from homespecd.cli.terminal import harmless
from homespecd.config import load
from homespecd.config.schema import Config
from homespecd.config.units import format_size
from homespecd.errors import ConfigError

DEFAULT_CONFIG = Path("/etc/homespecd/homespecd.toml")
_STYLES = {"bad": "bold red", "warning": "yellow"}

# So much swap in use is what is left of a busy hour, and no sign of a shortage.
_SWAP_BYTES = 64 * 2**20


@dataclass(frozen=True)
class Finding:
    """level: "bad" (does not work, or is unsafe) or "warning" (slow, or a surprise)."""

    level: str
    what: str
    fix: str


def add(commands: Commands, common: argparse.ArgumentParser) -> None:
    parser = commands.add_parser(
        "doctor",
        parents=[common],
        help="what makes this machine slow or unsafe",
        description="Look for what would make this machine slow or unsafe for models, and say what "
        "to do about it. Exit 0 when nothing is bad, else 6.",
    )
    parser.add_argument(
        "--config",
        type=Path,
        metavar="FILE",
        help=f"the configuration (default: the running service's, else {DEFAULT_CONFIG})",
    )
    parser.add_argument("--json", action="store_true", help="the findings as JSON")
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace, context: Context) -> int:
    snapshot, findings = _service(context)
    path = arguments.config or Path((snapshot.get("config") or {}).get("path") or DEFAULT_CONFIG)
    machine = Machine()
    findings += machine_findings(machine)
    try:
        config = load(path, check_paths=True)
    except ConfigError as error:
        findings += [Finding("bad", str(one), f"edit {path}") for one in error.problems]
    else:
        findings += config_findings(config, machine)
        findings += unit_findings(config, unit_properties(), machine)
        findings += group_findings(config)
    if arguments.json:
        context.terminal.write(json.dumps([asdict(one) for one in findings], indent=2) + "\n")
    else:
        _print(findings, context)
    return exits.DEGRADED if any(one.level == "bad" for one in findings) else exits.OK


def service_findings(snapshot: Mapping[str, Any]) -> Iterator[Finding]:
    """What the running service itself complains of."""
    for trouble in troubles(snapshot):
        yield Finding("bad", trouble, "journalctl -u homespecd -p warning has more")
    for model in snapshot["models"]:
        asked, used = model.get("requested_provider"), model.get("provider")
        if asked and used and asked not in ("auto", used):
            yield Finding(
                "bad",
                f"{harmless(model['name'])} asks for {asked} and runs on {used}: "
                f"{model.get('provider_reason') or 'the provider is not there'}",
                f"install onnxruntime's {asked} build and let the service at the device (gpu.conf "
                'in docs/operations.md), or set provider = "auto"',
            )


def machine_findings(machine: Machine) -> Iterator[Finding]:
    """Processor, clock and memory."""
    flags = machine.cpu_flags
    if flags and "asimd" not in flags:
        if "avx2" not in flags:
            yield Finding(
                "bad",
                "this processor has no AVX2: a model takes several times as long",
                "serve small models only; in a virtual machine, pass the host's processor through",
            )
        elif not flags & {"avx512_vnni", "avx_vnni"}:
            yield Finding(
                "warning",
                "this processor has no VNNI: int4 and int8 models gain less",
                "homespecctl bench says what there is; nothing to mend, unless this is a virtual "
                "machine that could pass the host's processor through",
            )
    elif flags and not flags & {"asimddp", "i8mm"}:
        yield Finding(
            "warning",
            "this processor has no dot-product instructions: int4 and int8 models gain less",
            "serve small models",
        )
    driver, governor, preference = machine.frequency
    # These two drivers call it powersave and reach full speed; what counts is the preference.
    own_ways = driver in ("intel_pstate", "amd-pstate-epp")
    if (governor == "powersave" and not own_ways) or (own_ways and preference == "power"):
        yield Finding(
            "warning",
            "the processor's clock is held down (governor powersave)",
            "cpupower frequency-set -g schedutil, and the same at boot",
        )
    memory = machine.memory
    swapped = memory.get("SwapTotal", 0) - memory.get("SwapFree", 0)
    if swapped > _SWAP_BYTES:
        yield Finding(
            "warning",
            f"{format_size(swapped)} are swapped out: this machine is short of memory",
            "lower memory.cap or raise memory.reserve, so that models leave room for the rest",
        )


def config_findings(config: Config, machine: Machine) -> Iterator[Finding]:
    """Caps against what there is, and the disk of the models."""
    total = machine.memory.get("MemTotal", 0)
    cap, reserve = config.memory.cap_bytes, config.memory.reserve_bytes
    if total and cap > total:
        yield Finding(
            "bad",
            f"memory.cap is {format_size(cap)}, and this machine has {format_size(total)}",
            "set memory.cap to what models may hold, half of the machine's memory, say",
        )
    elif total and cap + reserve > total:
        yield Finding(
            "warning",
            f"memory.cap and memory.reserve together are more than this machine's "
            f"{format_size(total)}",
            "the reserve wins: lower memory.cap, so that it says what will really be held",
        )
    if machine.rotational(config.paths.models):
        yield Finding(
            "warning",
            f"{config.paths.models} is on a spinning disk (or a virtual one that says so): "
            "models load slowly, and slower still when memory is short",
            "put paths.models on an SSD, or pin the models that matter",
        )
    if config.server.socket_mode & 0o007:
        yield Finding(
            "bad",
            f"every user of this machine may use the socket (mode {config.server.socket_mode:04o})",
            'set server.socket_mode = "0660"',
        )


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


def _service(context: Context) -> tuple[Mapping[str, Any], list[Finding]]:
    try:
        snapshot = context.client.get("/homespec/status", timeout_s=STATUS_TIMEOUT_S)
    except CommandError as error:
        return {}, [Finding("bad", str(error.message), error.hint or "journalctl -u homespecd")]
    return snapshot, list(service_findings(snapshot))


def _print(findings: list[Finding], context: Context) -> None:
    out = context.terminal.out
    for one in findings:
        mark = Text(f"{one.level}: ", style=_STYLES[one.level])
        out.print(mark + Text(one.what), soft_wrap=True)
        out.print(Text(f"  → {one.fix}", style="dim"), soft_wrap=True)
    if os.geteuid() and not findings:
        out.print("nothing found (root may see more)")
    elif not findings:
        out.print("nothing found: this machine is well")
