"""One screen of the live status: the snapshot and what the person chose, as lines of text. Pure."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from rich.text import Text

from homespecd.cli import plots
from homespecd.cli.draw import bar, number, size, words
from homespecd.cli.status_view import (
    STATE_STYLES,
    best_drafter,
    elsewhere,
    exactness,
    troubles,
)
from homespecd.cli.terminal import harmless
from homespecd.config.units import format_duration, format_size

KEYS = "↑↓ select · l load · u unload · p pin view · r reload · q quit"
_HISTORY = 400

Snapshot = Mapping[str, Any]


@dataclass
class View:
    """What is shown: mutable, since keys and time change it.

    selected: a model's name; it stays selected wherever it moves. pinned: only this model is shown.
    message: of the last key. absent: why there is no service now; "" while there is one.
    """

    selected: str = ""
    pinned: bool = False
    message: str = ""
    absent: str = ""
    speedups: dict[str, deque[float]] = field(default_factory=dict)

    def take(self, snapshot: Snapshot) -> None:
        """A new snapshot has come."""
        names = [model["name"] for model in snapshot["models"]]
        if self.selected not in names:
            self.selected = names[0] if names else ""
            self.pinned = False
        for model in snapshot["models"]:
            speedup = _speedup(model)
            if speedup is not None:
                self.speedups.setdefault(model["name"], deque(maxlen=_HISTORY)).append(speedup)

    def move(self, snapshot: Snapshot, by: int) -> None:
        """Select the model `by` further down."""
        names = [model["name"] for model in snapshot["models"]]
        if names:
            index = names.index(self.selected) if self.selected in names else 0
            self.selected = names[max(0, min(index + by, len(names) - 1))]


def screen(snapshot: Snapshot, view: View, *, width: int, height: int) -> list[Text]:
    """At most `height` lines, none wider than `width`."""
    models = snapshot["models"]
    chosen = next((model for model in models if model["name"] == view.selected), None)
    top = [_header(snapshot, view), _memory(snapshot, width), Text()]
    bottom = [_footer(view)]
    alarms = [Text(f"! {one}", style="bold red") for one in troubles(snapshot)][
        : max(1, height // 8)
    ]
    room = height - len(top) - len(bottom) - len(alarms)
    middle: list[Text] = []
    if not models:
        middle = [Text("no models: homespecctl import FILE --name NAME makes one", style="dim")]
    elif chosen is None or not view.pinned:
        detail_lines = 10 if chosen is not None else 0
        rows = max(1, min(len(models), room - 2 - detail_lines))
        middle = [_heading(width), *_window(models, view.selected, rows, width), Text()]
    if chosen is not None:
        middle += _detail(chosen, view, width=width, height=room - len(middle))
    left = room - len(middle)
    if left > 2 and snapshot.get("clients"):
        middle += [Text(), *_clients(snapshot["clients"], left - 1)]
    middle = middle[:room]
    lines = [*top, *middle, *(Text() for _ in range(room - len(middle))), *alarms, *bottom]
    for line in lines:
        line.truncate(width, overflow="ellipsis")
    return lines[:height]


def _header(snapshot: Snapshot, view: View) -> Text:
    if view.absent:
        return Text(f"homespecd: {view.absent}", style="bold red")
    queue = snapshot.get("queue") or {}
    facts = [
        f"homespecd {snapshot.get('version', '?')}",
        f"up {_coarse(snapshot.get('uptime_s') or 0)}",
        f"{queue.get('active', 0)} active",
        f"{queue.get('waiting', 0)} waiting",
    ]
    return Text(" · ".join(facts), style="bold")


def _coarse(seconds: float) -> str:
    """A running clock would be a new screen every second."""
    return format_duration(seconds - seconds % (60 if seconds >= 60 else 10))


def _memory(snapshot: Snapshot, width: int) -> Text:
    memory = snapshot.get("memory") or {}
    used, cap = memory.get("used_bytes"), memory.get("cap_bytes")
    if not isinstance(used, int) or not isinstance(cap, int):
        return Text("memory –")
    cells = max(10, min(40, width - 50))
    text = Text("memory ")
    style = "red" if used > 0.95 * cap else "green"
    text.append(bar(used, cap, cells).ljust(cells, "░"), style=style)
    text.append(f" {format_size(used)} of {format_size(cap)}")
    pressure = memory.get("pressure_avg10")
    if isinstance(pressure, int | float):
        text.append(f" · pressure {pressure:.1f} %", style="red" if pressure >= 10 else "")
    return text


def _widths(width: int) -> tuple[int, int, bool]:
    """Columns of the name and of a model's memory bar, and whether there is room for more."""
    wide = width >= 104
    name = max(10, min(28, width - (88 if wide else 66)))
    return name, 10 if wide else 5, wide


