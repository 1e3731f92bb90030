"""The live status, driven in a pseudo-terminal: screens as text, keys, sizes, restarts."""

from __future__ import annotations

import copy
import os
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from homespecd.cli import plots
from homespecd.cli.live import Live, with_names
from homespecd.cli.live_view import View, screen
from tests.conftest import ROOT
from tests.unit.cli_service import SNAPSHOT
from tests.unit.fake_service import FakeService, serving
from tests.unit.pseudo_terminal import Session, on_a_terminal

# As the program draws them. After a change on purpose:
#   python -m tests.unit.test_cli_live
SCREENS = ROOT / "tests" / "data" / "screens"
SIZES = [(80, 24), (120, 30), (60, 15)]


def snapshot() -> dict[str, Any]:
    """A service with three models, one of which decodes speculatively."""
    whole = copy.deepcopy(SNAPSHOT)
    model = whole["models"][0]
    model |= {
        "provider": "cpu",
        "requested_provider": "auto",
        "lanes": 2,
        "pid": 77,
        "cap_bytes": 2**28,
        "totals": {
            "requests": 12,
            "prompt_tokens": 340,
            "completion_tokens": 4000,
            "failures": 1,
        },
    }
    step_ms = {"1": 8.4, "2": 9.1, "4": 12.2, "8": 18.6, "16": 31.4}
    model["speculation"] |= {"step_ms": step_ms, "plain_ms_per_token": 8.5}
    model["speculation"]["drafters"][0]["acceptance_rate"] = 0.61
    failed = {"name": "broken", "state": "failed", "error": "weights.bin is cut off\nmore"}
    whole["models"].append(failed)
    return whole


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "s.sock"


@pytest.fixture
def service(path: Path) -> Iterator[FakeService]:
    with serving(path) as service:
        service.answers["GET /homespec/status"] = snapshot()
        yield service


def live(path: Path, **environment: str) -> Any:
    arguments = ("--socket", str(path), "status", "--interval", "0.1")
    return on_a_terminal(*arguments, **environment)


def selected(lines: list[str]) -> str:
    """The name in the row with the mark."""
    return next((line.split()[1] for line in lines if line.startswith("▸")), "")


def expected(columns: int, lines: int) -> list[str]:
    return (SCREENS / f"{columns}x{lines}.txt").read_text("utf-8").splitlines()


@pytest.mark.parametrize(("columns", "lines"), SIZES)
def test_screens(service: FakeService, path: Path, columns: int, lines: int) -> None:
    """What is on the terminal is what the files show, at the size of the window."""
    assert service.answers
    with live(path) as session:
        session.resize(columns, lines)
        found = session.wait_for(
            lambda shown: len(shown) == lines and "█" in shown[1] and _same(shown, columns, lines)
        )
        assert max(map(len, found)) <= columns
        session.press("q")
        assert session.read_to_end() == 6, "a model has failed"
    # The other screen was entered and left, the cursor hidden and shown.
    assert session.seen.count(b"\x1b[?1049h") == session.seen.count(b"\x1b[?1049l") == 1
    assert session.seen.rindex(b"\x1b[?25h") > session.seen.rindex(b"\x1b[?25l")


def _same(shown: list[str], columns: int, lines: int) -> bool:
    """The plot on the right grows with time; all else is as in the file."""
    file = expected(columns, lines)
    start = next((i for i, line in enumerate(file) if line.startswith("rows in a step")), lines)
    half = columns // 2 + 1

    def still(text: list[str]) -> list[str]:
        return [
            line[:half].rstrip() if start < i <= start + 6 else line for i, line in enumerate(text)
        ]

    return still(shown) == still(file)


