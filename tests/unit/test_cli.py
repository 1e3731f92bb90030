"""`homespecctl` against a service that answers what the test says."""

from __future__ import annotations

import io
import json
import os
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from homespecd.cli import import_ as import_command
from homespecd.cli.client import default_socket
from homespecd.cli.main import main
from homespecd.config import load
from homespecd.errors import BundleError
from tests.unit.fake_service import Events, FakeService, serving

SNAPSHOT: dict[str, Any] = {
    "version": "0.1.0",
    "uptime_s": 200.5,
    "config": {"path": "/etc/x.toml", "generation": 1, "loaded_at": "now", "last_error": None},
    "memory": {
        "cap_bytes": 2**30,
        "used_bytes": 2**29,
        "reserve_bytes": 0,
        "pressure_avg10": 0.5,
    },
    "queue": {"waiting": 1, "active": 2},
    "models": [
        {
            "name": "smollm2",
            "state": "ready",
            "residency": "pinned",
            "precision": "int4",
            "context": 4096,
            "memory_bytes": 98_362_432,
            "active": 2,
            "waiting": 1,
            "error": None,
            "speculation": {
                "mode": "speculative",
                "reason": "speculating",
                "decode_tok_s": 181.04,
                "drafters": [
                    {
                        "name": "ngram",
                        "kind": "ngram",
                        "state": "ready",
                        "reason": "speculating",
                        "memory_bytes": 0,
                        "k": 8,
                        "acceptance_length": 2.4,
                        "speedup": 1.93,
                    }
                ],
            },
        },
        {"name": "größer", "state": "unloaded", "error": None, "speculation": None},
    ],
    "clients": [
        {"uid": 33, "gid": 33, "pid": 7, "comm": "app", "active": 2, "requests": 9},
    ],
}


@pytest.fixture
def path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    path = tmp_path / "s.sock"
    monkeypatch.setenv("HOMESPECD_SOCKET", str(path))
    monkeypatch.delenv("HOMESPECD_DEBUG", raising=False)
    return path


@pytest.fixture
def service(path: Path) -> Iterator[FakeService]:
    with serving(path) as service:
        service.answers["GET /homespec/status"] = SNAPSHOT
        yield service


def error_line(capsys: pytest.CaptureFixture[str]) -> str:
    """What went to standard error, which is one line and no trace."""
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err.count("\n") == 1, captured.err
    assert captured.err.startswith("homespecctl")
    return captured.err


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


HOMESPEC = {
    "mode": "speculative",
    "drafter": "ngram",
    "reason": "speculating",
    "ttft_ms": 41.6,
    "decode_tok_s": 181.04,
    "draft_tokens_proposed": 40,
    "acceptance_length": 2.4,
    "speedup": {"measured": 1.93},
}


def answer_events(*texts: str) -> list[dict[str, Any]]:
    deltas = [{"choices": [{"delta": {"content": text}}]} for text in texts]
    end = {"choices": [{"delta": {}, "finish_reason": "stop"}], "homespec": HOMESPEC}
    return [*deltas, end, {"choices": [], "usage": {"completion_tokens": 9}}]


def test_ask_streams_and_says_what_it_took(
    service: FakeService, capsys: pytest.CaptureFixture[str]
) -> None:
    service.answers["POST /v1/chat/completions"] = Events(answer_events("Blue", " 🌊", "."))
    options = ["--max-tokens", "9", "--temperature", "0", "--seed", "7", "--system", "Be brief."]
    assert main(["ask", "smollm2", "Why?", *options, "--drafter", "ngram"]) == 0
    captured = capsys.readouterr()
    assert captured.out == "Blue 🌊.\n"
    assert captured.err == (
        "speculative (ngram) · 181.0 tok/s · 2.40 tokens a round · ngram measures 1.93× plain · "
        "first token after 42 ms · 9 tokens\n"
    )
    assert service.asked == [
        (
            "POST /v1/chat/completions",
            {
                "model": "smollm2",
                "messages": [
                    {"role": "system", "content": "Be brief."},
                    {"role": "user", "content": "Why?"},
                ],
                "max_tokens": 9,
                "temperature": 0.0,
                "seed": 7,
                "homespec": {"speculation": "auto", "drafter": "ngram"},
                "stream": True,
                "stream_options": {"include_usage": True},
            },
        )
    ]


