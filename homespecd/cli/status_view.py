"""The snapshot as a picture, and what in it should worry somebody. Pure: no clock, no socket."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from homespecd.cli.draw import bar, number, size, words
from homespecd.cli.terminal import harmless
from homespecd.config.units import format_duration, format_size

BAR_COLUMNS = 20

STATE_STYLES = {
    "ready": "green",
    "loading": "yellow",
    "unloading": "yellow",
    "failed": "bold red",
    "unloaded": "dim",
}


def troubles(snapshot: Mapping[str, Any]) -> list[str]:
    """Why the service is running but not well; [] when it is."""
    found = []
    config = snapshot.get("config") or {}
    if config.get("last_error"):
        found.append(f"the last reload was refused: {_first_line(config['last_error'])}")
    for model in snapshot["models"]:
        if model.get("state") == "failed":
            found.append(
                f"{model['name']} failed: {_first_line(model.get('error') or 'no reason')}"
            )
        for drafter in _drafters(model):
            if drafter.get("state") == "failed":
                reason = drafter.get("error") or words(drafter.get("reason"))
                found.append(f"{model['name']} runs without {drafter['name']}: {reason}")
    return [harmless(one) for one in found]


def refusals(snapshot: Mapping[str, Any]) -> list[str]:
    """Models that are not in memory because there was no room when they were asked for."""
    return [
        harmless(f"{model['name']} was not loaded: {_first_line(model['error'])}")
        for model in snapshot["models"]
        if model.get("state") == "unloaded" and model.get("error")
    ]


def best_drafter(model: Mapping[str, Any]) -> Mapping[str, Any] | None:
    """The drafter that matters most: of those that work, the fastest; unmeasured ones come last."""
    working = [one for one in _drafters(model) if one.get("state") != "failed"]
    return max(working, key=lambda one: one.get("speedup") or 0.0, default=None)


def frame(snapshot: Mapping[str, Any]) -> RenderableType:
    """One frame of `status`."""
    parts: list[RenderableType] = [_header(snapshot), _memory(snapshot), Text()]
    parts.append(_models(snapshot["models"]) if snapshot["models"] else Text("no models"))
    clients = snapshot.get("clients") or []
    if clients:
        parts += [Text(), _clients(clients)]
    notes = [Text(f"! {one}", style="bold red") for one in troubles(snapshot)]
    notes += [Text(f"! {one}", style="yellow") for one in refusals(snapshot)]
    if notes:
        parts += [Text(), *notes]
    return Group(*parts)


def _header(snapshot: Mapping[str, Any]) -> Text:
    queue = snapshot.get("queue") or {}
    facts = [
        f"homespecd {snapshot.get('version', '?')}",
        f"up {format_duration(snapshot.get('uptime_s') or 0)}",
        f"{queue.get('active', 0)} active",
        f"{queue.get('waiting', 0)} waiting",
    ]
    return Text(" · ".join(facts), style="bold")


def _memory(snapshot: Mapping[str, Any]) -> Text:
    memory = snapshot.get("memory") or {}
    used, cap = memory.get("used_bytes"), memory.get("cap_bytes")
    if not isinstance(used, int) or not isinstance(cap, int):
        return Text("memory –")
    text = Text("memory ")
    style = "red" if used > 0.95 * cap else "green"
    text.append(bar(used, cap, BAR_COLUMNS).ljust(BAR_COLUMNS, "░"), style=style)
    text.append(f" {format_size(used)} of {format_size(cap)}")
    pressure = memory.get("pressure_avg10")
    if isinstance(pressure, int | float) and pressure > 0:
        text.append(f" · pressure {pressure:.1f} %")
    return text


def _models(models: list[Mapping[str, Any]]) -> Table:
    table = Table(box=None, pad_edge=False, header_style="dim")
    for heading in ("model", "state"):
        table.add_column(heading, no_wrap=True)
    for heading in ("memory", "busy", "tok/s"):
        table.add_column(heading, justify="right", no_wrap=True)
    table.add_column("decoding")
    for model in models:
        speculation = model.get("speculation") or {}
        state = str(model.get("state", "?"))
        table.add_row(
            Text(harmless(str(model["name"]))),
            Text(state, style=STATE_STYLES.get(state, "")),
            size(model.get("memory_bytes")),
            f"{model.get('active') or 0}+{model.get('waiting') or 0}",
            number(speculation.get("decode_tok_s")),
            Text(_decoding(speculation) if state == "ready" else ""),
        )
        for line in (elsewhere(model), *map(elsewhere, _drafters(model))):
            if line:
                table.add_row("", "", "", "", "", Text(f"  {line}", style="yellow"))
        for drafter in _drafters(model):
            table.add_row(
                "", "", size(drafter.get("memory_bytes") or None), "", "", _drafter(drafter)
            )
    return table


def elsewhere(model: Mapping[str, Any]) -> str:
    """Where a model or a drafter runs if that is not (only) where it was asked to, else ""."""
    placement = model.get("placement") or {}
    asked, used = placement.get("requested"), placement.get("provider")
    if not used or (asked in ("auto", used) and not placement.get("reason")):
        return ""
    who = f"{model['name']} " if "kind" in model else ""
    where = f"{used} ({placement['device']})" if placement.get("device") else used
    reason = placement.get("reason") or "no reason known"
    return harmless(f"{who}asked for {asked}, runs on {where}: {reason}")


def exactness(model: Mapping[str, Any]) -> str:
    """What blocks are worth where the model runs, as measured when it was loaded."""
    found = (model.get("speculation") or {}).get("exactness") or {}
    match found.get("guarantee"):
        case "bit_exact":
            return "blocks exact bit for bit"
        case "near_ties":
            return f"near-ties in {found.get('near_tie_flips', 0)} of {found.get('rows', '?')} rows"
        case "not_block_causal":
            return "blocks change what comes before them"
    return ""


def _decoding(speculation: Mapping[str, Any]) -> str:
    mode = speculation.get("mode")
    reason = words(speculation.get("reason"))
    return f"{mode or '–'} ({reason})" if reason not in ("–", "speculating") else str(mode)


def _drafter(drafter: Mapping[str, Any]) -> Text:
    if drafter.get("state") == "failed":
        return Text(f"{drafter['name']}: failed", style="red")
    facts = [str(drafter["name"])]
    if drafter.get("k"):
        facts.append(f"k {drafter['k']}")
    if drafter.get("acceptance_length"):
        facts.append(f"{number(drafter['acceptance_length'], 2)} tokens a round")
    if drafter.get("speedup"):
        facts.append(f"{number(drafter['speedup'], 2)}× plain")
    return Text("  " + " · ".join(facts), style="dim")


def _clients(clients: list[Mapping[str, Any]]) -> Table:
    table = Table(box=None, pad_edge=False, header_style="dim")
    table.add_column("client", no_wrap=True)
    for heading in ("uid", "pid", "active", "requests", "tokens"):
        table.add_column(heading, justify="right", no_wrap=True)
    for client in clients:
        table.add_row(
            Text(harmless(str(client.get("comm") or "–"))),
            *(
                "–" if client.get(key) is None else str(client[key])
                for key in ("uid", "pid", "active", "requests", "completion_tokens")
            ),
        )
    return table


def _drafters(model: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    return (model.get("speculation") or {}).get("drafters") or []


def _first_line(text: Any) -> str:
    return str(text).strip().split("\n", 1)[0]
