"""`homespecctl check FILE`: every problem of a configuration file, with its line."""

from __future__ import annotations

import argparse
from pathlib import Path

from homespecd.cli import exits
from homespecd.cli.context import Commands, Context
from homespecd.daemon.checking import check


def add(commands: Commands, common: argparse.ArgumentParser) -> None:
    parser = commands.add_parser(
        "check",
        parents=[common],
        help="check a configuration file",
        description="Print every problem of a configuration, and of the model folders it names, as "
        "FILE:LINE: key: what is wrong (hint). Exit 0 when there is none, else 78. What is no "
        "error and may not be meant is printed with `warning:` after the line, and changes "
        "nothing about the exit code.",
    )
    parser.add_argument(
        "file", type=Path, metavar="FILE", help="conf.d/*.toml beside it belong to it"
    )
    parser.add_argument(
        "--file-only",
        action="store_true",
        help="only what would keep the service from starting: model folders are not looked into",
    )
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace, context: Context) -> int:
    found = check(arguments.file, file_only=arguments.file_only)
    context.terminal.write("".join(f"{one.as_warning()}\n" for one in found.warnings))
    if found.config is None:
        context.terminal.write("".join(f"{one}\n" for one in found.problems))
        return exits.BAD_CONFIG
    models = ", ".join(found.config.models) or "no models"
    context.terminal.write(f"{arguments.file}: no problems ({models})\n")
    return exits.OK
