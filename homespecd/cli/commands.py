"""The command line of `homespecctl`: every command, and the options they share."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import NoReturn

from homespecd import __version__
from homespecd.cli import (
    ask,
    bench,
    check,
    completion,
    control,
    demo,
    doctor,
    exits,
    import_,
    manual,
    status,
    verify,
)

COMMANDS = (status, check, doctor, control, ask, import_, bench, verify, demo, completion, manual)
# They take a socket like all others, and have no use for it that --help could tell.
_WITHOUT_SERVICE = (check, import_, demo, completion, manual)

_SOCKET_HELP = (
    "the service's socket (default: $HOMESPECD_SOCKET, else "
    "$XDG_RUNTIME_DIR/homespecd/homespecd.sock if it is there, else /run/homespecd/homespecd.sock)"
)


class _Parser(argparse.ArgumentParser):
    """Wrong use is one sentence and a hint, like every other error."""

    def error(self, message: str) -> NoReturn:
        self.exit(exits.USAGE, f"{self.prog}: {message} (see {self.prog} --help)\n")


def parser() -> argparse.ArgumentParser:
    """The whole parser. Parsed arguments have `run(arguments, context)` and `socket`."""
    assert exits.__doc__ is not None
    exit_codes = exits.__doc__.split(":", 1)[1].strip()
    whole = _Parser(
        prog="homespecctl",
        description="Control and measure homespecd over its Unix socket.",
        epilog=f"Exit codes: {exit_codes}",
    )
    whole.add_argument("--version", action="version", version=f"homespecctl {__version__}")
    whole.add_argument("--socket", type=Path, metavar="PATH", help=_SOCKET_HELP)
    # Also after the command; SUPPRESS keeps it from overwriting one that came before.
    common, unsaid = (_socket_option(text) for text in (_SOCKET_HELP, argparse.SUPPRESS))
    commands = whole.add_subparsers(title="commands", metavar="COMMAND", required=True)
    for module in COMMANDS:
        module.add(commands, unsaid if module in _WITHOUT_SERVICE else common)
    return whole


def _socket_option(text: str) -> argparse.ArgumentParser:
    option = argparse.ArgumentParser(add_help=False)
    option.add_argument("--socket", type=Path, metavar="PATH", default=argparse.SUPPRESS, help=text)
    return option
