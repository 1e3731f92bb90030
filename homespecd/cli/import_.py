"""`homespecctl import SOURCE --name NAME`: a model file or folder to a bundle."""

from __future__ import annotations

import argparse
import json
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn

from homespecd.cli import exits
from homespecd.cli.context import Commands, Context
from homespecd.cli.exits import CommandError
from homespecd.cli.service import sigterm_unwinds
from homespecd.cli.terminal import Terminal
from homespecd.config.schema import check_name

DEFAULT_FOLDER = Path("/var/lib/homespecd/models")
PRECISIONS = ("int4", "int8", "fp16", "fp32")

# Called with bytes done, bytes in all, and what is being done.
Report = Callable[[int, int, str], None]


def add(commands: Commands, common: argparse.ArgumentParser) -> None:
    parser = commands.add_parser(
        "import",
        parents=[common],
        help="turn a model file into a bundle",
        description="Turn a GGUF file of the Llama family into a bundle that homespecd serves, and "
        "print the configuration lines for it. Other families and Hugging Face checkpoints are "
        "refused by name; ONNX folders are served as they are, without an import.",
    )
    parser.add_argument("source", type=Path, metavar="SOURCE", help="GGUF file")
    parser.add_argument("--name", required=True, metavar="NAME", help="of the new model")
    parser.add_argument(
        "--into",
        type=Path,
        metavar="DIR",
        default=DEFAULT_FOLDER,
        help=f"folder to put the bundle into (default: {DEFAULT_FOLDER})",
    )
    parser.add_argument(
        "--precision",
        choices=PRECISIONS,
        default="int4",
        help="of the weights (default: int4; fp16 cannot be made yet)",
    )
    parser.add_argument("--force", action="store_true", help="replace a bundle of that name")
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace, context: Context) -> int:
    fault = check_name(arguments.name)
    if fault:
        raise CommandError(fault, where="--name", exit_code=exits.USAGE)
    with sigterm_unwinds():  # so that nothing half-written stays
        digest, precision = import_bundle(
            arguments.source,
            name=arguments.name,
            into=arguments.into,
            precision=arguments.precision,
            force=arguments.force,
            terminal=context.terminal,
        )
    folder = (arguments.into / arguments.name).absolute()
    hand_over(folder, as_of=arguments.into)
    context.terminal.write(
        f"{folder}\nprecision {precision}\ndigest {digest}\n\n"
        + config_lines(arguments.name, folder)
    )
    return exits.OK


def import_bundle(
    source: Path,
    *,
    name: str,
    into: Path,
    precision: str,
    terminal: Terminal,
    force: bool = False,
) -> tuple[str, str]:
    """Import with a progress bar where there is a terminal. Returns digest and precision.

    Raises:
        CommandError: the `import` extra is not installed.
        HomespecError: the source cannot be imported; nothing half-written stays.
    """
    # The extra's packages are only needed here; all other commands start without them.
    try:
        from homespecd.runtime.importing import import_model

        with _progress(terminal, name) as report:
            manifest = import_model(
                source, name=name, into=into, precision=precision, progress=report, force=force
            )
    except ModuleNotFoundError as error:
        if (error.name or "").split(".")[0] == "homespecd":
            raise
        raise CommandError(
            f"importing needs the package {error.name}, which is not installed",
            hint="pip install 'homespecd[import]'",
        ) from None
    return manifest.digest, manifest.precision


def hand_over(folder: Path, *, as_of: Path) -> None:
    """Give what root has just made in `folder` to the owner of `as_of`, the folder around it.

    The service renews the packed weights in its bundles, and reads them whatever root's umask is.
    Whoever is not root keeps what they made. Links are not followed: that owner may place some.
    """
    around = as_of.stat()
    if os.geteuid() != 0 or around.st_uid == 0:
        return
    for _, _, files, here in os.fwalk(folder, topdown=False):
        for name in files:
            os.chown(name, around.st_uid, around.st_gid, dir_fd=here, follow_symlinks=False)
        os.chown(here, around.st_uid, around.st_gid)


def config_lines(name: str, folder: Path) -> str:
    """A file of the configuration that serves the bundle: for conf.d, or a main file without it."""
    bare = name.replace("-", "").replace("_", "").isalnum() and name.isascii()
    key = name if bare else json.dumps(name)
    path = name if folder.parent == DEFAULT_FOLDER else str(folder)
    return (
        f"# a file of its own, like conf.d/{name}.toml beside homespecd.toml\n"
        f"[models.{key}]\n"
        f"path = {json.dumps(path, ensure_ascii=False)}\n"
        'drafters = ["ngram"]\n\n'
        "[drafters.ngram]\n"
        'kind = "ngram"\n'
    )


@contextmanager
def _progress(terminal: Terminal, name: str) -> Iterator[Report]:
    if not terminal.err.is_terminal:
        yield lambda _done, _total, _what: None
        return
    columns = (TextColumn("{task.description}"), BarColumn(), TaskProgressColumn())
    with Progress(*columns, console=terminal.err, transient=True) as progress:
        task = progress.add_task(name, total=None)

        def report(done: int, total: int, what: str) -> None:
            progress.update(task, description=f"{name}: {what}", completed=done, total=total)

        yield report
