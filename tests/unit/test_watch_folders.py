"""Which folders are watched, where some cannot be looked at."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from homespecd.config.watch import Watcher, watched_folders

# As good as one that may not be entered, which root always may.
UNREACHABLE = "x" * 300


def test_a_folder_that_cannot_be_looked_at_is_not_watched(tmp_path: Path) -> None:
    assert watched_folders(tmp_path / UNREACHABLE / "homespecd.toml")[0] == set()
    link = tmp_path / "homespecd.toml"
    link.symlink_to(Path(UNREACHABLE) / "homespecd.toml")
    (tmp_path / "conf.d").symlink_to(UNREACHABLE)
    folders, files = watched_folders(link)
    assert folders == {tmp_path}
    assert tmp_path / UNREACHABLE / "homespecd.toml" in files


async def test_one_that_begins_again_watches_again(tmp_path: Path) -> None:
    """Whatever ended it, events come in as before and need no poll."""
    file = tmp_path / "homespecd.toml"
    file.write_text("")
    looks = 0
    fail = True
    changed = asyncio.Event()

    def known() -> str:
        nonlocal looks
        looks += 1
        return "" if changed.is_set() else last

    async def settled() -> bool:
        return False

    async def on_change() -> None:
        if fail:
            raise RuntimeError("a bug")
        changed.set()
        await asyncio.Event().wait()

    last = "something else"
    watcher = Watcher(
        file, known=known, doubtful=settled, on_change=on_change, quiet_s=0.01, poll_s=1e6
    )
    with pytest.raises(RuntimeError, match="a bug"):
        await watcher.run()
    fail = False
    last = await watcher._look()
    running = asyncio.create_task(watcher.run())
    try:
        while looks < 2:
            await asyncio.sleep(0.01)
        file.write_text("# an edit\n")
        async with asyncio.timeout(60):
            await changed.wait()
    finally:
        running.cancel()
