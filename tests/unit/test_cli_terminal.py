"""What a person at a terminal sees: the live status, and Ctrl-C."""

from __future__ import annotations

import io
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from rich.console import Console

from homespecd.cli.bench import picture
from homespecd.cli.draw import bar, number, size, words
from homespecd.cli.status_view import frame, troubles
from homespecd.cli.terminal import harmless
from tests.unit.cli_service import BENCHED, SNAPSHOT, answer_events
from tests.unit.fake_service import Events, FakeService, serving
from tests.unit.pseudo_terminal import on_a_terminal


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "s.sock"


@pytest.fixture
def service(path: Path) -> Iterator[FakeService]:
    with serving(path) as service:
        service.answers["GET /homespec/status"] = SNAPSHOT
        yield service


@pytest.mark.usefixtures("service")
def test_live_status_until_ctrl_c(path: Path) -> None:
    with on_a_terminal("--socket", str(path), "status", "--interval", "0.1") as session:
        session.read_until(b"homespecd 0.1.0")
        session.process.send_signal(signal.SIGINT)
        assert session.read_to_end() == 130
    assert b"Traceback" not in session.seen
    # The alternate screen was entered and left again, the cursor hidden and shown.
    assert session.seen.count(b"\x1b[?1049h") == session.seen.count(b"\x1b[?1049l") == 1
    assert b"\x1b[?25h" in session.seen[session.seen.rindex(b"\x1b[?25l") :]


@pytest.mark.usefixtures("service")
def test_no_color_on_a_terminal(path: Path) -> None:
    arguments = ("--socket", str(path), "status", "--once")
    with on_a_terminal(*arguments) as session:
        assert session.read_to_end() == 0
        assert b"\x1b[32m" in session.seen
    with on_a_terminal(*arguments, NO_COLOR="1") as session:
        assert session.read_to_end() == 0
        assert b"smollm2" in session.seen
        assert b"\x1b[3" not in session.seen


def test_an_answer_cannot_drive_the_terminal(service: FakeService, path: Path) -> None:
    events = Events(answer_events("a\x1b[2Jb\x07c\n"))
    service.answers["POST /v1/chat/completions"] = events
    with on_a_terminal("--socket", str(path), "ask", "smollm2", "x") as session:
        assert session.read_to_end() == 0
    assert b"a[2Jbc\r\n" in session.seen


def test_harmless_keeps_text() -> None:
    assert harmless("tab\t line\n é 🌊 \u202f") == "tab\t line\n é 🌊 \u202f"
    assert harmless("\x1b]0;x\x07\r\x9b2J\x7f") == "]0;x2J"


@pytest.mark.parametrize("columns", [40, 80, 100, 160])
def test_no_frame_is_wider_than_the_window(columns: int) -> None:
    console = Console(width=columns, record=True, file=open(os.devnull, "w"))  # noqa: PTH123, SIM115
    with console.file:
        console.print(frame(SNAPSHOT))
        console.print(picture(BENCHED, columns))
    lines = console.export_text().splitlines()
    assert len(lines) > 10
    assert max(len(line) for line in lines) <= columns


def test_a_model_that_was_refused_for_memory_shows_why() -> None:
    """It works as configured, so it is no trouble that an alert should be raised for."""
    why = "model 'big' needs about 9.00 GiB, and at most 6.00 GiB may be held"
    refused = {"name": "big", "state": "unloaded", "error": why}
    snapshot = {**SNAPSHOT, "models": [refused]}
    console = Console(width=120, record=True, file=io.StringIO())
    console.print(frame(snapshot))
    assert f"! big was not loaded: {why}" in console.export_text()
    assert troubles(snapshot) == []


def test_bars() -> None:
    assert bar(0, 10, 8) == ""
    assert bar(10, 10, 8) == "█" * 8
    assert bar(5, 10, 3) == "█▌"
    assert bar(99, 10, 2) == "██"
    assert bar(1, 0, 8) == ""


def test_what_is_not_known_yet_is_a_dash() -> None:
    assert [number(None), size(None), words(None), number(True)] == ["–"] * 4
    assert number(1.005, 1, " ms") == "1.0 ms"
    assert words("slower_than_plain") == "slower than plain"


INTERRUPTED_IMPORT = """
import os, signal, sys
from homespecd.cli.main import main

class Interrupt:
    def find_spec(self, name, path=None, target=None):
        if name == sys.argv[1]:
            os.kill(os.getpid(), signal.SIGINT)

sys.meta_path.insert(0, Interrupt())
sys.exit(main(["status"]))
"""


@pytest.mark.parametrize("module", ["homespecd.cli.commands", "pydantic", "rich.live"])
def test_ctrl_c_while_starting(module: str) -> None:
    """Most of the time of a short command goes into imports; they can be interrupted too."""
    result = subprocess.run(
        [sys.executable, "-c", INTERRUPTED_IMPORT, module], capture_output=True, text=True
    )
    assert (result.returncode, result.stdout, result.stderr) == (130, "", "")
