"""Real worker processes, as the supervisor starts them, that somebody interrupts."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from pathlib import Path

import pytest

from homespecd.daemon.worker_handle import Owner, WorkerHandle
from homespecd.errors import ModelError, RequestError
from homespecd.worker.messages import GenerationRequest, WorkerSettings
from tests.oracle import Toy
from tests.tiny_onnx import make_toy

CONTEXT = 1_000_000  # an answer may be longer than anybody waits for
INTERRUPTED = "it was interrupted (by SIGINT)"

_INTERRUPTED_IN_LOAD = """
import os, signal, sys
from homespecd.worker import process

def load(settings, progress):
    progress("tokenizer")
    os.kill(os.getpid(), signal.SIGINT)
    progress("target")
    raise AssertionError("it goes on")

process.load = load
sys.exit(process.main(int(sys.argv[1])))
"""


def settings(folder: Path) -> WorkerSettings:
    return WorkerSettings("toy", str(folder), threads=1, slots=1, context=CONTEXT)


async def test_an_interrupted_worker_ends_in_order(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    make_toy(tmp_path, Toy(context=CONTEXT))
    ended: asyncio.Future[str] = asyncio.get_running_loop().create_future()
    handle = await WorkerHandle.start(
        settings(tmp_path),
        command=(sys.executable, "-m", "homespecd.worker"),
        owner=Owner(loading=lambda _what: None, exited=ended.set_result),
    )
    try:
        stream = handle.generate(
            GenerationRequest(prompt="Hi", max_tokens=CONTEXT // 2, ignore_eos=True)
        )
        await stream.events()
        os.kill(handle.pid, signal.SIGINT)
        async with asyncio.timeout(60):
            assert await ended == f"its worker was ended: {INTERRUPTED}"
            last = (await stream.events())[-1]
    finally:
        await handle.stop(grace_s=0.0)
    assert isinstance(last, RequestError)
    assert INTERRUPTED in last.message
    assert capfd.readouterr().err == ""


async def test_an_interrupted_load_ends_in_order(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(ModelError) as failed:
        await WorkerHandle.start(
            settings(tmp_path),
            command=(sys.executable, "-c", _INTERRUPTED_IN_LOAD),
            owner=Owner(loading=lambda _what: None, exited=lambda _why: None),
        )
    assert failed.value.message == INTERRUPTED
    assert capfd.readouterr().err == ""
