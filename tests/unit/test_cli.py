"""`homespecctl` against a service that answers what the test says."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

import pytest

from homespecd.cli.client import default_socket
from homespecd.cli.main import main
from tests.conftest import ROOT
from tests.unit.cli_service import SNAPSHOT, error_line, path, service
from tests.unit.fake_service import FakeService

__all__ = ["path", "service"]  # the fixtures


def with_model(**changes: Any) -> dict[str, Any]:
    return {**SNAPSHOT, "models": [{**SNAPSHOT["models"][0], **changes}]}


# M14: each way of being down is another message, none is a trace, and the codes differ.


def test_no_socket(path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["status", "--once"]) == 3
    assert error_line(capsys) == (
        f"homespecctl: {path}: homespecd is not running: there is no socket "
        "(systemctl start homespecd, or --socket PATH if it listens elsewhere)\n"
    )


def test_a_stale_socket(path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(path))
    assert main(["status"]) == 3
    assert "nobody listens on the socket it left behind" in error_line(capsys)


def test_no_permission(
    path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """As the kernel says it; the tests may run as root, whom no mode keeps out."""

    def refuse(_self: socket.socket, address: str) -> None:
        assert address == str(path)
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(socket.socket, "connect", refuse)
    assert main(["status", "--json"]) == 4
    assert "this user may not open the socket" in error_line(capsys)


def test_a_hung_service(
    path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """It accepts, as the kernel does for it, and never answers."""
    monkeypatch.setattr("homespecd.cli.status.STATUS_TIMEOUT_S", 0.05)
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(path))
        listener.listen()
        assert main(["status"]) == 5
    assert "homespecd does not answer" in error_line(capsys)


def test_the_patience_of_status_is_under_three_seconds() -> None:
    from homespecd.cli.status import STATUS_TIMEOUT_S

    assert STATUS_TIMEOUT_S <= 2.0


def test_not_a_socket_at_all(path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path.write_text("")
    assert main(["status"]) == 1
    assert error_line(capsys) == f"homespecctl: {path}: is not a socket (see --socket in --help)\n"


@pytest.mark.parametrize("answer", [b"hello\n", b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nhi"])
def test_something_else_on_the_socket(
    answer: bytes, path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    def serve(listener: socket.socket) -> None:
        connection, _ = listener.accept()
        with connection:
            connection.recv(4096)
            connection.sendall(answer)

    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(path))
        listener.listen()
        thread = threading.Thread(target=serve, args=(listener,))
        thread.start()
        assert main(["status"]) == 1
        thread.join()
    assert "the service broke off" in (line := error_line(capsys)) or "not homespecd" in line


DEGRADED = {
    "a failed model": (
        with_model(state="failed", error="weights.bin is cut off\nmore"),
        "smollm2 failed: weights.bin is cut off",
    ),
    "a failed drafter": (
        with_model(
            speculation={"drafters": [{"name": "d", "state": "failed", "reason": "draft_failed"}]}
        ),
        "smollm2 runs without d: draft failed",
    ),
    "a refused reload": (
        {**SNAPSHOT, "config": {"last_error": "x.toml:3: bad"}},
        "the last reload was refused: x.toml:3: bad",
    ),
}


@pytest.mark.parametrize("name", DEGRADED)
def test_running_but_degraded(
    name: str, service: FakeService, capsys: pytest.CaptureFixture[str]
) -> None:
    snapshot, message = DEGRADED[name]
    service.answers["GET /homespec/status"] = snapshot
    assert main(["status", "--once"]) == 6
    assert f"! {message}" in capsys.readouterr().out
    assert main(["status", "--json"]) == 6
    assert json.loads(capsys.readouterr().out) == snapshot


@pytest.mark.usefixtures("service")
def test_status_in_a_pipe(capsys: pytest.CaptureFixture[str]) -> None:
    """One frame, no escapes, nothing cut off."""
    assert main(["status"]) == 0
    out = capsys.readouterr().out
    assert "\x1b" not in out
    assert "\r" not in out
    assert "homespecd 0.1.0 · up 3m 20s · 2 active · 1 waiting" in out
    assert "512 MiB of 1.00 GiB · pressure 0.5 %" in out
    for words in ("smollm2", "ready", "93.8 MiB", "2+1", "181.0", "speculative", "größer"):
        assert words in out
    assert "ngram · k 8 · 2.40 tokens a round · 1.93× plain" in out
    assert "app" in out


@pytest.mark.usefixtures("service")
def test_status_as_json_is_the_snapshot(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["status", "--json"]) == 0
    assert json.loads(capsys.readouterr().out) == SNAPSHOT


def test_status_without_models(service: FakeService, capsys: pytest.CaptureFixture[str]) -> None:
    service.answers["GET /homespec/status"] = {"models": []}
    assert main(["status"]) == 0
    assert "no models" in capsys.readouterr().out


@pytest.mark.parametrize("value", ["0", "-1", "nan", "x", "1e9"])
def test_status_interval_is_checked(value: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as caught:
        main(["status", "--interval", value])
    assert caught.value.code == 2
    assert "is not from 0.1 to 3600 seconds" in error_line(capsys)


def test_load_and_unload(service: FakeService, capsys: pytest.CaptureFixture[str]) -> None:
    service.answers["POST /homespec/models/a%2Fb/load"] = {}
    service.answers["POST /homespec/models/a/b/load"] = {"state": "ready"}
    service.answers["POST /homespec/models/smollm2/unload"] = {"state": "unloaded"}
    assert main(["load", "a/b"]) == 0
    assert main(["unload", "smollm2"]) == 0
    assert capsys.readouterr().out == "a/b: loaded\nsmollm2: unloaded\n"


@pytest.mark.usefixtures("service")
def test_models(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["models"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[1].split() == ["smollm2", "ready", "pinned", "int4", "4096", "93.8", "MiB"]
    assert lines[2].split() == ["größer", "unloaded", "–", "–", "–", "–"]


def test_reload(service: FakeService, capsys: pytest.CaptureFixture[str]) -> None:
    warning = "x.toml:3: warning: models.m: needs about 2.0 GiB"
    done = {"changes": ["memory changed (cap)"], "warnings": [warning]}
    service.answers["POST /homespec/reload"] = done
    assert main(["reload"]) == 0
    assert capsys.readouterr() == ("memory changed (cap)\n", f"{warning}\n")
    service.answers["POST /homespec/reload"] = {"changes": []}
    assert main(["reload"]) == 0
    assert capsys.readouterr().out == "nothing has changed\n"  # an older service says no time
    for generation, said in ((1, "nothing has changed since"), (4, "already applied at")):
        config = {"generation": generation, "loaded_at": 1e9}
        service.answers["GET /homespec/status"] = {"models": [], "config": config}
        assert main(["reload"]) == 0
        out = capsys.readouterr().out
        assert out.startswith(said)
        assert time.strftime("%H:%M:%S", time.localtime(1e9)) in out
        assert ("(generation 4)" in out) == (generation == 4)
    problem = {"file": "x.toml", "line": 3, "key": "a.b", "message": "is bad", "hint": "mend it"}
    body = {"error": {"message": "1 problem"}, "problems": [problem]}
    service.answers["POST /homespec/reload"] = (422, body)
    assert main(["reload"]) == 78
    captured = capsys.readouterr()
    assert captured.out == "x.toml:3: a.b: is bad (mend it)\n"
    assert "the old one stays in use" in captured.err


def test_check(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "x.toml"
    file.write_text("[server]\n\nmax_queu = 1\n[memory]\ncap = 1\n")
    assert main(["check", str(file)]) == 78
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == f'{file}:3: server.max_queu: unknown key (did you mean "max_queue"?)'
    assert lines[1].startswith(f"{file}:5: memory.cap: a size is a string with a unit (")
    file.write_text("")
    assert main(["check", str(file)]) == 0
    assert capsys.readouterr().out == f"{file}: no problems (no models)\n"
    assert main(["check", str(tmp_path / "none")]) == 78
    assert capsys.readouterr().out == f"{tmp_path / 'none'}: there is no such file\n"


def test_a_missing_model_does_not_keep_the_service_from_starting(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """What an upgrade asks of the new version before it changes anything."""
    file = tmp_path / "homespecd.toml"
    file.write_text('[models.gone]\npath = "nowhere"\n')
    assert main(["check", str(file)]) == 78
    assert "gone" in capsys.readouterr().out
    assert main(["check", "--file-only", str(file)]) == 0
    file.write_text('[models.gone]\npth = "nowhere"\n')
    assert main(["check", "--file-only", str(file)]) == 78


VERIFIED: dict[str, Any] = {
    "model": "smollm2",
    "passed": True,
    "provider": "openvino",
    "device": "CPU",
    "prompts": 6,
    "tokens": 576,
    "greedy_identical": 6,
    "near_tie_flips": 0,
    "max_logit_diff": 0.0,
    "bit_identical": True,
    "block_causal": True,
    "widths": [2, 3, 17],
    "chi_square": {"statistic": 11.2, "dof": 9, "p_value": 0.26, "samples": 4000},
}


def test_verify(service: FakeService, capsys: pytest.CaptureFixture[str]) -> None:
    service.answers["POST /homespec/models/smollm2/verify"] = VERIFIED
    assert main(["verify", "smollm2"]) == 0
    out = capsys.readouterr().out
    assert "bit-identical to single steps (widths 2, 3, 17)" in out
    assert "6 of 6 answers identical, 576 tokens" in out
    assert "openvino (CPU)" in out
    assert "chi-square 11.2 with 9 degrees of freedom, p = 0.26, 4000 samples" in out
    assert "passed" in out
    failed = {**VERIFIED, "passed": False, "bit_identical": False, "max_logit_diff": 1.25}
    service.answers["POST /homespec/models/smollm2/verify"] = failed
    assert main(["verify", "smollm2"]) == 1
    assert "up to 1.25 from single steps" in capsys.readouterr().out
    assert main(["verify", "smollm2", "--json"]) == 1
    assert json.loads(capsys.readouterr().out) == failed


@pytest.mark.parametrize(
    "command",
    [
        "status",
        "check",
        "reload",
        "load",
        "unload",
        "models",
        "ask",
        "import",
        "bench",
        "verify",
        "demo",
    ],
)
def test_every_command_has_help(command: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as caught:
        main([command, "--help"])
    assert caught.value.code == 0
    out = capsys.readouterr().out
    assert f"usage: homespecctl {command}" in out
    assert ("--socket PATH" in out) == (command not in ("check", "import", "demo"))


def test_a_socket_may_be_named_anywhere(capsys: pytest.CaptureFixture[str]) -> None:
    config = str(ROOT / "etc" / "homespecd.toml")
    for command in (["--socket", "x", "check", config], ["check", config, "--socket", "x"]):
        assert main(command) == 0
    assert "no problems" in capsys.readouterr().out


def test_wrong_use_is_a_sentence(capsys: pytest.CaptureFixture[str]) -> None:
    for wrong in (["statsu"], [], ["ask"], ["status", "--nope"]):
        with pytest.raises(SystemExit) as caught:
            main(wrong)
        assert caught.value.code == 2
        assert "--help)" in error_line(capsys)


@pytest.mark.usefixtures("service")
def test_socket_option_before_and_after_the_command(
    path: Path, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    nobody = str(tmp_path / "nobody.sock")
    assert main(["--socket", nobody, "status"]) == 3
    assert main(["status", "--socket", nobody]) == 3
    assert main(["--socket", nobody, "status", "--socket", str(path)]) == 0
    capsys.readouterr()


def test_default_socket(tmp_path: Path) -> None:
    system = Path("/run/homespecd/homespecd.sock")
    runtime = {"XDG_RUNTIME_DIR": str(tmp_path)}
    own = tmp_path / "homespecd" / "homespecd.sock"
    assert default_socket({}) == system
    assert default_socket(runtime) == system
    own.parent.mkdir()
    own.touch()
    assert default_socket(runtime) == own
    assert default_socket({**runtime, "HOMESPECD_SOCKET": "/x"}) == Path("/x")


def test_a_bug_is_a_sentence_unless_asked_for_more(
    service: FakeService, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    service.answers["GET /homespec/status"] = {"models": [{}]}
    assert main(["status"]) == 70
    assert "HOMESPECD_DEBUG=1" in error_line(capsys)
    monkeypatch.setenv("HOMESPECD_DEBUG", "1")
    with pytest.raises(KeyError):
        main(["status"])


def run_program(*arguments: str, **environment: str) -> subprocess.CompletedProcess[bytes]:
    program = "import sys; from homespecd.cli.main import main; sys.exit(main())"
    return subprocess.run(
        [sys.executable, "-c", program, *arguments],
        env={**os.environ, **environment},
        capture_output=True,
    )


def test_a_reader_that_goes_away(service: FakeService, path: Path) -> None:
    """`homespecctl status --json | head -0`: no trace, no complaint."""
    big = {**SNAPSHOT, "padding": "x" * 1_000_000}
    service.answers["GET /homespec/status"] = big
    program = "import sys; from homespecd.cli.main import main; sys.exit(main())"
    reader, writer = os.pipe()
    os.close(reader)
    result = subprocess.run(
        [sys.executable, "-c", program, "--socket", str(path), "status", "--json"],
        stdout=writer,
        stderr=subprocess.PIPE,
    )
    os.close(writer)
    assert (result.returncode, result.stderr) == (141, b"")


@pytest.mark.usefixtures("service")
def test_the_program_as_installed(path: Path) -> None:
    result = run_program("--socket", str(path), "status", "--json")
    assert result.returncode == 0
    assert json.loads(result.stdout) == SNAPSHOT
    assert result.stderr == b""


@pytest.mark.usefixtures("service")
def test_no_color(path: Path) -> None:
    """A terminal without colours is a terminal: positions may move, colours may not."""
    result = run_program(
        "--socket", str(path), "status", "--once", NO_COLOR="1", FORCE_COLOR="1", TERM="xterm"
    )
    assert b"\x1b[3" not in result.stdout
