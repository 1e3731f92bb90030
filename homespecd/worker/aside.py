"""Work that takes no step of a model, on a thread of its own, beside the engine's steps."""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable
from concurrent.futures import Future
from typing import Any, Generic, TypeVar

from homespecd.errors import ModelError

T = TypeVar("T")


class Aside:
    """One thing after the other. Used by the engine's thread.

    Args:
        name: the thread's.
        wake: called on the other thread when something is done: `release` has something to do.
    """

    def __init__(self, name: str, *, wake: Callable[[], None]) -> None:
        self._name = name
        self._wake = wake
        self._work: queue.SimpleQueue[tuple[Future[Any], Callable[[], Any]]] = queue.SimpleQueue()
        self._held: dict[int, tuple[Future[Any], Callable[[Future[Any]], None]]] = {}
        self._thread: threading.Thread | None = None

    def begin(
        self, request_id: int, work: Callable[[], T], then: Callable[[Future[T]], None]
    ) -> None:
        """Do `work` there. `release` calls `then` with what came of it."""
        future: Future[T] = Future()
        self._held[request_id] = future, then
        self._work.put((future, work))
        if self._thread is None:
            # A daemon: a worker that is told to stop waits for nothing.
            self._thread = threading.Thread(target=self._run, name=self._name, daemon=True)
            self._thread.start()

    def cancel(self, request_id: int) -> None:
        """Nobody waits for it: it is not begun, and nobody is called."""
        held = self._held.pop(request_id, None)
        if held is not None:
            held[0].cancel()

    def release(self) -> None:
        """Go on with what is done, in the order in which it was begun."""
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
            except Exception as error:
                future.set_exception(error)
            except BaseException as error:
                # A library's panic, which would end the engine's thread when it is raised there.
                future.set_exception(ModelError(f"{type(error).__name__}: {error}"))
            self._wake()


class Once(Generic[T]):
    """A value that whoever asks for it first makes, on any thread; the others wait for the same.

    That it cannot be made is final too: it is not tried again.
    """

    def __init__(self, make: Callable[[], T]) -> None:
        self._make = make
        self._lock = threading.Lock()
        self._made: Future[T] = Future()

    def __call__(self) -> T:
        """The value. Raises what making it raised."""
        with self._lock:
            if not self._made.done():
                try:
                    self._made.set_result(self._make())
                except BaseException as error:
                    self._made.set_exception(error)
        return self._made.result()
