"""A worker process as the supervisor sees it, played by `fake_worker`."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

from homespecd.api.service import Delta
from homespecd.daemon.worker_handle import Owner, WorkerHandle
from homespecd.errors import RequestError
from homespecd.worker.messages import GenerationRequest, WorkerSettings
from tests import fake_worker


async def test_a_killed_workers_requests_are_told_before_it_is_gone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One that waits for a disk cannot even die; nobody waits for it, and it gets nothing new."""
    (tmp_path / "toy.json").write_text(json.dumps({"gate": True}))
    ended: list[str] = []
    handle = await WorkerHandle.start(
        WorkerSettings("toy", str(tmp_path)),
        command=(sys.executable, fake_worker.__file__, str(tmp_path)),
        owner=Owner(loading=lambda _what: None, exited=ended.append),
    )
    try:
        running = handle.generate(GenerationRequest(prompt="Hello"))
        assert isinstance((await running.events())[0], Delta)
        with monkeypatch.context() as stubborn:
            stubborn.setattr(handle._process, "kill", lambda: None)
            handle.kill("it does not answer")
            late = handle.generate(GenerationRequest(prompt="Hello"))
            for stream in (running, late):
                (error,) = await stream.events()
                assert isinstance(error, RequestError)
                assert error.code == "worker_died"
                assert "its worker was ended: it does not answer" in error.message
            assert handle._process.returncode is None
            assert not ended
    finally:
        await handle.stop(grace_s=0.0)
