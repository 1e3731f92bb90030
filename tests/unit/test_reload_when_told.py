"""SIGHUP after SIGHUP: few reloads, each told of to systemd, and none of them the last."""

from __future__ import annotations

import asyncio
import logging
from typing import Any, cast

import pytest

from homespecd.daemon import server
from homespecd.daemon.notify import Notifier
from homespecd.daemon.supervisor import Supervisor
from homespecd.errors import ConfigError


class Played:
    """Plays the supervisor and the service manager's notifier."""

    def __init__(self) -> None:
        self.events: list[str] = []
        self.gate = asyncio.Event()
        self.ends: list[Exception | None] = []

    async def reload(self) -> None:
        self.events.append("reload")
        await self.gate.wait()
        if (error := self.ends.pop(0) if self.ends else None) is not None:
            raise error

    def reloading(self) -> None:
        self.events.append("reloading")

    def ready(self) -> None:
        self.events.append("ready")


async def until(played: Played, count: int) -> None:
    while len(played.events) < count:
        await asyncio.sleep(0)


@pytest.mark.parametrize("end", [None, ConfigError([]), RuntimeError("a bug")], ids=str)
async def test_one_more_follows_however_many_were_asked_for(
    end: Exception | None, caplog: pytest.LogCaptureFixture
) -> None:
    played, told = Played(), asyncio.Event()
    played.ends = [end]
    both: Any = played
    running = asyncio.create_task(
        server._reload_when_told(cast("Supervisor", both), cast("Notifier", both), told)
    )
    told.set()
    await until(played, 2)
    for _ in range(50):
        told.set()
        await asyncio.sleep(0)
    assert played.events == ["reloading", "reload"]
    with caplog.at_level(logging.ERROR):
        played.gate.set()
        await until(played, 6)
        for _ in range(10):
            await asyncio.sleep(0)
    assert played.events == ["reloading", "reload", "ready"] * 2
    assert ("was not read again" in caplog.text) is isinstance(end, RuntimeError)
    running.cancel()
