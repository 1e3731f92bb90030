"""`homespecctl verify NAME`: is what this model serves exact, on this machine?"""

from __future__ import annotations

import argparse
import json
from collections.abc import Mapping
from typing import Any

from rich.console import RenderableType
from rich.table import Table
from rich.text import Text

from homespecd.cli import exits
from homespecd.cli.client import JOB_TIMEOUT_S, model_route
from homespecd.cli.context import Commands, Context
from homespecd.cli.waiting import waiting


def add(commands: Commands, common: argparse.ArgumentParser) -> None:
    parser = commands.add_parser(
        "verify",
        parents=[common],
        help="test that speculation changes nothing",
        description="Compare blocks with single steps, greedy text with and without speculation, "
        "and sampled tokens with the distribution they should have. Exit 0 passed, 1 failed.",
    )
    parser.add_argument("name", metavar="NAME", help="the model")
    parser.add_argument("--json", action="store_true", help="the result as JSON")
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace, context: Context) -> int:
    with waiting(context.terminal, f"verifying {arguments.name}"):
        route = model_route(arguments.name, "verify")
        result = context.client.post(route, {}, timeout_s=JOB_TIMEOUT_S)
    if arguments.json:
        context.terminal.write(json.dumps(result, ensure_ascii=False, indent=2) + "\n")
    else:
        context.terminal.out.print(picture(result))
    return exits.OK if result["passed"] else exits.FAILED


def picture(result: Mapping[str, Any]) -> RenderableType:
    """One line for each question that was asked of the model."""
    table = Table(box=None, pad_edge=False, show_header=False)
    table.add_column(no_wrap=True)
    table.add_column()
    chi = result["chi_square"]
    widths = ", ".join(str(width) for width in result["widths"])
    prompts, same = result["prompts"], result["greedy_identical"]
    block_text = (
        "bit-identical to single steps"
        if result["bit_identical"]
        else f"up to {result['max_logit_diff']:.3g} from single steps, "
        f"{result['near_tie_flips']} near ties flipped"
    )
    lines: list[tuple[bool | None, str, str]] = [
        # Foreign exports may differ in the last bits; that is said, and is no failure by itself.
        (True if result["bit_identical"] else None, "blocks", f"{block_text} (widths {widths})"),
        (
            True if same == prompts else None if not result["bit_identical"] else False,
            "greedy",
            f"{same} of {prompts} answers identical, {result['tokens']} tokens",
        ),
        (
            result["block_causal"],
            "causal",
            "a row's logits ignore the rows after it"
            if result["block_causal"]
            else "a row's logits change with the rows after it: served plain",
        ),
        (
            True if result["passed"] else None,
            "sampling",
            f"chi-square {chi['statistic']:.1f} with {chi['dof']} degrees of freedom, "
            f"p = {chi['p_value']:.3g}, {chi['samples']} samples",
        ),
        (result["passed"], "result", "passed" if result["passed"] else "FAILED"),
    ]
    device = result.get("device")
    where = f"{result.get('provider')}" + (f" ({device})" if device else "")
    lines.insert(0, (None, "where", where))
    for good, name, text in lines:
        table.add_row(name, Text(text, style=_style(good)))
    return table


def _style(good: bool | None) -> str:
    return "" if good is None else "green" if good else "bold red"
