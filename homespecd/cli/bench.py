"""`homespecctl bench NAME`: plain against speculative in one warm process, measured."""

from __future__ import annotations

import argparse
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from homespecd.cli import exits
from homespecd.cli.client import JOB_TIMEOUT_S, model_route
from homespecd.cli.context import Commands, Context
from homespecd.cli.draw import bar, number, size, words
from homespecd.cli.exits import CommandError
from homespecd.cli.plots import curve
from homespecd.cli.waiting import waiting
from homespecd.worker.prompt_set import BenchPrompt, parse_prompts, shipped_prompts

BAR_COLUMNS = 24
# What the table needs with bars, the extremes of speeds and memory; and with all extremes.
WIDE_COLUMNS, WIDEST_COLUMNS = 124, 152
# The plot of what steps cost.
CURVE_COLUMNS, CURVE_LINES = 72, 8


def add(commands: Commands, common: argparse.ArgumentParser) -> None:
    parser = commands.add_parser(
        "bench",
        parents=[common],
        help="measure plain against speculative",
        description="Answer the same prompts plain and speculatively, interleaved in the same warm "
        "process, and compare. Other requests to the model go on meanwhile and cost accuracy.",
    )
    parser.add_argument("name", metavar="NAME", help="the model")
    parser.add_argument(
        "--prompts",
        metavar="SET|FILE",
        help="shipped categories, joined by commas, or a JSON file with a list of "
        '{"category", "messages"} (default: all that is shipped)',
    )
    parser.add_argument("--max-tokens", type=int, metavar="N", help="of each answer (default: 128)")
    parser.add_argument(
        "--repeats", type=int, metavar="R", help="runs of each prompt and mode (default: 3)"
    )
    parser.add_argument("--each-drafter", action="store_true", help="each drafter alone as well")
    parser.add_argument("--json", action="store_true", help="the result as JSON")
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace, context: Context) -> int:
    body = {
        "prompts": None if arguments.prompts is None else as_body(read_prompts(arguments.prompts)),
        "max_tokens": arguments.max_tokens,
        "repeats": arguments.repeats,
        "each_drafter": arguments.each_drafter or None,
    }
    body = {key: value for key, value in body.items() if value is not None}
    with waiting(context.terminal, f"measuring {arguments.name}"):
        route = model_route(arguments.name, "bench")
        result = context.client.post(route, body, timeout_s=JOB_TIMEOUT_S)
    if arguments.json:
        context.terminal.write(json.dumps(result, ensure_ascii=False, indent=2) + "\n")
    else:
        context.terminal.out.print(picture(result, context.terminal.out.width))
    return exits.OK


def read_prompts(what: str) -> tuple[BenchPrompt, ...]:
    """Shipped categories ("chat,code edit"), or the prompts in a JSON file."""
    shipped = {prompt.category: prompt for prompt in shipped_prompts()}
    names = [name.strip() for name in what.split(",")]
    if all(name in shipped for name in names):
        return tuple(shipped[name] for name in dict.fromkeys(names))
    try:
        return parse_prompts(json.loads(Path(what).read_text(encoding="utf-8")))
    except OSError as error:
        raise CommandError(
            f"neither a shipped category nor a file that can be read: {error.strerror}",
            where=what,
            hint=f"shipped are {', '.join(shipped)}",
            exit_code=exits.USAGE,
        ) from None
    except ValueError as error:
        raise CommandError(f"is not JSON: {error}", where=what, exit_code=exits.USAGE) from None


def as_body(prompts: tuple[BenchPrompt, ...]) -> list[dict[str, Any]]:
    """Prompts as the request writes them."""
    return [{"category": one.category, "messages": list(one.messages)} for one in prompts]