def test_keys(service: FakeService, path: Path) -> None:
    service.answers["POST /homespec/models/größer/load"] = {"state": "ready"}
    service.answers["POST /homespec/models/größer/unload"] = (503, {"error": {"message": "busy"}})
    service.answers["POST /homespec/reload"] = {"changes": ["memory changed (cap)"]}

    def asked(what: str) -> bool:
        return any(request == f"POST /homespec/{what}" for request, _ in service.asked)

    with live(path) as session:
        session.wait_for(lambda shown: selected(shown) == "smollm2")
        session.press("\x1b[B")
        session.wait_for(lambda shown: selected(shown) == "größer")
        session.press("\x1bOB\x1b[B")
        session.wait_for(lambda shown: selected(shown) == "broken")
        session.press("\x1b[5~k")  # page up is no key of ours, and is not taken for five of them
        session.wait_for(lambda shown: selected(shown) == "größer")
        session.press("l")
        session.wait_for(lambda shown: "größer: loaded" in shown[-1])
        session.press("u")
        session.wait_for(lambda shown: "unloading größer failed: busy" in shown[-1])
        session.press("r")
        session.wait_for(lambda shown: "reloaded: memory changed (cap)" in shown[-1])
        session.press("k")
        session.wait_for(lambda shown: selected(shown) == "smollm2")
        session.press("p")
        pinned = session.wait_for(lambda shown: not selected(shown))
        assert any(line.startswith("smollm2  int4") for line in pinned)
        assert any("ngram (ngram) ready" in line for line in pinned)
        session.press("p")
        session.wait_for(lambda shown: selected(shown) == "smollm2")
        session.press("q")
        assert session.read_to_end() == 6
    assert asked("models/größer/load")
    assert asked("reload")


def test_a_refused_reload_is_said(service: FakeService, path: Path) -> None:
    service.answers["POST /homespec/reload"] = (422, {"problems": [{}, {}]})
    with live(path) as session:
        session.wait_for(selected)
        session.press("r")
        session.wait_for(lambda shown: "refused, 2 problems" in shown[-1])


def test_it_survives_a_restart_of_the_service(path: Path) -> None:
    with serving(path) as service:
        service.answers["GET /homespec/status"] = snapshot()
        context = live(path)
        session: Session = context.__enter__()
        session.wait_for(selected)
    try:
        gone = session.wait_for(lambda shown: "homespecd is not running" in shown[0])
        assert selected(gone) == "smollm2", "what was last known stays"
        with serving(path) as service:
            service.answers["GET /homespec/status"] = {**snapshot(), "version": "0.2.0"}
            session.wait_for(lambda shown: shown[0].startswith("homespecd 0.2.0"))
            session.press("q")
            assert session.read_to_end() == 6
    finally:
        context.__exit__(None, None, None)


@pytest.mark.usefixtures("service")
def test_every_size_is_drawn(path: Path) -> None:
    with live(path, NO_COLOR="1") as session:
        for columns, lines in ((80, 24), (200, 50), (40, 10), (20, 4), (80, 24)):
            session.resize(columns, lines)
            shown = session.wait_for(
                lambda shown, lines=lines, columns=columns: (
                    len(shown) == lines  # type: ignore[misc]
                    and max(map(len, shown)) <= columns
                )
            )
            assert shown[0].startswith("homespecd 0.1.0"[:columns])
        session.process.send_signal(signal.SIGINT)
        assert session.read_to_end() == 130
    assert b"\x1b[3" not in session.seen, "NO_COLOR"


@pytest.mark.usefixtures("service")
def test_a_terminal_without_unicode_gets_what_it_can_show(path: Path) -> None:
    with live(path, PYTHONIOENCODING="ascii:strict", PYTHONUTF8="0") as session:
        shown = session.wait_for(lambda shown: shown and shown[-1].startswith("^v select"))
        assert any("#" in line for line in shown)
        session.press("q")
        session.read_to_end()
    assert b"Traceback" not in session.seen


