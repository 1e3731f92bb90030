"""`homespecctl status`: the snapshot, as JSON, as one frame or live."""

from __future__ import annotations

import argparse
import json
from collections.abc import Mapping
from typing import Any

from homespecd.cli import exits
from homespecd.cli.context import Commands, Context
from homespecd.cli.exits import CommandError
from homespecd.cli.live import watch, with_names
from homespecd.cli.status_view import frame, troubles

MIN_INTERVAL_S = 0.1
# The supervisor answers while models load and compute: two seconds of silence mean that it hangs.
STATUS_TIMEOUT_S = 2.0


def add(commands: Commands, common: argparse.ArgumentParser) -> None:
    parser = commands.add_parser(
        "status",
        parents=[common],
        help="what the service is doing",
        description="Show what the service is doing: live on a terminal, one frame elsewhere. "
        "Keys of the live one: arrows (or j and k) select a model, l loads it, u unloads it, "
        "p shows it alone, r reloads the configuration, q leaves. "
        "Exit 0 running, 3 not running, 4 not allowed, 5 no answer, 6 running with something "
        "wrong (a model or drafter failed, a reload was refused).",
    )
    parser.add_argument("--once", action="store_true", help="one frame, then exit")
    parser.add_argument("--json", action="store_true", help="the snapshot as JSON, then exit")
    parser.add_argument(
        "--interval",
        type=_interval,
        default=1.0,
        metavar="S",
        help="seconds between snapshots of the live one (default: 1)",
    )
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace, context: Context) -> int:
    snapshot: Mapping[str, Any] = _snapshot(context)
    if arguments.json:
        context.terminal.write(json.dumps(snapshot, ensure_ascii=False, indent=2) + "\n")
    elif arguments.once or not context.terminal.out.is_terminal:
        context.terminal.out.print(frame(with_names(snapshot)))
    else:
        snapshot = _live(context, snapshot, arguments.interval)
    return exits.DEGRADED if troubles(snapshot) else exits.OK


def _live(context: Context, first: Mapping[str, Any], interval_s: float) -> Mapping[str, Any]:
    """Screens until somebody leaves; a service that goes away is waited for."""
    return watch(
        context.client,
        context.terminal.out,
        first,
        interval_s=interval_s,
        poll=lambda: _snapshot(context),
    )


def _snapshot(context: Context) -> dict[str, Any]:
    snapshot = context.client.get("/homespec/status", timeout_s=STATUS_TIMEOUT_S)
    if not isinstance(snapshot, dict) or not isinstance(snapshot.get("models"), list):
        raise CommandError("what answers on the socket is not homespecd", where=str(context.socket))
    return snapshot


def _interval(text: str) -> float:
    try:
        seconds = float(text)
    except ValueError:
        seconds = 0.0
    if not MIN_INTERVAL_S <= seconds <= 3600:
        raise argparse.ArgumentTypeError(f"{text} is not from {MIN_INTERVAL_S} to 3600 seconds")
    return seconds
