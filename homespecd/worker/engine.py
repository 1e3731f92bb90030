"""The engine: one thread that owns the model, takes commands between steps, and answers.

Everything that touches the target, the drafts, the slots or the governor happens on this thread.
The reader (`worker.process`) only posts frames into the inbox; replies leave through the outbox.
A frame that asks for an answer goes to `worker.requests`; what all of them share is in
`worker.serving`.
"""

from __future__ import annotations

import queue
import time
from collections import deque
from collections.abc import Callable, Mapping
from typing import Any

from homespecd.worker import notices
from homespecd.worker.governing import LearnedGovernor
from homespecd.worker.intake import Emit, Finish
from homespecd.worker.load import Loaded
from homespecd.worker.messages import Frame, GenerationRequest, WorkerSettings
from homespecd.worker.outbox import Outbox
from homespecd.worker.progress import Progress
from homespecd.worker.requests import Requests
from homespecd.worker.serving import Serving
from homespecd.worker.snapshot import model_snapshot

SNAPSHOT_INTERVAL_S = 0.5
# Without work nothing changes and nobody need be told: the engine only looks whether what it
# learned should be written.
IDLE_WAIT_S = 5.0

Job = Callable[["Engine"], Mapping[str, Any]]


class Engine:
    """Runs until a "stop" frame.

    Args:
        loaded: the model; the engine closes it.
        learned: its governor; likewise.
        jobs: what the "verify" and "bench" frames do, by type; one after the other.
        questions: the same for what takes no step of a model: answered on a thread of their own,
            whatever job runs.
        progress: told when there is work, and when there is none.
        clock_s: monotonic seconds.
    """

    def __init__(
        self,
        *,
        loaded: Loaded,
        learned: LearnedGovernor,
        outbox: Outbox,
        inbox: queue.SimpleQueue[Frame],
        jobs: Mapping[str, Callable[[Mapping[str, Any]], Job]],
        questions: Mapping[str, Callable[[Mapping[str, Any]], Job]] | None = None,
        progress: Progress | None = None,
        clock_s: Callable[[], float] = time.monotonic,
    ) -> None:
        self.serving = Serving(
            loaded=loaded,
            learned=learned,
            warn=outbox.warn,
            wake=lambda: inbox.put({"type": "wake"}),
            clock_s=clock_s,
        )
        self._requests = Requests(self.serving, outbox=outbox, post=inbox.put)
        self._outbox = outbox
        self._inbox = inbox
        self._jobs = jobs
        self._questions = questions or {}
        self._progress = progress or Progress(clock_s)
        self._clock_s = clock_s
        self._pending_jobs: deque[Frame] = deque()
        self._running_job: int | None = None
        self._job_cancelled = False
        self._stopping = False
        self._snapshot_at_s = float("-inf")
        self._told = False  # the last snapshot is of an idle engine, and it still is

    @property
    def loaded(self) -> Loaded:
        """The model as it is now; its drafts may have changed since the last look."""
        return self.serving.loaded

    def run(self) -> str:
        """Answer until told to stop, or until a device is lost that only a new process can reopen.

        Returns:
            Why it ended by itself, "" when it was told to.
        """
        lost = self.serving.lost
        while not self._stopping and not lost.must_end(idle=self.serving.scheduler.idle):
            self.pump(wait_s=IDLE_WAIT_S if self._told else SNAPSHOT_INTERVAL_S)
            if self._pending_jobs:
                self._run_job(self._pending_jobs.popleft())
        self.serving.close()
        return "" if self._stopping else lost.reason

    def pump(self, *, wait_s: float = 0.0) -> None:
        """Take the commands that have come, then run one step. Waits only when there is no work."""
        scheduler = self.serving.scheduler
        self._take_frames(wait_s if scheduler.idle and not self._pending_jobs else 0.0)
        self._requests.release()
        if self.serving.change_drafters():
            self._report_drafts()
        scheduler.turn()
        self._requests.flush_if_due()
        if self._clock_s() - self._snapshot_at_s >= SNAPSHOT_INTERVAL_S:
            self.serving.save_if_due()
            if not self._told:
                self._send_snapshot()
        self._told &= scheduler.idle

    @property
    def job_cancelled(self) -> bool:
        """Whether the job under way should end: nobody waits for it, or the worker stops."""
        return self._job_cancelled or self._stopping

    def start(self, request: GenerationRequest, *, emit: Emit, finish: Finish) -> int:
        """Queue a request of a job's; see `Requests.start`."""
        return self._requests.start(request, emit=emit, finish=finish)

    def snapshot(self) -> dict[str, Any]:
        """This model's part of the status snapshot."""
        return model_snapshot(self.serving)

    def _take_frames(self, wait_s: float) -> None:
        try:
            frame = self._wait_for_frame(wait_s) if wait_s else self._inbox.get_nowait()
            while True:
                self._handle(frame)
                frame = self._inbox.get_nowait()
        except queue.Empty:
            return

    def _wait_for_frame(self, wait_s: float) -> Frame:
        self._progress.idle()
        try:
            return self._inbox.get(timeout=wait_s)
        finally:
            self._progress.between()

    def _handle(self, frame: Frame) -> None:
        kind = frame["type"]
        if kind == "generate":
            self._requests.generate(frame["id"], GenerationRequest.from_frame(frame["request"]))
        elif kind == "cancel":
            self._cancel(frame["id"])
        elif kind == "snapshot":
            self._send_snapshot()
        elif kind == "drafters":
            settings = WorkerSettings.from_frame(frame["settings"])
            self.serving.want_drafters(settings, urgent=frame["urgent"])
        elif kind == "wake":
            pass  # it ended the wait, which was all
        elif kind == "stop":
            self._stopping = True
        elif kind in self._jobs:
            self._pending_jobs.append(frame)
        elif kind in self._questions:
            question = self._questions[kind](frame.get("options") or {})
            self._requests.ask(frame["id"], lambda: question(self))
        else:
            raise AssertionError(f"unknown frame {kind!r}")

    def _cancel(self, request_id: int) -> None:
        if request_id == self._running_job:
            self._job_cancelled = True
        for frame in [one for one in self._pending_jobs if one["id"] == request_id]:
            self._pending_jobs.remove(frame)
        self._requests.cancel(request_id)

    def _run_job(self, frame: Frame) -> None:
        self._running_job, self._job_cancelled = frame["id"], False
        job = self._jobs[frame["type"]]
        self._requests.answer(frame["id"], lambda: job(frame.get("options") or {})(self))
        self._running_job = None

    def _report_drafts(self) -> None:
        for message in notices.of_drafts(self.loaded.drafts):
            self._outbox.warn(message)
        self._send_snapshot()
        self._outbox.send({"type": "drafters"})

    def _send_snapshot(self) -> None:
        self._snapshot_at_s = self._clock_s()
        self._told = self.serving.scheduler.idle
        self._outbox.send({"type": "snapshot", "snapshot": self.snapshot()})
