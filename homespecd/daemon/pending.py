"""What a worker was asked and has not answered: streams, jobs, snapshots, changes of drafters."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from homespecd.api.service import Delta, Done
from homespecd.daemon.streams import RequestStream
from homespecd.errors import ModelError, RequestError
from homespecd.worker.messages import Frame

# What takes minutes and whose worth is in its end. All other calls are questions.
_JOBS = ("bench", "verify")


@dataclass(frozen=True)
class _Call:
    kind: str
    result: asyncio.Future[Mapping[str, Any]]


class Pending:
    """Hands the frames of a worker to whoever waits for them.

    Args:
        send: a frame to the worker.
    """

    def __init__(self, send: Callable[[Frame], None]) -> None:
        self._send = send
        self._ids = itertools.count(1)
        self._streams: dict[int, RequestStream] = {}
        self._calls: dict[int, _Call] = {}
        self._snapshots: list[asyncio.Future[None]] = []
        self._redrafts: list[asyncio.Future[None]] = []

    def new_id(self) -> int:
        return next(self._ids)

    def stream(self, request_id: int) -> RequestStream:
        """The events of a request that is about to be sent."""
        stream = RequestStream(cancel=lambda: self.cancel(request_id))
        self._streams[request_id] = stream
        return stream

    def call(self, call_id: int, kind: str) -> asyncio.Future[Mapping[str, Any]]:
        """The result of a call that is about to be sent; `cancel` when nobody waits any more."""
        call = _Call(kind, asyncio.get_running_loop().create_future())
        self._calls[call_id] = call
        return call.result

    def redraft(self) -> asyncio.Future[None]:
        """The end of a change of drafters; they end in the order in which they were asked for."""
        done: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._redrafts.append(done)
        return done

    async def snapshot(self, timeout_s: float) -> None:
        """Until a snapshot comes, or the time is over."""
        waiter: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._snapshots.append(waiter)
        await asyncio.wait([waiter], timeout=timeout_s)
        if waiter in self._snapshots:
            self._snapshots.remove(waiter)

    def received(self, kind: str, frame: Mapping[str, Any]) -> bool:
        """Hand a frame on; False when it is none that anybody waits for here."""
        # Every token passes here; the most frequent comes first.
        if kind == "delta":
            stream = self._streams.get(frame["id"])
            if stream is not None:
                stream.push(
                    Delta(
                        frame["text"],
                        frame["tokens"],
                        frame["index"],
                        frame.get("logprobs"),
                        frame.get("tool_calls"),
                    )
                )
        elif kind == "done":
            ended = self._streams.pop(frame["id"], None)
            if ended is not None:
                reasons = tuple(frame["finish_reasons"])
                ended.push(Done(reasons, frame["usage"], frame["homespec"]))
        elif kind == "error":
            self._fail(frame["id"], _as_error(frame["error"]))
        elif kind == "snapshot":
            for waiter in self._snapshots:
                if not waiter.done():
                    waiter.set_result(None)
            self._snapshots.clear()
        elif kind == "result":
            call = self._calls.get(frame["id"])
            if call is not None and not call.result.done():
                call.result.set_result(frame["result"])
        elif kind == "drafters":
            if self._redrafts:
                done = self._redrafts.pop(0)
                if not done.done():
                    done.set_result(None)
        else:
            return False
        return True

    def cancel(self, request_id: int) -> None:
        """Nobody waits for this any more: tell the worker, if it has not ended."""
        known = self._streams.pop(request_id, None) is not None
        call = self._calls.pop(request_id, None)
        if known or (call is not None and (call.result.cancelled() or not call.result.done())):
            self._send({"type": "cancel", "id": request_id})

    def cut(self, error: RequestError) -> None:
        """End every request and call with `error`; the worker stops working for them."""
        for request_id in (*self._streams, *self._calls):
            self._cut(request_id, error)

    def cut_jobs(self, error: Callable[[str], RequestError]) -> None:
        """End every job, with the error for one of its kind; the worker stops working for them."""
        for call_id, call in self._calls.items():
            if call.kind in _JOBS and not call.result.done():
                self._cut(call_id, error(call.kind))

    def fail(self, error: Callable[[str], RequestError]) -> None:
        """End every request and call: the worker is gone.

        Args:
            error: makes the error from when that was, as seen by whoever asked.
        """
        for request_id, stream in list(self._streams.items()):
            begun = "in the middle of this answer" if stream.begun else "before this answer began"
            self._fail(request_id, error(begun))
        for call_id, call in self._calls.items():
            job = call.kind if call.kind in _JOBS else "answer"
            self._fail(call_id, error(f"before this {job} was complete"))

    def fail_redrafts(self) -> None:
        """No change of drafters will be complete: the worker is gone."""
        for done in self._redrafts:
            if not done.done():
                done.set_exception(ModelError("the worker has ended"))
        self._redrafts.clear()

    def _cut(self, request_id: int, error: RequestError) -> None:
        self._fail(request_id, error)
        self._send({"type": "cancel", "id": request_id})

    def _fail(self, request_id: int, error: RequestError) -> None:
        stream = self._streams.pop(request_id, None)
        if stream is not None:
            stream.push(error)
        call = self._calls.get(request_id)
        if call is not None and not call.result.done():
            call.result.set_exception(error)


def _as_error(error: Mapping[str, Any]) -> RequestError:
    return RequestError(
        error["message"],
        status=error["status"],
        code=error["code"],
        param=error["param"],
        retry_after_s=error["retry_after_s"],
    )
