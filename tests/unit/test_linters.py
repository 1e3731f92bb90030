"""The linters, as tests: what `make lint` says is part of the suite."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]

COMMANDS = {
    "ruff check": ["ruff", "check", "--quiet", "."],
    "ruff format": ["ruff", "format", "--check", "--quiet", "."],
    "mypy": ["mypy", "--no-error-summary"],
}


@pytest.mark.slow
@pytest.mark.parametrize("name", COMMANDS)
def test_linter(name: str) -> None:
    result = subprocess.run(
        [sys.executable, "-m", *COMMANDS[name]], cwd=ROOT, capture_output=True, text=True
    )
    if result.returncode != 0:
        pytest.fail(f"{name}:\n{result.stdout}{result.stderr}", pytrace=False)
