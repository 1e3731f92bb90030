"""`homespecctl completion`: a completion script for bash, from the same source as --help."""

from __future__ import annotations

import argparse
import shlex
from collections.abc import Iterator
from pathlib import Path

from homespecd.cli import exits
from homespecd.cli.context import Commands, Context
from homespecd.cli.described import Command, describe, files


def add(commands: Commands, common: argparse.ArgumentParser) -> None:
    parser = commands.add_parser(
        "completion",
        parents=[common],
        help="print a completion script for bash",
        description="Print a completion script for bash; install.sh puts it in its place.",
    )
    parser.add_argument("--into", type=Path, metavar="FILE", help="a file instead of the output")
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace, context: Context) -> int:
    # Here, because the parser that it describes is made from this module too.
    from homespecd.cli.commands import parser

    script = bash(describe(parser()))
    if arguments.into is None:
        context.terminal.write(script)
    else:
        arguments.into.write_text(script, encoding="utf-8")
    return exits.OK


def bash(program: Command) -> str:
    """The script. Names of models are asked of the service when they are needed."""
    return "\n".join(_bash_lines(program)) + "\n"


def _bash_lines(program: Command) -> Iterator[str]:
    names = shlex.quote(" ".join(program.commands))
    yield f"# Completion of {program.prog}; written by `{program.prog} completion`."
    yield "_homespecctl() {"
    yield "  local word=${COMP_WORDS[COMP_CWORD]} before=${COMP_WORDS[COMP_CWORD-1]}"
    yield '  local command="" index'
    yield "  COMPREPLY=()"
    yield "  for ((index = 1; index < COMP_CWORD; index++)); do"
    yield f'    case " {" ".join(program.commands)} " in'
    yield '      *" ${COMP_WORDS[index]} "*) command=${COMP_WORDS[index]}; break ;;'
    yield "    esac"
    yield "  done"
    yield '  local options="" values="" names=false paths=false'
    yield "  case $command in"
    yield f'    "") options={shlex.quote(_options(program))}; values={names} ;;'
    for name, command in program.commands.items():
        facts = [f"options={shlex.quote(_options(command))}"]
        positional = {one.metavar for one in command.arguments if not one.names}
        if "NAME" in positional:
            facts.append("names=true")
        if positional & {"FILE", "SOURCE"}:
            facts.append("paths=true")
        yield f"    {name}) {'; '.join(facts)} ;;"
    yield "  esac"
    yield "  case $command$before in"
    for name, command in [("", program), *program.commands.items()]:
        yield from _values(name, command)
    yield "  esac"
    yield "  if [[ $word == -* ]]; then names=false; paths=false; values=$options; fi"
    yield "  if $names; then"
    yield "    values=$(homespecctl models 2>/dev/null | awk 'NR > 1 { print $1 }')"
    yield "  fi"
    yield '  if $paths; then COMPREPLY=($(compgen -f -- "$word"))'
    yield '  else COMPREPLY=($(compgen -W "$values" -- "$word")); fi'
    yield "}"
    yield f"complete -o filenames -F _homespecctl {program.prog}"


def _values(name: str, command: Command) -> Iterator[str]:
    """What follows an option that takes a value."""
    paths = [f"{name}{option}" for option in files(command)]
    if paths:
        yield f"    {'|'.join(paths)}) names=false; paths=true; options='' ;;"
    for one in command.options:
        if one.choices:
            options = "|".join(f"{name}{option}" for option in one.names)
            values = shlex.quote(" ".join(one.choices))
            yield f"    {options}) names=false; paths=false; values={values} ;;"


def _options(command: Command) -> str:
    return " ".join(max(one.names, key=len) for one in command.options)
