"""When the configuration's files change: a burst of edits becomes one call.

What counts is what the files hold, not which event came: every event, and a slow poll for the file
systems that tell nobody (network mounts), only leads to a look. The folder is watched, not the
file, since editors replace it; so are the folders of every symbolic link on the way to it.
"""

from __future__ import annotations

import asyncio
import hashlib
import logging
import os
import stat
from collections.abc import Awaitable, Callable
from pathlib import Path

from watchdog.events import FileSystemEvent, FileSystemEventHandler
from watchdog.observers import Observer
from watchdog.observers.api import BaseObserver, ObservedWatch

from homespecd.config.source import MAX_FILE_BYTES, drop_in_files, opened

# Edits closer together than this are one. Longer makes a save wait, shorter reads half a burst.
QUIET_S = 0.5

# What looks like half of a file and may still be open for writing is read when it is closed, or (a
# writer may never close it, and not every file system tells) after this time without a change.
WRITER_QUIET_S = 10.0

# Whatever goes on, a change is taken up after this time.
_LONGEST_S = 60.0

# How often to look where nothing tells of changes. A look reads a few kilobytes.
POLL_S = 5.0

_MOST_LINKS = 40  # as the kernel's own limit

# Modifications of these matter; everything that comes, goes or is renamed does.
_CONTENT_EVENTS = ("modified", "closed", "opened", "closed_no_write")


def signature(path: Path) -> str:
    """A digest of what `path` and its drop-ins hold now; differs when a load might."""
    sha = hashlib.sha256()
    for file in (path, *drop_in_files(path)):
        sha.update(f"\0{file}\0".encode())
        try:
            with opened(file) as stream:
                if not stat.S_ISREG(os.fstat(stream.fileno()).st_mode):
                    continue
                sha.update(b"\1" + stream.read(MAX_FILE_BYTES + 1))
        except (OSError, ValueError) as error:
            sha.update(f"\2{type(error).__name__}".encode())
    return sha.hexdigest()


def watched_folders(path: Path) -> tuple[set[Path], set[Path]]:
    """The folders in which something can happen that changes what `path` says, and the files whose
    contents matter. Every symbolic link on the way is followed one step at a time."""
    folders: set[Path] = set()
    files: set[Path] = set()
    for start in (path.absolute(), *(file.absolute() for file in drop_in_files(path))):
        _follow(start, folders, files)
    conf_d = path.absolute().parent / "conf.d"
    if _is_folder(conf_d):
        _follow(conf_d, folders, files)
        folders.add(conf_d)
    return {folder for folder in folders if _is_folder(folder)}, files


def _follow(start: Path, folders: set[Path], files: set[Path]) -> None:
    pending, seen = [start], 0
    while pending and seen < _MOST_LINKS:
        seen += 1
        current = pending.pop()
        folders.add(current.parent)
        files.add(current)
        # A link may stand anywhere on the way: `..data` is swapped, and the file below it is new.
        for part in (current, *current.parents):
            try:
                if not part.is_symlink():
                    continue
                target = part.parent / part.readlink()
            except OSError:
                continue
            folders.add(part.parent)
            pending.append(Path(os.path.normpath(target / current.relative_to(part))))
            break


