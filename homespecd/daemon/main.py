"""`homespecd`: the service in the foreground."""

from __future__ import annotations

import argparse
import asyncio
import logging
import os
import signal
import sys
from collections.abc import Sequence
from pathlib import Path

from homespecd import __version__
from homespecd.config.load import load
from homespecd.config.watch import QUIET_S
from homespecd.daemon.checking import check
from homespecd.daemon.health import Patience
from homespecd.daemon.journal import event, log_handler
from homespecd.daemon.notify import Notifier
from homespecd.daemon.reload import own_doubts
from homespecd.daemon.server import WORKER_COMMAND, serve
from homespecd.errors import ConfigError, HomespecError, Problem
from homespecd.runtime.installed import installed_builds, trouble_with

# sysexits.h: EX_CONFIG. systemd shows it, and a unit can say not to try again.
EXIT_CONFIG = 78
EXIT_FAILURE = 1


def main(
    argv: Sequence[str] | None = None,
    *,
    worker: Sequence[str] = WORKER_COMMAND,
    patience: Patience | None = None,
    quiet_s: float = QUIET_S,
) -> int:
    """Run the service, or check a configuration. Returns the exit code.

    Args:
        worker: how to start a worker process; its socket's number is appended.
        patience: from when a worker hangs; None = the usual.
        quiet_s: edits of the configuration closer together than this are one.
    """
    options = parser().parse_args(argv)
    if options.check is not None:
        return _check(options.check)
    # Until `serve` listens to them: an interrupt just ends this, and a reload is what the start is;
    # an edit that comes too late for it is found as soon as the files are watched.
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    signal.signal(signal.SIGHUP, signal.SIG_IGN)
    log = logging.getLogger(__name__)
    logging.basicConfig(level=logging.INFO, handlers=[log_handler(os.environ)])
    # It calls an error that it was told to stop.
    logging.getLogger("watchdog").setLevel(logging.CRITICAL)
    try:
        config = load(options.config, warn=_log_warning, doubt=own_doubts)
        path = options.config.absolute()
        notifier = Notifier(os.environ)
        if (trouble := trouble_with(installed_builds())) is not None:
            log.warning("%s (%s)", trouble.what, trouble.fix, extra=event("onnxruntime_builds"))
        asyncio.run(
            serve(
                config,
                path=path,
                command=worker,
                notifier=notifier,
                patience=patience,
                quiet_s=quiet_s,
            )
        )
    except ConfigError as error:
        for problem in error.problems:
            log.error("%s", problem, extra=event("config_refused"))
        return EXIT_CONFIG
    except HomespecError as error:
        log.error("%s", error, extra=event("start_failed"))
        return EXIT_FAILURE
    return 0


def _log_warning(warning: Problem) -> None:
    fields = event("config_warning")
    logging.getLogger(__name__).warning("%s", warning, extra=fields)


def _check(path: Path) -> int:
    found = check(path)
    for warning in found.warnings:
        print(warning.as_warning(), file=sys.stderr)  # noqa: T201
    for problem in found.problems:
        print(problem, file=sys.stderr)  # noqa: T201
    if found.problems:
        return EXIT_CONFIG
    print(f"{path}: no problems")  # noqa: T201
    return 0


def parser() -> argparse.ArgumentParser:
    """The command line, which the manual page is made from too."""
    whole = argparse.ArgumentParser(
        prog="homespecd", description="Serve language models to the apps of this machine."
    )
    what = whole.add_mutually_exclusive_group(required=True)
    what.add_argument("--config", type=Path, metavar="FILE", help="run with this configuration")
    what.add_argument(
        "--check", type=Path, metavar="FILE", help="name every problem in a configuration and exit"
    )
    whole.add_argument("--version", action="version", version=f"homespecd {__version__}")
    return whole
