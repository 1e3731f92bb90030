"""The configuration in use, and how another takes its place: read, checked, applied, or refused."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections.abc import Awaitable, Callable, Mapping
from pathlib import Path
from typing import Any

from homespecd.api.service import Reloaded
from homespecd.config.diff import diff
from homespecd.config.load import load
from homespecd.config.schema import Config
from homespecd.config.watch import Watcher, signature
from homespecd.daemon.journal import event
from homespecd.daemon.keys import read_keys
from homespecd.daemon.reload import looks_unfinished, read_again
from homespecd.daemon.tasks import Tasks
from homespecd.errors import ConfigError, Problem

# Keys of [server] that are looked at when the socket is made, and not again.
_NEEDS_RESTART = ("socket", "socket_mode", "socket_group", "listen")


class Configuration:
    """Holds `config` and `keys`; `run` watches the files.

    Args:
        config: what the service was started with; path: the file it is from.
        apply: goes over to another configuration.
        quiet_s: see `config.watch`.
    """

    def __init__(
        self,
        config: Config,
        *,
        path: Path,
        apply: Callable[[Config], Awaitable[None]],
        quiet_s: float,
    ) -> None:
        self.config = config
        self.keys = read_keys(config.server)
        self._path = path
        self._apply = apply
        self._log = logging.getLogger(__name__)
        self._signature = ""
        self._generation = 1
        self._loaded_at_s = time.time()
        self._last_error = ""
        self._reloading = asyncio.Lock()
        self._under_way = Tasks()
        self._watcher = Watcher(
            path,
            known=lambda: self._signature,
            doubtful=self._looks_unfinished,
            on_change=self._files_changed,
            quiet_s=quiet_s,
        )

    async def start(self) -> None:
        """Take note of what the files hold, before `run`."""
        self._signature = await asyncio.to_thread(self._signature_if_unchanged)

    async def run(self) -> None:
        """Reload whenever the files change, until cancelled."""
        await self._watcher.run()

    def snapshot(self) -> Mapping[str, Any]:
        return {
            "path": str(self._path),
            "generation": self._generation,
            "loaded_at": self._loaded_at_s,
            "last_error": self._last_error or None,
        }

    async def reload(self) -> Reloaded:
        """Read the files again, and use what they say. What has begun is completed, also when
        whoever asked for it has gone.

        Raises:
            ConfigError: every problem; the old configuration stays.
        """
        reloading = self._under_way.start(self._reload())
        reloading.add_done_callback(self._over)
        return await asyncio.shield(reloading)

    def _over(self, reloading: asyncio.Task[Reloaded]) -> None:
        if reloading.cancelled():
            return
        error = reloading.exception()
        if error is not None and not isinstance(error, ConfigError):
            # Whoever asked may have gone, and a mistake of the program must not go with them.
            self._log.error("reload: it was broken off", exc_info=error)

    async def _reload(self) -> Reloaded:
        async with self._reloading:
            # Before the files are read: what changes while they are leads to another reload.
            self._signature = await asyncio.to_thread(signature, self._path)
            warnings: list[Problem] = []
            try:
                new, keys = await asyncio.to_thread(
                    read_again, self._path, running=self.config, warn=warnings.append
                )
            except ConfigError as error:
                self._last_error = str(error)
                for problem in error.problems:
                    self._log.error("reload: %s", problem, extra=event("reload_refused"))
                self._log.error("reload: the old configuration stays in use")
                raise
            for warning in warnings:
                self._log.warning("reload: %s", warning, extra=event("config_warning"))
            changes = _changes(self.config, new, other_keys=keys != self.keys)
            self.config, self.keys = new, keys
            await self._apply(new)
            self._last_error = ""
            if changes:
                self._generation += 1
                self._loaded_at_s = time.time()
            for change in changes or ["nothing changed"]:
                self._log.info("reload: %s", change, extra=event("reload"))
            return Reloaded(changes, tuple(one.as_warning() for one in warnings))

    def _signature_if_unchanged(self) -> str:
        """Of the files, if they still say what the service was started with; else they are read
        again as soon as they are watched."""
        now = signature(self._path)
        try:
            return now if load(self._path) == self.config else ""
        except ConfigError:
            return ""

    async def _looks_unfinished(self) -> bool:
        return await asyncio.to_thread(looks_unfinished, self._path, running=self.config)

    async def _files_changed(self) -> None:
        self._log.info("reload: the files have changed")
        with contextlib.suppress(Exception):  # it is in the log, and watching goes on
            await self.reload()


def _changes(old: Config, new: Config, *, other_keys: bool) -> list[str]:
    changes = [str(change) for change in diff(old, new)]
    if other_keys:
        changes.append("server: there are other API keys in the file")
    late = [key for key in _NEEDS_RESTART if getattr(old.server, key) != getattr(new.server, key)]
    if late:
        changes.append(f"server: {', '.join(late)} will change when the service restarts")
    return changes