def test_nothing_is_drawn_twice(path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """An idle service is watched for nothing."""
    from rich.console import Console

    from homespecd.cli.client import Client

    idle = {**SNAPSHOT, "models": []}
    session = Live(Client(path), Console(width=80, height=24), idle)
    session.draw()
    assert capsys.readouterr().out.startswith("\x1b[H")
    session.snapshot = {**idle, "uptime_s": SNAPSHOT["uptime_s"] + 1}
    session.draw()
    assert capsys.readouterr().out == ""


def test_a_model_that_vanishes_is_selected_no_more() -> None:
    view = View()
    view.take(snapshot())
    view.move(snapshot(), 2)
    assert view.selected == "broken"
    view.pinned = True
    view.take(SNAPSHOT)
    assert (view.selected, view.pinned) == ("smollm2", False)
    view.take({"models": []})
    assert view.selected == ""


@pytest.mark.parametrize("count", [1, 5, 40])
def test_the_selected_model_is_always_in_sight(count: int) -> None:
    models = [{**SNAPSHOT["models"][1], "name": f"m{index}"} for index in range(count)]
    many = {**SNAPSHOT, "models": models}
    view = View()
    view.take(many)
    for _ in range(count):
        lines = [line.plain for line in screen(many, view, width=80, height=24)]
        assert selected(lines) == view.selected
        view.move(many, 1)
    assert view.selected == f"m{count - 1}"


def test_names_cannot_drive_the_terminal() -> None:
    evil = copy.deepcopy(snapshot())
    evil["models"][0]["name"] = "a\x1b[2J"
    evil["clients"][0]["comm"] = "b\x07\r"
    view = View()
    view.take(evil)
    text = "".join(line.plain for line in screen(evil, view, width=80, height=30))
    assert "\x1b" not in text
    assert "\x07" not in text
    assert "\r" not in text


def test_clients_that_the_sandbox_hides_get_their_names() -> None:
    clients = [{"pid": os.getpid(), "comm": ""}, {"pid": 2**22 + 1, "comm": ""}, {"comm": "known"}]
    named = with_names({"clients": clients})["clients"]
    assert named[0]["comm"] == Path("/proc/self/comm").read_text().strip()
    assert [one["comm"] for one in named[1:]] == ["", "known"]


def test_history_has_the_line_of_plain_in_it() -> None:
    lines = plots.history([0.5, 1.0, 2.0], width=12, height=5)
    assert lines == [
        "  2× ┤  █",
        "     │  █",
        "  1× ┤ ▄█",
        "     │▂██",
        "   0 ┤███",
    ]
    assert len(plots.history([1.0] * 500, width=30, height=4)[0]) == 30
    assert plots.history([], width=30, height=3)[0].startswith("  1× ┤")


def test_curve_where_there_is_little_room() -> None:
    """What a block to verify has matters most; each bar is a share of the longest."""
    step_ms = {str(rows): float(rows) for rows in (1, 2, 3, 4, 6, 8, 9, 16, 64)}
    lines = plots.curve(step_ms, width=40, height=4)
    assert [line.split()[0] for line in lines] == ["1", "2", "4", "8"]
    assert lines[-1] == "   8 ████████████████     8.0 ms  8.00×"
    assert [line.split()[0] for line in plots.curve({"5": 9.0}, width=40, height=4)] == ["5"]
    assert plots.curve({}, width=40, height=5) == []


@pytest.mark.parametrize(
    ("value", "top"), [(0.2, 1), (1.0, 1), (1.2, 1.5), (2.0, 2), (7, 10), (12, 15), (200, 200)]
)
def test_axes_end_at_round_numbers(value: float, top: float) -> None:
    assert plots.nice_above(value) == pytest.approx(top)


if __name__ == "__main__":
    SCREENS.mkdir(exist_ok=True)
    for width, height in SIZES:
        fresh = View()
        fresh.take(snapshot())
        drawn = [
            line.plain.rstrip() for line in screen(snapshot(), fresh, width=width, height=height)
        ]
        (SCREENS / f"{width}x{height}.txt").write_text("\n".join(drawn) + "\n", encoding="utf-8")
