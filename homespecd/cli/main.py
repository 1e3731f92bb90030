"""`homespecctl`: runs the command, and turns what goes wrong into one sentence."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence

from homespecd.cli import exits
from homespecd.errors import HomespecError


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command. Returns the exit code."""
    debug = os.environ.get("HOMESPECD_DEBUG", "") not in ("", "0")
    try:
        return _run(argv)
    except BrokenPipeError:
        _silence_stdout()
        return exits.BROKEN_PIPE
    except KeyboardInterrupt:
        return exits.INTERRUPTED
    except HomespecError as error:
        if debug:
            raise
        _say(str(error))
        return getattr(error, "exit_code", exits.FAILED)
    except Exception as error:
        if debug:
            raise
        _say(f"{type(error).__name__}: {error} (this is a bug; HOMESPECD_DEBUG=1 shows where)")
        return exits.BUG


def _run(argv: Sequence[str] | None) -> int:
    # Imported here, so that a Ctrl-C in the half second that it takes is as clean as any other.
    from homespecd.cli.client import default_socket
    from homespecd.cli.commands import parser
    from homespecd.cli.context import Context
    from homespecd.cli.terminal import Terminal

    arguments = parser().parse_args(argv)
    path = arguments.socket or default_socket(os.environ)
    code: int = arguments.run(arguments, Context(Terminal.standard(), path))
    # A reader that has gone away is noticed here and not at exit, where it would be a trace.
    sys.stdout.flush()
    return code


def _say(text: str) -> None:
    sys.stderr.write(f"homespecctl: {text}\n")


def _silence_stdout() -> None:
    """Let the interpreter's last flush go nowhere instead of complaining."""
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, sys.stdout.fileno())
    os.close(nowhere)
