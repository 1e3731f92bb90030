"""Which signals a service hears, and when it no longer does."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator

import pytest

from homespecd.daemon.signals import handled
from tests.integration.running_service import ROOT

NUMBERS = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)


@pytest.fixture(autouse=True)
def _as_before() -> Iterator[None]:
    before = {number: signal.getsignal(number) for number in NUMBERS}
    yield
    for number, handler in before.items():
        signal.signal(number, handler)


def test_each_is_heard_on_the_loop_and_none_is_lost_in_a_flood_of_another() -> None:
    heard: Counter[str] = Counter()

    async def run() -> None:
        with handled({one: lambda one=one: heard.update([one.name]) for one in NUMBERS}):
            for _ in range(20_000):
                signal.raise_signal(signal.SIGHUP)
            signal.raise_signal(signal.SIGTERM)
            signal.raise_signal(signal.SIGINT)
            assert not heard
            await asyncio.sleep(0)
            await asyncio.sleep(0)

    asyncio.run(run())

    assert (heard["SIGTERM"], heard["SIGINT"]) == (1, 1)
    assert heard["SIGHUP"] == 20_000


def test_a_loop_that_waits_is_woken() -> None:
    async def run() -> None:
        told = asyncio.Event()
        with handled({signal.SIGTERM: told.set}):
            script = "import os, sys; os.kill(int(sys.argv[1]), 15)"
            child = await asyncio.create_subprocess_exec(
                sys.executable, "-c", script, str(os.getpid())
            )
            await told.wait()
            await child.wait()

    asyncio.run(run())


def test_what_comes_after_the_end_does_nothing() -> None:
    script = """
import asyncio, os, signal
from homespecd.daemon.signals import handled
async def run():
    with handled({signal.SIGTERM: print, signal.SIGINT: print}):
        pass
    os.kill(os.getpid(), signal.SIGTERM)
asyncio.run(run())
os.kill(os.getpid(), signal.SIGINT)
os.kill(os.getpid(), signal.SIGTERM)
print("in order")
"""
    ended = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=False, cwd=ROOT
    )

    assert (ended.returncode, ended.stdout, ended.stderr) == (0, "in order\n", "")
