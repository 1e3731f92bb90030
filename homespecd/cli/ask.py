"""`homespecctl ask NAME [PROMPT]`: streams an answer, then says in one line what it took."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Mapping
from contextlib import closing
from typing import Any

from homespecd.cli import exits
from homespecd.cli.client import ANSWER_TIMEOUT_S, Client
from homespecd.cli.context import Commands, Context
from homespecd.cli.draw import number, words
from homespecd.cli.exits import CommandError
from homespecd.cli.terminal import Terminal, harmless


def add(commands: Commands, common: argparse.ArgumentParser) -> None:
    parser = commands.add_parser(
        "ask",
        parents=[common],
        help="ask a model something",
        description="Stream an answer to standard output; what it took goes to standard error.",
    )
    parser.add_argument("name", metavar="NAME", help="the model")
    parser.add_argument("prompt", metavar="PROMPT", nargs="?", help="default: standard input")
    parser.add_argument("--system", metavar="TEXT", help="a system message before the prompt")
    parser.add_argument(
        "--max-tokens",
        type=int,
        metavar="N",
        help="of the answer (default: what the context holds)",
    )
    parser.add_argument(
        "--temperature", type=float, metavar="T", default=0.0, help="default: 0, greedy"
    )
    parser.add_argument("--seed", type=int, metavar="N", help="the same seed, the same answer")
    parser.add_argument(
        "--speculation",
        choices=("auto", "off", "on"),
        default="auto",
        help="on: also while it is measured slower than plain (default: auto)",
    )
    parser.add_argument("--drafter", metavar="NAME", help="only this one")
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace, context: Context) -> int:
    prompt = arguments.prompt if arguments.prompt is not None else _read_prompt(context.terminal)
    if not prompt.strip():
        raise CommandError("the prompt is empty", hint="homespecctl ask NAME PROMPT")
    messages = [{"role": "user", "content": prompt}]
    if arguments.system:
        messages.insert(0, {"role": "system", "content": arguments.system})
    extension = {"speculation": arguments.speculation, "drafter": arguments.drafter}
    request = {
        "model": arguments.name,
        "messages": messages,
        "max_tokens": arguments.max_tokens,
        "temperature": arguments.temperature,
        "seed": arguments.seed,
        "homespec": _given(extension),
    }
    report = stream_answer(context.client, context.terminal, _given(request))
    context.terminal.note(measured_line(report))
    return exits.OK


def stream_answer(
    client: Client, terminal: Terminal, request: Mapping[str, Any]
) -> Mapping[str, Any]:
    """Print a chat's answer as it comes. Returns its last chunk's `homespec` and `usage`."""
    body = {**request, "stream": True, "stream_options": {"include_usage": True}}
    report: dict[str, Any] = {}
    ends_line = True
    events = client.stream("/v1/chat/completions", body, timeout_s=ANSWER_TIMEOUT_S)
    try:
        with closing(events):
            for event in events:
                report.update({key: event[key] for key in ("homespec", "usage") if event.get(key)})
                if any(choice.get("finish_reason") == "length" for choice in event["choices"]):
                    report["cut"] = True
                text = _text(event)
                if terminal.out.is_terminal:
                    text = harmless(text)
                if text:
                    terminal.write(text)
                    ends_line = text.endswith("\n")
    finally:
        if not ends_line:
            terminal.write("\n")
    return report


def measured_line(report: Mapping[str, Any]) -> str:
    """`speculative (ngram) · 181 tok/s · 2.40 tokens a round · ngram measures 1.93× plain`."""
    homespec = report.get("homespec") or {}
    mode = str(homespec.get("mode") or "unknown")
    drafter, reason = homespec.get("drafter"), homespec.get("reason")
    if drafter:
        mode += f" ({drafter})"
    elif reason:
        mode += f" ({words(reason)})"
    facts = [mode, f"{number(homespec.get('decode_tok_s'))} tok/s"]
    if homespec.get("draft_tokens_proposed"):
        facts.append(f"{number(homespec.get('acceptance_length'), 2)} tokens a round")
    speedup = (homespec.get("speedup") or {}).get("measured")
    if speedup is not None and drafter:
        # Measured over all answers, this one's few rounds would say little.
        facts.append(f"{drafter} measures {number(speedup, 2)}× plain")
    facts.append(f"first token after {number(homespec.get('ttft_ms'), 0)} ms")
    usage = report.get("usage") or {}
    if "completion_tokens" in usage:
        cut = ", cut off there" if report.get("cut") else ""
        facts.append(f"{usage['completion_tokens']} tokens{cut}")
    return " · ".join(facts)


def _text(event: Mapping[str, Any]) -> str:
    return "".join(
        (choice.get("delta") or {}).get("content") or "" for choice in event.get("choices", [])
    )


def _read_prompt(terminal: Terminal) -> str:
    if sys.stdin.isatty():
        terminal.note("Type the prompt, then Ctrl-D.")
    try:
        return sys.stdin.read()
    except UnicodeDecodeError:
        raise CommandError("the prompt on standard input is not UTF-8") from None


def _given(fields: Mapping[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in fields.items() if value is not None and value != {}}
