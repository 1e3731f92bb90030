"""`homespecctl bench`: what it asks for, and what it shows in wide and in narrow windows."""

from __future__ import annotations

import io
import json
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from homespecd.cli.bench import picture
from homespecd.cli.main import main
from tests.unit.cli_service import BENCHED, error_line, path, service
from tests.unit.cli_service import row as benched_row
from tests.unit.fake_service import FakeService

__all__ = ["path", "service"]  # the fixtures


def row(category: str, mode: str, tok_s: float) -> dict[str, Any]:
    return benched_row(category, mode, tok_s) | {
        "ttft_ms": 312.0,
        "ttft_ms_min": 305.0,
        "ttft_ms_max": 340.0,
        "acceptance_length": 2.5,
        "peak_memory_bytes": 300 << 20,
    }


RESULT: dict[str, Any] = {
    "model": "smollm2",
    "provider": "cpu",
    "threads": 2,
    "machine": "some CPU",
    "max_tokens": 128,
    "repeats": 3,
    "rows": [row("code edit", "plain", 100.0), row("code edit", "speculative", 405.0)],
    "speedups": [
        {
            "category": "code edit",
            "mode": "speculative",
            "speedup": 4.05,
            "speedup_min": 3.91,
            "speedup_max": 4.4,
            "identical": True,
        }
    ],
    "overall": [{"mode": "speculative", "speedup": 1.72, "speedup_least": 0.99}],
    "left_out": ["summary", "question"],
    "step_ms": {"1": 9.6, "2": 11.4, "8": 20.9, "16": 34.0},
}


def shown(columns: int) -> list[str]:
    console = Console(width=columns, record=True, file=io.StringIO())
    console.print(picture(RESULT, columns))
    return console.export_text().splitlines()


def test_spreads_are_shown_where_there_is_room() -> None:
    wide, narrow = shown(152), shown(80)

    (speculative,) = [line for line in wide if "405.0" in line]
    assert "4.05× (3.91–4.40)" in speculative
    assert "312 ms (305–340)" in speculative
    assert "identical" in speculative
    (speculative,) = [line for line in narrow if "405.0" in line]
    assert "4.05×" in speculative
    assert "312 ms" in speculative
    assert "3.91" not in speculative
    assert max(len(line) for line in narrow) <= 80
    assert not any("…" in line for columns in (80, 124, 152) for line in shown(columns))


def test_all_categories_together_and_what_was_left_out() -> None:
    lines = shown(100)

    together = "speculative: 1.72× over all categories (geometric mean), 0.99× in the least of them"
    assert together in lines
    assert "left out, too long for this model's context: summary, question" in lines


def test_what_steps_cost_is_drawn() -> None:
    lines = [line for line in shown(100) if line.endswith("×") and "ms" in line]

    assert [line.split()[0] for line in lines] == ["1", "2", "8", "16"]
    assert lines[-1].split()[-3:] == ["34.0", "ms", "3.54×"]
    assert lines[-1].count("█") > lines[0].count("█")


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
    assert lines[lines.index("rows in a step: time, against one") + 1].split()[-3:-1] == [
        "7.2",
        "ms",
    ]
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
