"""The command line as data: what manual pages and completion are made from, as --help is."""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class Argument:
    """One option or positional argument. `names` is empty for a positional one."""

    names: tuple[str, ...]
    metavar: str
    takes_value: bool
    help: str
    choices: tuple[str, ...] = ()


@dataclass(frozen=True)
class Command:
    """One parser: a whole program, or one of its commands."""

    prog: str
    description: str
    usage: str
    arguments: tuple[Argument, ...]
    commands: Mapping[str, Command]

    @property
    def options(self) -> Sequence[Argument]:
        return [one for one in self.arguments if one.names]


def describe(parser: argparse.ArgumentParser) -> Command:
    """`parser` and all its commands."""
    commands: dict[str, Command] = {}
    arguments = []
    # argparse has no public list of what was added to a parser.
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            commands = {name: describe(one) for name, one in action.choices.items()}
        elif action.help is not argparse.SUPPRESS:
            arguments.append(_argument(action))
    usage = parser.format_usage().removeprefix("usage:")
    return Command(
        prog=parser.prog,
        description=parser.description or "",
        usage=" ".join(usage.split()),
        arguments=tuple(arguments),
        commands=commands,
    )


def files(command: Command) -> Iterator[str]:
    """Options of `command` whose value is a path."""
    for one in command.options:
        if one.metavar in ("FILE", "PATH", "DIR", "SET|FILE"):
            yield from one.names


def _argument(action: argparse.Action) -> Argument:
    choices = tuple(str(one) for one in action.choices or ())
    takes_value = action.nargs != 0
    metavar = action.metavar if isinstance(action.metavar, str) else action.dest.upper()
    if choices and not action.metavar:
        metavar = "{" + ",".join(choices) + "}"
    text = action.help or ""
    if "%" in text:
        text %= {**vars(action), "prog": ""}
    return Argument(
        names=tuple(action.option_strings),
        metavar=metavar if takes_value else "",
        takes_value=takes_value,
        help=text,
        choices=choices,
    )
