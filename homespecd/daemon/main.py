"""`homespecd`: the service in the foreground."""

from __future__ import annotations

import argparse
import asyncio
import logging
import os
import sys
from collections.abc import Sequence
from pathlib import Path

from homespecd import __version__
from homespecd.config.load import load
from homespecd.daemon.notify import Notifier
from homespecd.daemon.server import WORKER_COMMAND, serve
from homespecd.errors import ConfigError, HomespecError

# sysexits.h: EX_CONFIG. systemd shows it, and a unit can say not to try again.
EXIT_CONFIG = 78
EXIT_FAILURE = 1


class LineFormatter(logging.Formatter):
    """One line an event, plain: what a peer or a library writes cannot break or colour it."""

    def formatMessage(self, record: logging.LogRecord) -> str:  # noqa: N802
        line = super().formatMessage(record)
        return "".join(char if char.isprintable() else " " for char in line)


def main(argv: Sequence[str] | None = None, *, worker: Sequence[str] = WORKER_COMMAND) -> int:
    """Run the service, or check a configuration. Returns the exit code.

    Args:
        worker: how to start a worker process; its socket's number is appended.
    """
    options = _parser().parse_args(argv)
    if options.check is not None:
        return _check(options.check)
    _log_to_stderr()
    try:
        config = load(options.config)
        path = options.config.absolute()
        notifier = Notifier(os.environ)
        asyncio.run(serve(config, path=path, command=worker, notifier=notifier))
    except ConfigError as error:
        return _report(error)
    except HomespecError as error:
        print(error, file=sys.stderr)  # noqa: T201
        return EXIT_FAILURE
    return 0


def _check(path: Path) -> int:
    try:
        load(path, check_paths=True)
    except ConfigError as error:
        return _report(error)
    print(f"{path}: no problems")  # noqa: T201
    return 0


def _report(error: ConfigError) -> int:
    for problem in error.problems:
        print(problem, file=sys.stderr)  # noqa: T201
    return EXIT_CONFIG


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="homespecd", description="Serve language models to the apps of this machine."
    )
    what = parser.add_mutually_exclusive_group(required=True)
    what.add_argument("--config", type=Path, metavar="FILE", help="run with this configuration")
    what.add_argument(
        "--check", type=Path, metavar="FILE", help="name every problem in a configuration and exit"
    )
    parser.add_argument("--version", action="version", version=f"homespecd {__version__}")
    return parser


def _log_to_stderr() -> None:
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(LineFormatter("%(levelname)s %(message)s"))
    logging.basicConfig(level=logging.INFO, handlers=[handler])
