"""`homespecctl`: finds the command, and turns what goes wrong into one sentence."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import NoReturn

from homespecd import __version__
from homespecd.cli import ask, bench, check, control, demo, exits, import_, status, verify
from homespecd.cli.client import default_socket
from homespecd.cli.context import Context
from homespecd.cli.terminal import Terminal
from homespecd.errors import HomespecError

COMMANDS = (status, check, control, ask, import_, bench, verify, demo)


class _Parser(argparse.ArgumentParser):
    """Wrong use is one sentence and a hint, like every other error."""

    def error(self, message: str) -> NoReturn:
        self.exit(exits.USAGE, f"{self.prog}: {message} (see {self.prog} --help)\n")


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command. Returns the exit code."""
    debug = os.environ.get("HOMESPECD_DEBUG", "") not in ("", "0")
    try:
        arguments = _parser().parse_args(argv)
        path = arguments.socket or default_socket(os.environ)
        code: int = arguments.run(arguments, Context(Terminal.standard(), path))
        # A reader that has gone away is noticed here and not at exit, where it would be a trace.
        sys.stdout.flush()
    except BrokenPipeError:
        _silence_stdout()
        return exits.BROKEN_PIPE
    except KeyboardInterrupt:
        return exits.INTERRUPTED
    except HomespecError as error:
        if debug:
            raise
        print(f"homespecctl: {error}", file=sys.stderr)  # noqa: T201
        return getattr(error, "exit_code", exits.FAILED)
    except Exception as error:
        if debug:
            raise
        what = f"{type(error).__name__}: {error}"
        hint = "this is a bug; HOMESPECD_DEBUG=1 shows where"
        print(f"homespecctl: {what} ({hint})", file=sys.stderr)  # noqa: T201
        return exits.BUG
    return code


def _parser() -> argparse.ArgumentParser:
    parser = _Parser(
        prog="homespecctl",
        description="Control and measure homespecd over its Unix socket.",
        epilog=f"Exit codes: {_exit_codes()}",
    )
    parser.add_argument("--version", action="version", version=f"homespecctl {__version__}")
    parser.add_argument("--socket", type=Path, metavar="PATH", help=_SOCKET_HELP)
    # Also after the command; SUPPRESS keeps it from overwriting one that came before.
    common = argparse.ArgumentParser(add_help=False)
    common.add_argument(
        "--socket", type=Path, metavar="PATH", default=argparse.SUPPRESS, help=_SOCKET_HELP
    )
    commands = parser.add_subparsers(title="commands", metavar="COMMAND", required=True)
    for module in COMMANDS:
        module.add(commands, common)
    return parser


_SOCKET_HELP = (
    "the service's socket (default: $HOMESPECD_SOCKET, else "
    "$XDG_RUNTIME_DIR/homespecd/homespecd.sock if it is there, else /run/homespecd/homespecd.sock)"
)


def _exit_codes() -> str:
    assert exits.__doc__ is not None
    return exits.__doc__.split(":", 1)[1].strip()


def _silence_stdout() -> None:
    """Let the interpreter's last flush go nowhere instead of complaining."""
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, sys.stdout.fileno())
    os.close(nowhere)
