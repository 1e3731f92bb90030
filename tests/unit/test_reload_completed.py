"""A reload that has begun is completed, whoever goes away meanwhile."""

from __future__ import annotations

import asyncio
import logging
from pathlib import Path

import pytest

from homespecd.config.load import load
from homespecd.config.schema import Config
from homespecd.daemon.configuration import Configuration
from homespecd.errors import ConfigError

TEXT = '[server]\nsocket = "s"\nsocket_group = ""\n'


async def test_who_goes_away_stops_no_reload(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    file = tmp_path / "homespecd.toml"
    file.write_text(TEXT)
    applied: list[int] = []
    applying, gate = asyncio.Event(), asyncio.Event()

    async def apply(new: Config) -> None:
        applying.set()
        await gate.wait()
        applied.append(new.server.max_queue)

    configuration = Configuration(load(file), path=file, apply=apply, quiet_s=60.0)
    file.write_text(f"{TEXT}max_queue = 7\n")
    first = asyncio.create_task(configuration.reload())
    await applying.wait()
    second = asyncio.create_task(configuration.reload())
    await asyncio.sleep(0)
    file.write_text(f"{TEXT}max_queue = 0.5\n")
    for task in (first, second):
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
    with caplog.at_level(logging.INFO):
        gate.set()
        # One at a time: when this one is refused, those before it have been completed.
        with pytest.raises(ConfigError):
            await configuration.reload()
    assert (applied, configuration.config.server.max_queue) == ([7], 7)
    assert configuration.snapshot()["generation"] == 2
    assert caplog.text.count("the old configuration stays in use") == 2


async def test_a_mistake_in_one_is_in_the_log_and_the_next_edit_is_seen(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Also where nobody waits for the answer: the watcher goes on."""
    file = tmp_path / "homespecd.toml"
    file.write_text(TEXT)
    applied: asyncio.Queue[int] = asyncio.Queue()

    async def apply(new: Config) -> None:
        await applied.put(new.server.max_queue)
        if new.server.max_queue == 7:
            raise KeyError("a mistake")

    configuration = Configuration(load(file), path=file, apply=apply, quiet_s=0.01)
    watching = asyncio.create_task(configuration.run())
    for most in (7, 8):
        file.write_text(f"{TEXT}max_queue = {most}\n")
        assert await applied.get() == most
    watching.cancel()

    assert "reload: it was broken off" in caplog.text
    assert "a mistake" in caplog.text
