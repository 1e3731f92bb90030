"""`homespecctl check FILE`: every problem of a configuration file, with its line."""

from __future__ import annotations

import argparse
from pathlib import Path

from homespecd.cli import exits
from homespecd.cli.context import Commands, Context
from homespecd.config import load
from homespecd.errors import ConfigError


def add(commands: Commands, common: argparse.ArgumentParser) -> None:
    parser = commands.add_parser(
        "check",
        parents=[common],
        help="check a configuration file",
        description="Print every problem as FILE:LINE: key: what is wrong (hint). "
        "Exit 0 when there is none, else 78.",
    )
    parser.add_argument("file", type=Path, metavar="FILE")
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace, context: Context) -> int:
    try:
        config = load(arguments.file, check_paths=True)
    except ConfigError as error:
        context.terminal.write("".join(f"{problem}\n" for problem in error.problems))
        return exits.BAD_CONFIG
    models = ", ".join(config.models) or "no models"
    context.terminal.write(f"{arguments.file}: no problems ({models})\n")
    return exits.OK
