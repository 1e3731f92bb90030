"""`homespecctl manual`: manual pages, from the same source as --help."""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from pathlib import Path

from homespecd import __version__
from homespecd.cli import exits
from homespecd.cli.context import Commands, Context
from homespecd.cli.described import Argument, Command, describe

_FILES = (
    ("/etc/homespecd/homespecd.toml", "the configuration; conf.d/*.toml beside it is read after"),
    ("/var/lib/homespecd/models", "models that homespecctl import made"),
    ("/var/lib/homespecd/state", "what was measured and learned; safe to delete"),
    ("/run/homespecd/homespecd.sock", "where apps connect; for members of group homespecd"),
)
_ENVIRONMENT = (
    ("HOMESPECD_SOCKET", "the socket that homespecctl uses"),
    ("NO_COLOR", "if set, nothing is coloured"),
    ("HOMESPECD_DEBUG", "if 1, an error shows where it came from"),
)


def add(commands: Commands, common: argparse.ArgumentParser) -> None:
    parser = commands.add_parser(
        "manual",
        parents=[common],
        help="write the manual pages",
        description="Write the manual pages homespecctl(1) and homespecd(8) as man1/ and man8/ "
        "into a folder.",
    )
    parser.add_argument(
        "--into", type=Path, metavar="DIR", required=True, help="folder to write them into"
    )
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace, context: Context) -> int:
    for name, text in pages().items():
        file = arguments.into / f"man{name[-1]}" / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text, encoding="utf-8")
        context.terminal.write(f"{file}\n")
    return exits.OK


def pages() -> dict[str, str]:
    """Every page by its file's name."""
    # Here, because the parser that it describes is made from this module too.
    from homespecd.cli.commands import parser
    from homespecd.daemon.main import parser as daemon_parser

    return {
        "homespecctl.1": _page(describe(parser()), section=1, see_also="homespecd(8)"),
        "homespecd.8": _page(describe(daemon_parser()), section=8, see_also="homespecctl(1)"),
    }


def _page(program: Command, *, section: int, see_also: str) -> str:
    return "\n".join(_lines(program, section, see_also)) + "\n"


def _lines(program: Command, section: int, see_also: str) -> Iterator[str]:
    yield f'.TH {program.prog.upper()} {section} "" "homespecd {__version__}" "homespecd"'
    yield ".SH NAME"
    yield f"{program.prog} \\- {_escaped(_lower(program.description.rstrip('.')))}"
    yield ".SH SYNOPSIS"
    yield f".B {_escaped(program.usage)}"
    yield ".SH OPTIONS"
    for argument in program.arguments:
        yield from _option(argument)
    if program.commands:
        yield ".SH COMMANDS"
    for name, command in program.commands.items():
        yield f".SS {_escaped(name)}"
        yield f".B {_escaped(command.usage)}"
        yield ".PP"
        yield _escaped(command.description)
        for argument in command.arguments:
            if "--help" not in argument.names and "--socket" not in argument.names:
                yield from _option(argument)
    yield ".SH EXIT STATUS"
    if section == 1:
        assert exits.__doc__ is not None
        yield _escaped(" ".join(exits.__doc__.split(":", 1)[1].split()))
    else:
        yield "0 after SIGTERM, 78 when the configuration is invalid, 1 for what else went wrong."
        yield ".SH SIGNALS"
        yield "SIGHUP reads the configuration again. SIGTERM lets running answers end, for"
        yield "10 seconds; a second one cuts them."
    for heading, pairs in (("FILES", _FILES), ("ENVIRONMENT", _ENVIRONMENT)):
        yield f".SH {heading}"
        for term, text in pairs:
            yield from (".TP", f".B {_escaped(term)}", _escaped(text))
    yield ".SH SEE ALSO"
    yield _escaped(f"{see_also}, systemctl(1), journalctl(1)")


def _option(argument: Argument) -> Iterator[str]:
    names = ", ".join(argument.names)
    yield ".TP"
    yield f".B {_escaped(f'{names} {argument.metavar}'.strip())}"
    yield _escaped(argument.help) or "\\&"


def _lower(text: str) -> str:
    return text[:1].lower() + text[1:]


def _escaped(text: str) -> str:
    """Text that roff prints as it is."""
    text = " ".join(text.split()).replace("\\", "\\e").replace("-", "\\-")
    return f"\\&{text}" if text.startswith((".", "'")) else text
