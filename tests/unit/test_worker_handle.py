"""A worker process as the supervisor sees it, played by `fake_worker`."""

from __future__ import annotations

import asyncio
import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from homespecd.api.service import Delta, Done, Event
from homespecd.daemon.worker_handle import Owner, WorkerHandle
from homespecd.errors import RequestError
from homespecd.worker.messages import GenerationRequest, WorkerSettings
from tests import fake_worker


async def started(
    folder: Path, exited: Callable[[str], None] = lambda _why: None, **knobs: Any
) -> WorkerHandle:
    (folder / "toy.json").write_text(json.dumps(knobs))
    return await WorkerHandle.start(
        WorkerSettings("toy", str(folder), slots=1),
        command=(sys.executable, fake_worker.__file__, str(folder)),
        owner=Owner(loading=lambda _what: None, exited=exited),
    )


async def test_a_killed_workers_requests_are_told_before_it_is_gone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One that waits for a disk cannot even die; nobody waits for it, and it gets nothing new."""
    ended: list[str] = []
    handle = await started(tmp_path, ended.append, gate=True)
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
            with pytest.raises(
                RequestError, match="before this bench was complete: its worker was"
            ):
                await handle.call("bench", {})
            assert handle._process.returncode is None
            assert not ended
    finally:
        await handle.stop(grace_s=0.0)


async def test_whoever_asked_is_told_how_far_it_had_come(tmp_path: Path) -> None:
    handle = await started(tmp_path, gate=True, endless_jobs=True)
    try:
        begun, queued = (handle.generate(GenerationRequest(prompt="Hello")) for _ in range(2))
        assert isinstance((await begun.events())[0], Delta)
        bench = asyncio.create_task(handle.call("bench", {}))
        question = asyncio.create_task(handle.call("tokenize", {}))
        await asyncio.sleep(0)
        handle.kill("it does not answer")
        late = handle.generate(GenerationRequest(prompt="Hello"))
        said = [str((await stream.events())[-1]) for stream in (begun, queued, late)]
        for call in (bench, question):
            with pytest.raises(RequestError) as failed:
                await call
            assert failed.value.code == "worker_died"
            said.append(str(failed.value))
    finally:
        await handle.stop(grace_s=0.0)
    whens = (
        "in the middle of this answer",
        "before this answer began",
        "before this answer began",
        "before this bench was complete",
        "before this answer was complete",
    )
    assert said == [
        f"model 'toy' stopped {when}: its worker was ended: it does not answer "
        "(the next request starts it again)"
        for when in whens
    ]


async def test_jobs_are_broken_off_and_nothing_else_is(tmp_path: Path) -> None:
    handle = await started(tmp_path, endless_jobs=True)
    try:
        bench = asyncio.create_task(handle.call("bench", {}))
        question = asyncio.create_task(handle.call("tokenize", {}))
        await asyncio.sleep(0)
        for _ in range(2):
            handle.break_off("the model is being unloaded")
        answer = handle.generate(GenerationRequest(prompt="Hello"))
        with pytest.raises(RequestError, match="broken off: the model is being unloaded") as failed:
            await bench
        assert (failed.value.status, failed.value.code) == (503, "job_cancelled")
        end: Event | None = None
        while not isinstance(end, Done):
            end = (await answer.events())[-1]
        assert not question.done()
        question.cancel()
    finally:
        await handle.stop(grace_s=0.0)
    told = [json.loads(line) for line in (tmp_path / "toy.log").read_text().splitlines()]
    [job] = [one["id"] for one in told if one["event"] == "bench"]
    assert [one["id"] for one in told if one["event"] == "cancel"].count(job) == 1