def test_ask_reads_standard_input(
    service: FakeService, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    service.answers["POST /v1/chat/completions"] = Events(answer_events("Yes\n"))
    monkeypatch.setattr("sys.stdin", io.StringIO("Is it?\n"))
    assert main(["ask", "smollm2"]) == 0
    assert capsys.readouterr().out == "Yes\n"
    assert service.asked[0][1]["messages"] == [{"role": "user", "content": "Is it?\n"}]
    monkeypatch.setattr("sys.stdin", io.StringIO(" \n"))
    assert main(["ask", "smollm2"]) == 1
    assert "the prompt is empty" in error_line(capsys)


def test_ask_plain_says_why(service: FakeService, capsys: pytest.CaptureFixture[str]) -> None:
    plain = {"mode": "plain", "drafter": None, "reason": "slower_than_plain", "decode_tok_s": 9.0}
    service.answers["POST /v1/chat/completions"] = Events([{"choices": [], "homespec": plain}])
    assert main(["ask", "smollm2", "x"]) == 0
    assert capsys.readouterr().err == (
        "plain (slower than plain) · 9.0 tok/s · first token after – ms\n"
    )


def test_ask_an_error_in_the_stream(
    service: FakeService, capsys: pytest.CaptureFixture[str]
) -> None:
    """D8: what has come stays, and the end is an error."""
    events = [*answer_events("Bl")[:1], {"error": {"message": "the model's process ended"}}]
    service.answers["POST /v1/chat/completions"] = Events(events)
    assert main(["ask", "smollm2", "x"]) == 1
    captured = capsys.readouterr()
    assert captured.out == "Bl\n"
    assert captured.err == "homespecctl: the model's process ended\n"


def test_ask_a_stream_that_is_cut(service: FakeService, capsys: pytest.CaptureFixture[str]) -> None:
    service.answers["POST /v1/chat/completions"] = Events(answer_events("Bl")[:1], cut=True)
    assert main(["ask", "smollm2", "x"]) == 1
    assert "before the answer was complete" in capsys.readouterr().err


def test_an_error_answer_is_its_message(
    service: FakeService, capsys: pytest.CaptureFixture[str]
) -> None:
    error = (404, {"error": {"message": 'there is no model "x" (models: smollm2)'}})
    service.answers["POST /v1/chat/completions"] = error
    assert main(["ask", "x", "y"]) == 1
    assert error_line(capsys) == 'homespecctl: there is no model "x" (models: smollm2)\n'
    refused = (403, {"error": {"message": "user 33 may not use smollm2"}})
    service.answers["POST /homespec/models/smollm2/load"] = refused
    assert main(["load", "smollm2"]) == 4
    assert error_line(capsys) == "homespecctl: user 33 may not use smollm2\n"


def test_ctrl_c_during_an_answer(
    service: FakeService, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    service.answers["POST /v1/chat/completions"] = Events(answer_events("Blue", "never seen"))
    written: list[str] = []

    def write(_self: object, text: str) -> None:
        written.append(text)
        if text == "Blue":
            raise KeyboardInterrupt

    monkeypatch.setattr("homespecd.cli.terminal.Terminal.write", write)
    assert main(["ask", "smollm2", "x"]) == 130
    assert written[0] == "Blue"
    assert "never seen" not in written
    assert capsys.readouterr().err == ""


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
    service.answers["POST /homespec/reload"] = {"changes": ["memory changed (cap)"]}
    assert main(["reload"]) == 0
    assert capsys.readouterr().out == "memory changed (cap)\n"
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


def row(category: str, mode: str, tok_s: float) -> dict[str, Any]:
    return {
        "category": category,
        "mode": mode,
        "drafter": None if mode == "plain" else "ngram",
        "decode_tok_s": tok_s,
        "decode_tok_s_min": tok_s - 1,
        "decode_tok_s_max": tok_s + 1,
        "ttft_ms": 40.0,
        "acceptance_length": 1.0 if mode == "plain" else 3.1,
        "draft_ms": 0.0,
        "verify_ms": 1.0,
        "peak_memory_bytes": 2**28,
    }


BENCHED: dict[str, Any] = {
    "model": "smollm2",
    "provider": "cpu",
    "threads": 2,
    "machine": "some CPU",
    "versions": {"onnxruntime": "1.32.0"},
    "max_tokens": 128,
    "repeats": 3,
    "rows": [
        row("chat", "plain", 100.0),
        row("chat", "speculative", 101.0),
        row("list copy", "plain", 100.0),
        row("list copy", "speculative", 350.0),
    ],
    "speedups": [
        {
            "category": "chat",
            "speedup": 1.01,
            "speedup_min": 1,
            "speedup_max": 1.1,
            "identical": True,
        },
        {
            "category": "list copy",
            "speedup": 3.5,
            "speedup_min": 3,
            "speedup_max": 4,
            "identical": False,
        },
    ],
    "step_ms": {"1": 7.2, "8": 18.6},
}


def test_bench(service: FakeService, capsys: pytest.CaptureFixture[str]) -> None:
    service.answers["POST /homespec/models/smollm2/bench"] = BENCHED
    assert main(["bench", "smollm2", "--max-tokens", "64", "--repeats", "2"]) == 0
    assert service.asked[0][1] == {"max_tokens": 64, "repeats": 2}
    lines = capsys.readouterr().out.splitlines()
    speculative = next(line for line in lines if "350.0" in line)
    assert speculative.split()[:3] == ["speculative", "(ngram)", "350.0"]
    assert "█" * 24 in speculative
    assert "3.50×" in speculative
    assert "3.10" in speculative
    assert "DIFFERENT" in speculative
    assert "identical" in next(line for line in lines if "1.01×" in line)
    assert "smollm2 on cpu · 2 threads · some CPU · 128 tokens × 3 · onnxruntime 1.32.0" in lines
    assert "ms of a step by rows: 1: 7.2, 8: 18.6" in lines
    assert main(["bench", "smollm2", "--json"]) == 0
    assert json.loads(capsys.readouterr().out) == BENCHED


def test_bench_prompts(
    service: FakeService, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    service.answers["POST /homespec/models/smollm2/bench"] = BENCHED
    assert main(["bench", "smollm2", "--prompts", "chat, list copy"]) == 0
    prompts = service.asked[0][1]["prompts"]
    assert [one["category"] for one in prompts] == ["chat", "list copy"]
    assert prompts[0]["messages"][0]["role"] == "user"
    own = [{"category": "mine", "messages": [{"role": "user", "content": "x"}]}]
    file = tmp_path / "p.json"
    file.write_text(json.dumps(own))
    assert main(["bench", "smollm2", "--prompts", str(file)]) == 0
    assert service.asked[1][1]["prompts"] == own
    capsys.readouterr()
    assert main(["bench", "smollm2", "--prompts", "chta"]) == 2
    assert "chta: neither a shipped category nor a file" in error_line(capsys)
    file.write_text("{")
    assert main(["bench", "smollm2", "--prompts", str(file)]) == 2
    assert "is not JSON" in error_line(capsys)
    file.write_text('[{"category": "x"}]')
    assert main(["bench", "smollm2", "--prompts", str(file)]) == 1
    assert "prompts must be a list of" in error_line(capsys)


def test_import_prints_what_to_paste(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def import_bundle(source: Path, **options: Any) -> tuple[str, str]:
        assert source == tmp_path / "m.gguf"
        assert options["name"] == "my.model"
        assert options["precision"] == "int8"
        return "abc123", "int8"

    monkeypatch.setattr(import_command, "import_bundle", import_bundle)
    command = ["import", str(tmp_path / "m.gguf"), "--name", "my.model", "--into", str(tmp_path)]
    assert main([*command, "--precision", "int8"]) == 0
    out = capsys.readouterr().out
    assert "digest abc123\n" in out
    config = tmp_path / "c.toml"
    config.write_text(out[out.index("[models") :])
    (tmp_path / "my.model").mkdir()
    assert load(config, check_paths=True).models["my.model"].path == tmp_path / "my.model"
    assert main(["import", "x", "--name", "a/b"]) == 2


def test_import_failures_are_sentences(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def truncated(_source: Path, **_options: Any) -> tuple[str, str]:
        raise BundleError("ends in the middle of a tensor", where="m.gguf", hint="load it again")

    monkeypatch.setattr(import_command, "import_bundle", truncated)
    assert main(["import", "m.gguf", "--name", "m"]) == 1
    assert error_line(capsys) == (
        "homespecctl: m.gguf: ends in the middle of a tensor (load it again)\n"
    )


def test_import_without_its_extra(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "homespecd.runtime.importing", None)
    import builtins

    real = builtins.__import__

    def without_gguf(name: str, *rest: Any) -> Any:
        if name == "homespecd.runtime.importing":
            raise ModuleNotFoundError("No module named 'gguf'", name="gguf")
        return real(name, *rest)

    monkeypatch.setattr(builtins, "__import__", without_gguf)
    assert main(["import", "m.gguf", "--name", "m"]) == 1
    assert error_line(capsys) == (
        "homespecctl: importing needs the package gguf, which is not installed "
        "(pip install 'homespecd[import]')\n"
    )


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
    assert "--socket PATH" in out


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
