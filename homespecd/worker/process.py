"""The process of one model: a reader thread on the socket and the engine's thread.

The reader never computes, so a supervisor that goes away is noticed at once, in the middle of a
load or of a step, and the process ends with it.
"""

from __future__ import annotations

import logging
import os
import queue
import signal
import socket
import threading
import time
from dataclasses import replace

from homespecd.errors import HomespecError, ModelError
from homespecd.worker import notices
from homespecd.worker.bench import bench_job
from homespecd.worker.engine import Engine
from homespecd.worker.governing import make_governor
from homespecd.worker.load import load, unreadable
from homespecd.worker.messages import Frame, Unpacker, WorkerSettings
from homespecd.worker.outbox import Outbox
from homespecd.worker.progress import Progress, Watched
from homespecd.worker.tokens import detokenize_job, tokenize_job
from homespecd.worker.verify import verify_job

_READ_BYTES = 1 << 16


def main(fd: int) -> int:
    """Serve one model on an inherited socket until the other side says stop or goes away."""
    logging.basicConfig(level=logging.WARNING, format="%(levelname)s %(name)s: %(message)s")
    # The tokenizers' library would start a thread for every core of the host.
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
    sock = socket.socket(fileno=fd)
    inbox: queue.SimpleQueue[Frame] = queue.SimpleQueue()
    outbox = Outbox(sock)
    progress = Progress()
    arguments = (sock, inbox, outbox, progress)
    threading.Thread(target=_read, args=arguments, name="reader", daemon=True).start()
    interrupted = _Interrupted(inbox)
    first = inbox.get()
    if first["type"] == "stop":
        return 0
    assert first["type"] == "load", first["type"]
    settings = WorkerSettings.from_frame(first["settings"])
    try:
        return _serve(settings, inbox, outbox, progress, interrupted)
    except MemoryError:
        outbox.send(_failed("out of memory", hint="lower `context` or `slots`, or raise the cap"))
        return 1


class _Interrupted:
    """Whether somebody sent SIGINT, which ends the worker as a "stop" frame does: between two steps
    of the engine, or of a load."""

    def __init__(self, inbox: queue.SimpleQueue[Frame]) -> None:
        self.reason = ""
        self._inbox = inbox
        signal.signal(signal.SIGINT, self._note)

    def check(self) -> None:
        """Raises ModelError: it was interrupted."""
        if self.reason:
            raise ModelError(self.reason)

    def _note(self, _number: int, _frame: object) -> None:
        # Called between any two instructions of the main thread, which may hold any lock but the
        # inbox's: that one is made for it.
        self.reason = "it was interrupted (by SIGINT)"
        self._inbox.put({"type": "stop"})


def _serve(
    settings: WorkerSettings,
    inbox: queue.SimpleQueue[Frame],
    outbox: Outbox,
    progress: Progress,
    interrupted: _Interrupted,
) -> int:
    def loading(what: str) -> None:
        interrupted.check()
        outbox.send({"type": "loading", "what": what})

    try:
        loaded = load(settings, loading)
        loaded = replace(loaded, target=Watched(loaded.target, progress))
        loading("measuring")
        learned = make_governor(loaded)
    except HomespecError as error:
        outbox.send(_failed(error.message, where=error.where, hint=error.hint))
        return 1
    except OSError as error:
        fault = unreadable(error, settings.path)
        outbox.send(_failed(fault.message, where=fault.where, hint=fault.hint))
        return 1
    for message in (notices.of_placement(loaded.target.spec), *notices.of_drafts(loaded.drafts)):
        if message:
            outbox.warn(message)
    engine = Engine(
        loaded=loaded,
        learned=learned,
        outbox=outbox,
        inbox=inbox,
        jobs={"verify": verify_job, "bench": bench_job},
        questions={"tokenize": tokenize_job, "detokenize": detokenize_job},
        progress=progress,
        clock_s=time.monotonic,
    )
    outbox.send({"type": "ready", "info": engine.snapshot()})
    reason = engine.run() or interrupted.reason
    if reason:
        outbox.send({"type": "ending", "reason": reason})
    return 1 if reason else 0


def _read(
    sock: socket.socket, inbox: queue.SimpleQueue[Frame], outbox: Outbox, progress: Progress
) -> None:
    """Frames into the inbox; the end of the socket is the end of the process."""
    unpacker = Unpacker()
    while True:
        try:
            data = sock.recv(_READ_BYTES)
        except OSError:
            data = b""
        if not data:
            # Nobody is left to answer to, and a native call may be running that cannot be
            # interrupted: leave without ceremony.
            os._exit(0)
        for frame in unpacker.feed(data):
            if frame["type"] == "ping":
                outbox.send({"type": "pong", **progress.word()})
            else:
                inbox.put(frame)


def _failed(message: str, *, where: str = "", hint: str = "") -> Frame:
    return {"type": "failed", "error": {"message": message, "where": where, "hint": hint}}
