"""One worker process as the supervisor sees it: frames out, events in, and its end.

The worker notices by itself when the supervisor is gone (its socket ends), so nothing has to be
cleaned up after a supervisor that was killed.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from homespecd.daemon.health import EngineWord
from homespecd.daemon.journal import event
from homespecd.daemon.pending import Pending
from homespecd.daemon.streams import RequestStream
from homespecd.daemon.worker_end import cancelled_job, death_error, end_reason, verdict_reason
from homespecd.daemon.worker_link import FrameProtocol, spawn
from homespecd.errors import ModelError, RequestError
from homespecd.worker.messages import (
    MAX_FRAME_BYTES,
    Frame,
    GenerationRequest,
    WorkerSettings,
    pack,
)

# How long a worker may take to leave by itself. It stops between two steps; a step of a large
# prompt takes seconds, and nothing is lost by not waiting for it.
STOP_GRACE_S = 1.5

# A worker that was killed is reported to us by its socket before its exit status is known.
_EXIT_STATUS_WAIT_S = 2.0

_LOG_LEVELS = {"debug": logging.DEBUG, "info": logging.INFO, "warning": logging.WARNING}


@dataclass(frozen=True)
class Owner:
    """Who is told what happens to a worker besides the answers to its requests.

    started: the process is there and has not begun to load. out_of_memory: asked when it was
    killed: whether that was the kernel, for want of memory.
    """

    loading: Callable[[str], None]
    exited: Callable[[str], None]
    started: Callable[[WorkerHandle], None] = lambda _handle: None
    out_of_memory: Callable[[], bool] = lambda: False


class WorkerHandle:
    """A worker that is ready. Made by `start`; all calls on the event loop."""

    def __init__(self, name: str, process: asyncio.subprocess.Process, owner: Owner) -> None:
        self.name = name
        self.pid = process.pid
        self.info: Mapping[str, Any] = {}
        self.snapshot: Mapping[str, Any] = {}
        self._process = process
        self._owner = owner
        self._log = logging.getLogger(__name__)
        self._transport: asyncio.Transport | None = None
        self._ready: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._connected = False  # once and for all: whoever never was is not waited for
        self._gone = asyncio.Event()
        self._stopping = False
        self._pending = Pending(self._send)
        self._farewell: asyncio.Task[None] | None = None
        self._verdict = ""
        self._killed = False
        # For `daemon.vigil`: since when a question waits for an answer, None = none does.
        self.asked_s: float | None = None
        self.engine = EngineWord()

    @classmethod
    async def start(
        cls, settings: WorkerSettings, *, command: Sequence[str], owner: Owner
    ) -> WorkerHandle:
        """Start a process and wait until its model is loaded.

        Args:
            command: what to run; the number of the inherited socket is appended.
            owner: `exited` is called once, with a sentence, when a ready worker ends by itself.

        Raises:
            ModelError: the model cannot be loaded, in the worker's own words, or the worker ended.
        """
        try:
            process, ours = await spawn(command)
        except OSError as error:
            raise _not_started(error) from error
        handle = cls(settings.name, process, owner)
        try:
            owner.started(handle)
            await asyncio.get_running_loop().create_unix_connection(
                lambda: FrameProtocol(handle), sock=ours
            )
            handle._send({"type": "load", "settings": settings.to_frame()})
            await asyncio.shield(handle._ready)
        except BaseException as error:
            await asyncio.shield(handle.stop(grace_s=0.0))
            if not handle._connected:
                ours.close()
            if isinstance(error, OSError):
                raise _not_started(error) from error
            raise
        return handle

    @property
    def draft_bytes(self) -> int:
        """What its draft models hold, by its own last word."""
        drafters = (self.snapshot or self.info).get("speculation", {}).get("drafters", ())
        return sum(one.get("memory_bytes") or 0 for one in drafters)

    def generate(self, request: GenerationRequest) -> RequestStream:
        """Hand a request over.

        Raises:
            RequestError: it is larger than one message to a worker may be.
        """
        request_id = self._pending.new_id()
        data = pack({"type": "generate", "id": request_id, "request": request.to_frame()})
        if len(data) > MAX_FRAME_BYTES:
            raise RequestError("the request is too large", status=413, code="body_too_large")
        stream = self._pending.stream(request_id)
        self._hand_over(data)
        return stream

    async def call(self, kind: str, options: Mapping[str, Any]) -> Mapping[str, Any]:
        """Ask the worker for a job ("verify", "bench") or a question ("tokenize", …).

        Raises:
            RequestError: it failed, or the worker ended, or it was broken off.
        """
        call_id = self._pending.new_id()
        result = self._pending.call(call_id, kind)
        try:
            self._hand_over(pack({"type": kind, "id": call_id, "options": dict(options)}))
            return await result
        finally:
            self._pending.cancel(call_id)

    async def redraft(self, settings: WorkerSettings, *, urgent: bool) -> None:
        """Change the drafters to those of `settings`; returns when that is complete.

        Args:
            urgent: requests in flight give up drafts that go; else these go when they end.

        Raises:
            ModelError: the worker ended.
        """
        done = self._pending.redraft()
        if self._transport is None:
            self._pending.fail_redrafts()
        self._send({"type": "drafters", "settings": settings.to_frame(), "urgent": urgent})
        await done

    def ask(self, now_s: float) -> None:
        """Ask for a word, if no question waits for an answer yet."""
        if self.asked_s is None:
            self.asked_s = now_s
            self._send({"type": "ping"})

    def kill(self, why: str) -> None:
        """End the process; its requests get an error that says why at once.

        Not when it is gone: a process that waits for a disk cannot even die.
        """
        self._verdict = self._verdict or why
        self._killed = True
        self._kill()
        if self._is_ready:
            self._pending.fail(death_error(self.name, verdict_reason(self._verdict)))

    async def refresh_snapshot(self, timeout_s: float) -> None:
        """Ask for a new snapshot; a worker in a long step may not answer in time."""
        self._send({"type": "snapshot"})
        await self._pending.snapshot(timeout_s)

    def fail_all(self, error: RequestError) -> None:
        """End every request with `error`; the worker stops generating for them."""
        self._pending.cut(error)

    def break_off(self, why: str) -> None:
        """End every job, and tell whoever asked for it why; requests go on."""
        self._pending.cut_jobs(lambda kind: cancelled_job(self.name, kind, why))

    async def stop(self, *, grace_s: float = STOP_GRACE_S) -> None:
        """End the process, by force after `grace_s`. Returns when it is gone."""
        self._stopping = True
        self._ready.cancel()
        self._send({"type": "stop"})
        try:
            async with asyncio.timeout(grace_s):
                await self._process.wait()
        except TimeoutError:
            self._kill()
            await self._process.wait()
        if self._transport is not None:
            self._transport.close()
        if self._connected:
            await self._gone.wait()

    # -- from the socket -----------------------------------------------------------------------

    def connected(self, transport: asyncio.Transport) -> None:
        self._transport = transport
        self._connected = True

    def received(self, frame: dict[str, Any]) -> None:
        """Take one frame."""
        self.asked_s = None
        kind = frame["type"]
        if kind == "snapshot":
            self.snapshot = frame["snapshot"]
        if self._pending.received(kind, frame):
            return
        if kind == "pong":
            self.engine = EngineWord(frame["turn"], frame["doing"], frame["predicted_s"])
        elif kind == "loading":
            self._owner.loading(frame["what"])
        elif kind == "log":
            level = _LOG_LEVELS.get(frame["level"], logging.ERROR)
            fields = event("worker_log", model=self.name)
            self._log.log(level, "model %s: %s", self.name, frame["message"], extra=fields)
        elif kind == "ending":
            self._verdict = self._verdict or frame["reason"]
        elif kind == "ready":
            self.info = frame["info"]
            if not self._ready.done():
                self._ready.set_result(None)
        elif kind == "failed":
            error = ModelError(**frame["error"])
            self._verdict = self._verdict or str(error)  # unless it was loading
            self._failed_to_load(error)

    def disconnected(self) -> None:
        """The worker is gone, or about to be."""
        self._transport = None
        self._gone.set()
        self._pending.fail_redrafts()
        if self._stopping:
            self._pending.fail(death_error(self.name, "it was unloaded"))
        else:
            self._farewell = asyncio.get_running_loop().create_task(self._say_farewell())

    async def _say_farewell(self) -> None:
        try:
            async with asyncio.timeout(_EXIT_STATUS_WAIT_S):
                await self._process.wait()
        except TimeoutError:
            # It closed its socket and goes on: nobody can talk to it any more.
            self._kill()
            await self._process.wait()
        reason = end_reason(
            self._process.returncode,
            verdict=self._verdict,
            out_of_memory=self._owner.out_of_memory,
        )
        if self._is_ready:
            self._pending.fail(death_error(self.name, reason))
            self._owner.exited(reason)
        else:
            self._failed_to_load(ModelError(f"{reason} before its model was loaded"))

    def _kill(self) -> None:
        if self._process.returncode is None:
            with contextlib.suppress(ProcessLookupError):
                self._process.kill()

    # -- to the socket -------------------------------------------------------------------------

    def _hand_over(self, data: bytes) -> None:
        """Send what waits for an answer; where none will come, that is its answer."""
        if self._transport is None or self._killed:
            self._pending.fail(
                death_error(self.name, verdict_reason(self._verdict) or "the worker has ended")
            )
        else:
            self._transport.write(data)

    def _send(self, frame: Frame) -> None:
        if self._transport is not None:
            self._transport.write(pack(frame))

    @property
    def _is_ready(self) -> bool:
        ready = self._ready
        return ready.done() and not ready.cancelled() and ready.exception() is None

    def _failed_to_load(self, error: ModelError) -> None:
        if not self._ready.done():
            self._ready.set_exception(error)


def _not_started(error: OSError) -> ModelError:
    return ModelError(f"cannot start a worker: {error.strerror}")