def _heading(width: int) -> Text:
    name, cells, wide = _widths(width)
    more = f"{'provider':<9} {'mode':<11} " if wide else ""
    return Text(
        f"  {'model':<{name}} {'state':<9} {more}{'memory':>{cells + 10}} {'tok/s':>6} "
        f"{'speed-up':>8} {'len':>5} {'k':>3} {'busy':>6}",
        style="dim",
    )


def _window(models: Sequence[Snapshot], selected: str, rows: int, width: int) -> Iterator[Text]:
    """As many rows as fit, the selected one among them."""
    index = next((i for i, model in enumerate(models) if model["name"] == selected), 0)
    first = max(0, min(index - rows // 2, len(models) - rows))
    for model in models[first : first + rows]:
        yield _row(model, chosen=model["name"] == selected, width=width)


def _row(model: Snapshot, *, chosen: bool, width: int) -> Text:
    columns, cells, wide = _widths(width)
    state, speculation = str(model.get("state", "?")), model.get("speculation") or {}
    used, cap = (
        model.get("memory_bytes") or 0,
        model.get("cap_bytes") or model.get("estimate_bytes"),
    )
    drafter = best_drafter(model) or {}
    ready = state == "ready"
    row = Text("▸ " if chosen else "  ", style="bold" if chosen else "")
    row.append(f"{_cut(harmless(str(model['name'])), columns):<{columns}} ")
    row.append(f"{state:<9} ", style=STATE_STYLES.get(state, ""))
    if wide:
        row.append(f"{_cut(str(model.get('provider') or '–'), 9):<9} ")
        row.append(f"{_cut(str(speculation.get('mode') or '–') if ready else '–', 11):<11} ")
    row.append(f"{bar(used, cap or 1, cells):░<{cells}} ", style="green" if used else "dim")
    row.append(f"{size(used or None):>9} {number(speculation.get('decode_tok_s')):>6} ")
    speedup = _speedup(model) if ready else None
    style = "" if speedup is None else "green" if speedup > 1 else "yellow"
    row.append(f"{number(speedup, 2, '×'):>8} ", style=style)
    row.append(f"{number(drafter.get('acceptance_length'), 2):>5} ")
    row.append(f"{drafter.get('k') or '–':>3} ")
    row.append(f"{model.get('active') or 0}+{model.get('waiting') or 0}".rjust(6))
    return row


def _detail(model: Snapshot, view: View, *, width: int, height: int) -> list[Text]:
    """The selected model: what it is, how it decodes and why, and the two plots."""
    lines = [_title(model, width), _decoding(model), _totals(model)]
    asked_for = elsewhere(model)
    if asked_for:
        lines.append(Text(asked_for, style="yellow"))
    if model.get("error"):
        first = str(model["error"]).strip().split("\n", 1)[0]
        lines.append(Text(harmless(first), style="red"))
    if view.pinned:
        for one in (model.get("speculation") or {}).get("drafters") or []:
            lines.append(_drafter_line(one))
            if elsewhere(one):
                lines.append(Text(f"    {elsewhere(one)}", style="yellow"))
    lines = lines[: max(0, height)]
    room = height - len(lines) - 1
    if room >= 3:
        lines += _plots(model, view, width=width, height=min(room, 14 if view.pinned else 6))
    return lines


def _title(model: Snapshot, width: int) -> Text:
    provider, asked = model.get("provider"), model.get("requested_provider")
    facts = [str(model.get("precision") or "–"), str(provider or "not loaded")]
    device = (model.get("placement") or {}).get("device")
    if device and provider != "cpu":
        facts[1] += f" {harmless(str(device))}"
    if asked and asked != provider:
        facts[1] += f" (asked for {asked})"
    facts += [f"context {model.get('context') or '–'}", str(model.get("residency") or "–")]
    if model.get("lanes"):
        facts.append(f"{model['lanes']} lanes")
    if model.get("pid"):
        facts.append(f"pid {model['pid']}")
    if model.get("loading"):
        facts.append(f"loading: {harmless(str(model['loading']))}")
    text = Text(_cut(harmless(str(model["name"])), max(10, width // 3)), style="bold")
    text.append("  " + " · ".join(facts), style="dim")
    return text


def _decoding(model: Snapshot) -> Text:
    if model.get("state") != "ready":
        return Text(f"{model.get('state', '?')}", style="dim")
    speculation = model.get("speculation") or {}
    mode, reason = speculation.get("mode") or "–", words(speculation.get("reason"))
    text = Text(f"decoding {mode}")
    drafter = best_drafter(model)
    if drafter is not None:
        text.append(f" with {harmless(str(drafter['name']))}")
        if drafter.get("speedup"):
            text.append(f", {number(drafter['speedup'], 2)}× plain", style="bold")
        rate = drafter.get("acceptance_rate")
        if isinstance(rate, int | float):
            text.append(f", {100 * rate:.0f} % accepted")
    if reason != "speculating":
        text.append(f" ({reason})")
    plain = speculation.get("plain_ms_per_token")
    if isinstance(plain, int | float):
        text.append(f" · plain {plain:.1f} ms/tok", style="dim")
    if exactness(model):
        text.append(f" · {exactness(model)}", style="dim")
    return text


def _totals(model: Snapshot) -> Text:
    totals = model.get("totals") or {}
    facts = [
        f"{totals.get('requests', 0)} requests",
        f"{totals.get('prompt_tokens', 0)} prompt tokens",
        f"{totals.get('completion_tokens', 0)} made",
        f"{totals.get('failures', 0)} failed",
    ]
    return Text(" · ".join(facts), style="dim")


def _drafter_line(drafter: Snapshot) -> Text:
    name, kind = harmless(str(drafter["name"])), drafter.get("kind", "?")
    facts = [
        f"{name} ({kind}) {drafter.get('state', '?')}",
        words(drafter.get("reason")),
        f"k {drafter.get('k') or '–'}",
        f"{number(drafter.get('speedup'), 2)}× plain",
        f"{number(drafter.get('acceptance_length'), 2)} tokens a round",
        size(drafter.get("memory_bytes") or None),
    ]
    return Text("  " + " · ".join(facts), style="red" if drafter.get("state") == "failed" else "")


def _plots(model: Snapshot, view: View, *, width: int, height: int) -> list[Text]:
    """Side by side; below their titles `height` - 1 lines."""
    left, gap = width // 2 - 1, 2
    speculation = model.get("speculation") or {}
    costs = plots.curve(speculation.get("step_ms") or {}, width=left, height=height - 1)
    values = view.speedups.get(model["name"]) or ()
    past = plots.history(list(values), width=width - left - gap, height=height - 1)
    if not values:
        past = [" " * 6 + "nothing measured yet"]
    if not costs:
        costs = ["nothing measured yet"]
    title = _cut("rows in a step: time, against one", left)
    lines = [Text(f"{title:<{left + gap}}speed-up", style="dim")]
    for index in range(max(len(costs), len(past))):
        line = Text(costs[index] if index < len(costs) else "", style="blue")
        line.truncate(left, pad=True)
        line.append(" " * gap)
        line.append(past[index] if index < len(past) else "", style="green")
        lines.append(line)
    return lines


def _clients(clients: Sequence[Snapshot], room: int) -> Iterator[Text]:
    busiest = sorted(clients, key=lambda one: -(one.get("active") or 0))
    for client in busiest[:room]:
        who = "network" if client.get("uid") is None else f"uid {client['uid']}"
        name = harmless(str(client.get("comm") or "–"))
        yield Text(
            f"{_cut(name, 16):<16} {who:<10} {client.get('active', 0)} active · "
            f"{client.get('requests', 0)} requests · {client.get('completion_tokens') or 0} tokens",
            style="" if client.get("active") else "dim",
        )


def _footer(view: View) -> Text:
    if view.message:
        return Text(harmless(view.message), style="bold")
    return Text(KEYS, style="dim")


def _speedup(model: Snapshot) -> float | None:
    """Of the drafter in use; while decoding is plain there is none."""
    drafter = best_drafter(model)
    value = None if drafter is None else drafter.get("speedup")
    return float(value) if isinstance(value, int | float) else None


def _cut(text: str, columns: int) -> str:
    return text if len(text) <= columns else text[: columns - 1] + "…"
