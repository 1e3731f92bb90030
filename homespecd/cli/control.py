"""`reload`, `load`, `unload`, `models`: one call each."""

from __future__ import annotations

import argparse
import time

from rich.table import Table

from homespecd.cli import exits
from homespecd.cli.client import ANSWER_TIMEOUT_S, model_route
from homespecd.cli.context import Commands, Context
from homespecd.cli.draw import size
from homespecd.cli.exits import CommandError

RELOAD_TIMEOUT_S = 60.0


def add(commands: Commands, common: argparse.ArgumentParser) -> None:
    reload = commands.add_parser(
        "reload",
        parents=[common],
        help="read the configuration again",
        description="Read the configuration again: all of it or nothing. Prints what changed.",
    )
    reload.set_defaults(run=run_reload)
    for action, text in (("load", "load a model now"), ("unload", "give a model's memory back")):
        sentence = f"{text[0].upper()}{text[1:]}."
        parser = commands.add_parser(action, parents=[common], help=text, description=sentence)
        parser.add_argument("name", metavar="NAME", help="the model")
        parser.set_defaults(run=run_model, action=action)
    models = commands.add_parser(
        "models",
        parents=[common],
        help="list the models",
        description="List the configured models and their states.",
    )
    models.set_defaults(run=run_models)


def run_reload(_arguments: argparse.Namespace, context: Context) -> int:
    reply = context.client.call("POST", "/homespec/reload", timeout_s=RELOAD_TIMEOUT_S)
    if reply.status == 422:
        for one in reply.body.get("problems", []):
            hint = f" ({one['hint']})" if one.get("hint") else ""
            key = f" {one['key']}:" if one["key"] else ""
            context.terminal.write(f"{one['file']}:{one['line']}:{key} {one['message']}{hint}\n")
        raise CommandError(
            "the configuration was not taken over; the old one stays in use",
            hint="mend what is listed and reload again",
            exit_code=exits.BAD_CONFIG,
        )
    body = context.client.expect_success(reply)
    body = body if isinstance(body, dict) else {}
    for warning in body.get("warnings", ()):
        context.terminal.note(warning)
    changes = body.get("changes", [])
    said = "".join(f"{one}\n" for one in changes) or f"{_in_use(context)}\n"
    context.terminal.write(said)
    return exits.OK


def _in_use(context: Context) -> str:
    """Why a reload changed nothing: the service notices edits by itself, and was first."""
    config = context.client.get("/homespec/status").get("config") or {}
    generation, loaded_at = config.get("generation"), config.get("loaded_at")
    if not isinstance(generation, int) or not isinstance(loaded_at, int | float):
        return "nothing has changed"
    at = time.strftime("%H:%M:%S", time.localtime(loaded_at))
    if generation == 1:
        return f"nothing has changed since the service was started, at {at}"
    return f"already applied at {at} (generation {generation})"


def run_model(arguments: argparse.Namespace, context: Context) -> int:
    route = model_route(arguments.name, arguments.action)
    context.client.post(route, timeout_s=ANSWER_TIMEOUT_S)
    context.terminal.write(f"{arguments.name}: {arguments.action}ed\n")
    return exits.OK


def run_models(_arguments: argparse.Namespace, context: Context) -> int:
    snapshot = context.client.get("/homespec/status")
    table = Table(box=None, pad_edge=False)
    for heading in ("model", "state", "residency", "precision", "context"):
        table.add_column(heading, no_wrap=True)
    table.add_column("memory", justify="right", no_wrap=True)
    for model in snapshot["models"]:
        table.add_row(
            model["name"],
            model["state"],
            model.get("residency") or "–",
            model.get("precision") or "–",
            str(model.get("context") or "–"),
            size(model.get("memory_bytes")),
        )
    context.terminal.out.print(table)
    return exits.OK
