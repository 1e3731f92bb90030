"""What the tests of `homespecctl` share: a service to ask, what it says, and what a user reads."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.unit.fake_service import FakeService, serving

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