class Watcher:
    """Calls `on_change` when the files of `path` hold something else than `known` says.

    Args:
        known: the signature of what was read last, whoever had it read.
        doubtful: whether what the files hold now may be half of something: it is broken, or less
            than before.
        on_change: reads the files; what happens meanwhile leads to another call.
    """

    def __init__(
        self,
        path: Path,
        *,
        known: Callable[[], str],
        doubtful: Callable[[], Awaitable[bool]],
        on_change: Callable[[], Awaitable[None]],
        quiet_s: float = QUIET_S,
        poll_s: float = POLL_S,
    ) -> None:
        self._path = path
        self._known = known
        self._doubtful = doubtful
        self._on_change = on_change
        self._quiet_s = quiet_s
        self._poll_s = poll_s
        self._log = logging.getLogger(__name__)
        self._event = asyncio.Event()
        self._writing: set[str] = set()
        self._files: set[Path] = set()
        self._observer: BaseObserver | None = None
        self._watches: dict[Path, tuple[int, ObservedWatch]] = {}
        self._warned = False

    async def run(self) -> None:
        """Watch until cancelled."""
        self._loop = asyncio.get_running_loop()
        try:
            while True:
                await asyncio.to_thread(self._watch_folders)
                # Looked at once the folders are watched, so that nothing falls between.
                if await self._look() != self._known():
                    await self._settle()
                    await self._on_change()
                    continue
                try:
                    async with asyncio.timeout(self._poll_s):
                        await self._event.wait()
                except TimeoutError:
                    continue
                self._event.clear()
        finally:
            if self._observer is not None:
                # Its threads end by themselves; waiting for them would hold up the loop.
                self._observer.stop()
                self._observer = None
                self._watches.clear()

    async def _look(self) -> str:
        return await asyncio.to_thread(signature, self._path)

    async def _settle(self) -> None:
        """Wait until nothing has changed for a while and nobody is in the middle of writing."""
        last, step_s = await self._look(), self._quiet_s / 5
        waited_s = unchanged_s = 0.0
        while waited_s < _LONGEST_S:
            await asyncio.sleep(step_s)
            now = await self._look()
            waited_s += step_s
            unchanged_s = unchanged_s + step_s if now == last else 0.0
            last = now
            if unchanged_s < self._quiet_s:
                continue
            if not self._writing or unchanged_s >= WRITER_QUIET_S or not await self._doubtful():
                break
        self._writing.clear()

    # -- on the observer's thread, or another that is not the loop's --------------------------

    def noticed(self, event: FileSystemEvent) -> None:
        """Take note of one event of a watched folder."""
        paths = [os.fsdecode(path) for path in (event.src_path, event.dest_path) if path]
        if event.event_type in _CONTENT_EVENTS and not any(
            Path(path) in self._files for path in paths
        ):
            return
        if event.event_type in ("opened", "closed_no_write"):
            return
        self._loop.call_soon_threadsafe(self._note, event.event_type, paths)

    def _note(self, kind: str, paths: list[str]) -> None:
        if kind == "modified":
            self._writing.update(path for path in paths if Path(path) in self._files)
        else:
            self._writing.difference_update(paths)
        self._event.set()

    def _watch_folders(self) -> None:
        """Watch the folders as they are now: links move, folders are replaced."""
        folders, self._files = watched_folders(self._path)
        current = {folder: _inode(folder) for folder in folders}
        try:
            if self._observer is None:
                self._observer = Observer()
                self._observer.daemon = True
                self._observer.start()
            for folder, (inode, watch) in list(self._watches.items()):
                if current.get(folder) != inode:
                    del self._watches[folder]
                    self._observer.unschedule(watch)
            for folder in sorted(current.keys() - self._watches.keys()):
                watch = self._observer.schedule(_Handler(self), str(folder), recursive=False)
                self._watches[folder] = (current[folder], watch)
        except (OSError, KeyError) as error:
            # Out of inotify instances or watches, or gone in between: the poll still sees it.
            if not self._warned:
                self._warned = True
                self._log.warning(
                    "changes of the configuration are looked for every %.0f s: %s",
                    self._poll_s,
                    error,
                )


class _Handler(FileSystemEventHandler):
    def __init__(self, watcher: Watcher) -> None:
        self._watcher = watcher

    def on_any_event(self, event: FileSystemEvent) -> None:
        self._watcher.noticed(event)


def _is_folder(path: Path) -> bool:
    """`Path.is_dir` raises for one that may not be looked at, which is then none for us."""
    try:
        return stat.S_ISDIR(path.stat().st_mode)
    except OSError:
        return False


def _inode(folder: Path) -> int:
    try:
        return folder.stat().st_ino
    except OSError:
        return 0
