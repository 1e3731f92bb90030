"""Work that takes no step of a model, on a thread of its own, beside the engine's steps."""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable
from concurrent.futures import Future
from typing import Any


class Aside:
    """One thing after the other. Used by the engine's thread.

    Args:
        wake: called on the other thread when something is done: `release` has something to do.
    """

    def __init__(self, *, wake: Callable[[], None]) -> None:
        self._wake = wake
        self._work: queue.SimpleQueue[tuple[Future[Any], Callable[[], Any]]] = queue.SimpleQueue()
        self._held: dict[int, tuple[Future[Any], Callable[[Future[Any]], None]]] = {}
        self._thread: threading.Thread | None = None

    def begin(
        self, request_id: int, work: Callable[[], Any], then: Callable[[Future[Any]], None]
    ) -> None:
        """Do `work` there. `release` calls `then` with what came of it."""
        future: Future[Any] = Future()
        self._held[request_id] = future, then
        self._work.put((future, work))
        if self._thread is None:
            # A daemon: a worker that is told to stop waits for nothing.
            self._thread = threading.Thread(target=self._run, name="aside", daemon=True)
            self._thread.start()

    def cancel(self, request_id: int) -> None:
        """Nobody waits for it: it is not begun, and nobody is called."""
        held = self._held.pop(request_id, None)
        if held is not None:
            held[0].cancel()

    def release(self) -> None:
        """Go on with what is done."""
        if not self._held:
            return
        for request_id, (future, then) in list(self._held.items()):
            if future.done():
                del self._held[request_id]
                then(future)

    def _run(self) -> None:
        while True:
            future, work = self._work.get()
            if not future.set_running_or_notify_cancel():
                continue
            try:
                future.set_result(work())
            except BaseException as error:
                future.set_exception(error)
            self._wake()
