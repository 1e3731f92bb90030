"""SIGHUP after SIGHUP: few reloads, each told of to systemd, and none of them the last."""

from __future__ import annotations

import asyncio
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

    def when_told(self, told: asyncio.Event, ready: asyncio.Event) -> asyncio.Task[None]:
        """The task that is tested."""
        both: Any = self
        return asyncio.create_task(
            server._reload_when_told(cast("Supervisor", both), cast("Notifier", both), told, ready)
        )


async def until(played: Played, count: int) -> None:
    while len(played.events) < count:
        await asyncio.sleep(0)


async def turns() -> None:
    for _ in range(10):
        await asyncio.sleep(0)


def happened() -> asyncio.Event:
    event = asyncio.Event()
    event.set()
    return event


@pytest.mark.parametrize("end", [None, ConfigError([]), RuntimeError("a bug")], ids=repr)
async def test_one_more_follows_however_many_were_asked_for(end: Exception | None) -> None:
    played, told = Played(), happened()
    played.ends = [end]
    running = played.when_told(told, happened())
    await until(played, 2)
    for _ in range(50):
        told.set()
        await asyncio.sleep(0)
    assert played.events == ["reloading", "reload"]
    played.gate.set()
    await until(played, 6)
    await turns()
    assert played.events == ["reloading", "reload", "ready"] * 2
    running.cancel()


async def test_one_during_the_start_is_no_end_of_it() -> None:
    """READY=1 is for the start to say, also where that is over before the reload is."""
    played, told, ready = Played(), happened(), asyncio.Event()
    running = played.when_told(told, ready)
    await until(played, 1)
    ready.set()
    played.gate.set()
    await turns()
    assert played.events == ["reload"]
    told.set()
    await until(played, 4)
    assert played.events == ["reload", "reloading", "reload", "ready"]
    running.cancel()


async def test_one_that_the_end_cuts_short_does_not_say_ready() -> None:
    played = Played()
    running = played.when_told(happened(), happened())
    await until(played, 2)
    running.cancel()
    await turns()
    assert running.cancelled()
    assert played.events == ["reloading", "reload"]
