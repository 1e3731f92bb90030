"""`homespecctl doctor`: what would make this machine slow or unsafe for models, and the mends."""

from __future__ import annotations

import argparse
import json
import os
from collections.abc import Iterator, Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

from rich.text import Text

from homespecd.cli import exits
from homespecd.cli.context import Commands, Context
from homespecd.cli.doctor_machine import config_findings, machine_findings
from homespecd.cli.doctor_providers import (
    asked_findings,
    build_findings,
    placement_findings,
    sandbox_findings,
)
from homespecd.cli.doctor_unit import group_findings, unit_findings
from homespecd.cli.exits import CommandError
from homespecd.cli.finding import Finding
from homespecd.cli.machine import Machine, unit_properties
from homespecd.cli.status import STATUS_TIMEOUT_S
from homespecd.cli.status_view import troubles
from homespecd.config import load
from homespecd.errors import ConfigError
from homespecd.runtime.installed import installed_builds

DEFAULT_CONFIG = Path("/etc/homespecd/homespecd.toml")
_STYLES = {"bad": "bold red", "warning": "yellow"}


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
    machine, builds, unit = Machine(), installed_builds(), unit_properties()
    findings += machine_findings(machine)
    findings += build_findings(builds)
    if snapshot:
        findings += placement_findings(snapshot, builds)
    try:
        config = load(path, check_paths=True)
    except ConfigError as error:
        findings += [Finding("bad", str(one), f"edit {one.file}") for one in error.problems]
    else:
        findings += config_findings(config, machine)
        findings += asked_findings(config, builds)
        findings += sandbox_findings(config, unit)
        findings += unit_findings(config, unit, machine)
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