def picture(result: Mapping[str, Any], columns: int) -> RenderableType:
    """The result as a table with bars, for so many columns, and what it was measured on."""
    wide, widest = columns >= WIDE_COLUMNS, columns >= WIDEST_COLUMNS
    speedups = {
        (one["category"], one.get("mode", "speculative")): one for one in result["speedups"]
    }
    fastest = max((row["decode_tok_s"] for row in result["rows"]), default=0.0)
    table = Table(box=None, pad_edge=False, header_style="dim")
    table.add_column("", no_wrap=True)
    table.add_column("mode", no_wrap=True)
    table.add_column("tok/s", justify="right", no_wrap=True)
    if wide:
        table.add_column("min–max", justify="right", no_wrap=True)
        table.add_column("", no_wrap=True)
    for heading in ("speed-up", "a round", "ttft", *(("memory",) if wide else ())):
        table.add_column(heading, justify="right", no_wrap=True)
    table.add_column("tokens", no_wrap=True)
    last_category = None
    for row in result["rows"]:
        category, mode = row["category"], row["mode"]
        plain = mode == "plain"
        speedup = speedups.get((category, mode), {})
        cells: list[RenderableType] = [
            Text("" if category == last_category else category),
            Text(mode if plain or not row.get("drafter") else f"{mode} ({row['drafter']})"),
            number(row["decode_tok_s"]),
        ]
        if wide:
            low, high = number(row["decode_tok_s_min"]), number(row["decode_tok_s_max"])
            style = "blue" if plain else "green"
            cells += [f"{low}–{high}", Text(bar(row["decode_tok_s"], fastest, BAR_COLUMNS), style)]
        cells += [
            "" if plain else _ratio(speedup, spread=widest),
            "" if plain else number(row["acceptance_length"], 2),
            _first_token(row, spread=widest),
            *((size(row["peak_memory_bytes"]),) if wide else ()),
            "" if plain else _identical(speedup.get("identical")),
        ]
        table.add_row(*cells)
        last_category = category
    parts: list[RenderableType] = [table, Text()]
    parts += [Text(line) for line in _summary(result)]
    steps = result.get("step_ms") or {}
    if steps:
        parts.append(Text("rows in a step: time, against one", style="dim"))
    parts += [Text(line) for line in curve(steps, width=CURVE_COLUMNS, height=CURVE_LINES)]
    return Group(*parts, Text(_setting(result), style="dim"))


def _ratio(speedup: Mapping[str, Any], *, spread: bool) -> str:
    """The median of the pairs, and with `spread` the least and the most of them."""
    median = number(speedup.get("speedup"), 2, "×")
    if not spread or speedup.get("speedup_min") is None:
        return median
    return f"{median} ({number(speedup['speedup_min'], 2)}–{number(speedup['speedup_max'], 2)})"


def _first_token(row: Mapping[str, Any], *, spread: bool) -> str:
    """The same of the time to the first token."""
    median = number(row["ttft_ms"], 0, " ms")
    if not spread or row.get("ttft_ms_min") is None:
        return median
    return f"{median} ({number(row['ttft_ms_min'], 0)}–{number(row['ttft_ms_max'], 0)})"


def _summary(result: Mapping[str, Any]) -> list[str]:
    """Each mode over all categories, and which prompts were not asked; one line each."""
    lines = [
        f"{one['mode']}: {number(one['speedup'], 2, '×')} over all categories (geometric mean), "
        f"{number(one['speedup_least'], 2, '×')} in the least of them"
        for one in result.get("overall", ())
    ]
    if result.get("left_out"):
        left_out = ", ".join(result["left_out"])
        lines.append(f"left out, too long for this model's context: {left_out}")
    return [*lines, ""] if lines else []


def _identical(value: Any) -> Text:
    if value is None:
        return Text("–")
    return Text("identical", style="green") if value else Text("DIFFERENT", style="bold red")


def _setting(result: Mapping[str, Any]) -> str:
    versions = ", ".join(f"{name} {one}" for name, one in result.get("versions", {}).items())
    facts = [
        f"{result['model']} on {words(result.get('provider'))}",
        f"{result.get('threads')} threads",
        str(result.get("machine")),
        f"{result['max_tokens']} tokens × {result['repeats']}",
        versions,
    ]
    return " · ".join(fact for fact in facts if fact)
