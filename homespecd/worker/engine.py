"""The engine: one thread that owns the model, takes commands between steps, and answers.

Everything that touches the target, the drafts, the slots or the governor happens on this thread.
The reader (`worker.process`) only posts frames into the inbox; replies leave through the outbox.
"""

from __future__ import annotations

import logging
import queue
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

from homespecd.errors import HomespecError, ModelError
from homespecd.governor.protocol import Governor, Reason
from homespecd.worker import notices
from homespecd.worker.account import Account
from homespecd.worker.aside import Aside
from homespecd.worker.generate import Conversation
from homespecd.worker.governing import LearnedGovernor
from homespecd.worker.grammars import GrammarTables, grammar_vocabulary
from homespecd.worker.intake import (
    Emit,
    Finish,
    for_choice,
    is_long,
    logprob_notes,
    make_ticket,
    with_prompt_ids,
)
from homespecd.worker.load import Loaded
from homespecd.worker.logprobs import LogprobNotes
from homespecd.worker.lost import LostDevice
from homespecd.worker.memory import MemoryMeter
from homespecd.worker.messages import Frame, GenerationRequest, WorkerSettings
from homespecd.worker.outbox import Outbox
from homespecd.worker.progress import Progress
from homespecd.worker.redraft import DraftChange, opener
from homespecd.worker.replies import Reply
from homespecd.worker.scheduler import Scheduler
from homespecd.worker.slots import Slot
from homespecd.worker.snapshot import model_snapshot
from homespecd.worker.tools import answer_grammar, check_tools, tool_calls
from homespecd.worker.totals import Totals
from homespecd.worker.waiting import Outcome

SNAPSHOT_INTERVAL_S = 0.5
# Without work nothing changes and nobody need be told: the engine only looks whether what it
# learned should be written.
IDLE_WAIT_S = 5.0

Job = Callable[["Engine"], Mapping[str, Any]]


class Engine:
    """Runs until a "stop" frame.

    Args:
        loaded: the model; the engine closes it.
        make_governor: makes another one when the drafters have changed.
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
        make_governor: Callable[[Loaded], LearnedGovernor],
        outbox: Outbox,
        inbox: queue.SimpleQueue[Frame],
        jobs: Mapping[str, Callable[[Mapping[str, Any]], Job]],
        questions: Mapping[str, Callable[[Mapping[str, Any]], Job]] | None = None,
        progress: Progress | None = None,
        clock_s: Callable[[], float] = time.monotonic,
    ) -> None:
        self.loaded = loaded
        self._learned = learned
        self._make_governor = make_governor
        self._governed = _governed(loaded)
        self.governor: Governor = learned.governor
        self.clock_s = clock_s
        self.totals = Totals()
        self.slots = tuple(self._new_slot(index) for index in range(loaded.settings.slots))
        self.scheduler = Scheduler(
            target=loaded.target,
            slots=self.slots,
            governor=self.governor,
            clock_s=clock_s,
            drafter_failed=self._drafter_failed,
        )
        self._outbox = outbox
        self._inbox = inbox
        self._jobs = jobs
        self._questions = questions or {}
        self._progress = progress or Progress(clock_s)
        self._replies: dict[int, Reply] = {}

        def wake() -> None:
            inbox.put({"type": "wake"})

        self._grammars = GrammarTables(
            lambda: grammar_vocabulary(loaded.tokenizer, vocab_size=loaded.vocab_size), wake=wake
        )
        self._aside = Aside(wake=wake)
        self.memory = MemoryMeter()
        self._pending_changes: deque[Frame] = deque()
        self._change: DraftChange | None = None
        self._pending_jobs: deque[Frame] = deque()
        self._running_job: int | None = None
        self._job_cancelled = False
        self._stopping = False
        self._lost = LostDevice()
        self._snapshot_at_s = float("-inf")
        self._told = False  # the last snapshot is of an idle engine, and it still is
        self._next_own_id = -1

    def run(self) -> str:
        """Answer until told to stop, or until a device is lost that only a new process can reopen.

        Returns:
            Why it ended by itself, "" when it was told to.
        """
        while not self._stopping and not self._lost.must_end(idle=self.scheduler.idle):
            self.pump(wait_s=IDLE_WAIT_S if self._told else SNAPSHOT_INTERVAL_S)
            if self._pending_jobs:
                self._run_job(self._pending_jobs.popleft())
        self._learned.close(self.clock_s())
        self.loaded.close()
        return "" if self._stopping else self._lost.reason

    def pump(self, *, wait_s: float = 0.0) -> None:
        """Take the commands that have come, then run one step. Waits only when there is no work."""
        self._take_frames(wait_s if self.scheduler.idle and not self._pending_jobs else 0.0)
        self._grammars.release()
        self._aside.release()
        self._change_drafters()
        self.scheduler.turn()
        for reply in self._replies.values():
            reply.flush_if_due()
        now_s = self.clock_s()
        if now_s - self._snapshot_at_s >= SNAPSHOT_INTERVAL_S:
            self._learned.save_if_due(now_s)
            if not self._told:
                self._send_snapshot()
        self._told &= self.scheduler.idle

    @property
    def job_cancelled(self) -> bool:
        """Whether the job under way should end: nobody waits for it, or the worker stops."""
        return self._job_cancelled or self._stopping

    def start(self, request: GenerationRequest, *, emit: Emit, finish: Finish) -> int:
        """Queue a request of the engine's own (a job's); returns its id, which is negative.

        Raises:
            RequestError: the request cannot be answered as asked.
        """
        own_id = self._own_id()
        self.submit(own_id, request, emit=emit, finish=finish)
        return own_id

    def _own_id(self) -> int:
        self._next_own_id -= 1
        return self._next_own_id

    def submit(
        self,
        request_id: int,
        request: GenerationRequest,
        *,
        emit: Emit,
        finish: Finish,
        conversation_id: int | None = None,
        notes: LogprobNotes | None = None,
    ) -> None:
        """Queue one choice of a request. Raises RequestError if it cannot be answered as asked."""
        self.memory.mark(self.clock_s())
        ticket = make_ticket(
            self.loaded,
            request_id,
            request,
            emit=emit,
            finish=finish,
            clock_s=self.clock_s,
            vocabulary=self._grammars.get,
            conversation_id=conversation_id,
            notes=notes,
        )
        self.scheduler.submit(ticket)

    def report(self, conversation: Conversation) -> dict[str, Any]:
        """The `homespec` object of a conversation that has ended."""
        return self._report(conversation.account)

    def _report(self, account: Account) -> dict[str, Any]:
        return account.report(
            speedup=self.governor.speedup(account.drafter),
            peak_memory_bytes=self.memory.peak_bytes(account.submitted_s, self.clock_s()),
        )

    def snapshot(self) -> dict[str, Any]:
        """This model's part of the status snapshot."""
        return model_snapshot(self)

    def _drafter_failed(self, name: str, error: ModelError) -> None:
        self._lost.of_draft(error)
        draft = self.loaded.drafts.get(name)  # it may have been replaced meanwhile
        if draft is not None and draft.usable:
            draft.fail(Reason.DRAFT_FAILED, str(error))
            self._outbox.warn(f"drafter {name} is off: {error}")

    def _change_drafters(self) -> None:
        """Begin the change that is asked for, or go on with the one under way."""
        if self._change is None:
            if not self._pending_changes:
                return
            frame = self._pending_changes.popleft()
            self._change = DraftChange(
                self.loaded.drafts,
                WorkerSettings.from_frame(frame["settings"]),
                urgent=frame["urgent"],
                opener=opener(self.loaded.tokenizer),
                wake=lambda: self._inbox.put({"type": "wake"}),
            )
        change = self._change
        # A new dict each time: what others took from the old one stays as it was.
        self.loaded = replace(self.loaded, settings=change.settings, drafts=dict(change.drafts))
        if change.advance(self.slots, self.scheduler.working, self.loaded.target):
            self._change = None
            self.loaded = replace(self.loaded, drafts=change.drafts)
            self._renew_governor()
            self._report_drafts()

    def _renew_governor(self) -> None:
        """Drafts that only went keep their place in the governor, for when they come back."""
        governed = _governed(self.loaded)
        if governed <= self._governed:
            return
        self._learned.close(self.clock_s())
        self._learned = self._make_governor(self.loaded)
        self._governed = governed
        self.governor = self._learned.governor
        self.scheduler.use_governor(self.governor)

    def _report_drafts(self) -> None:
        for message in notices.of_drafts(self.loaded.drafts):
            self._outbox.warn(message)
        self._send_snapshot()
        self._outbox.send({"type": "drafters"})

    def _new_slot(self, index: int) -> Slot:
        drafters = {
            name: draft.for_slot() for name, draft in self.loaded.drafts.items() if draft.usable
        }
        return Slot(index, self.loaded.target.new_cache(), drafters)

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
            self._generate(frame["id"], GenerationRequest.from_frame(frame["request"]))
        elif kind == "cancel":
            self._cancel(frame["id"])
        elif kind == "snapshot":
            self._send_snapshot()
        elif kind == "drafters":
            self._pending_changes.append(frame)
        elif kind == "wake":
            pass  # it ended the wait, which was all
        elif kind == "stop":
            self._stopping = True
        elif kind in self._jobs:
            self._pending_jobs.append(frame)
        elif kind in self._questions:
            question = self._questions[kind](frame.get("options") or {})
            self._aside.begin(
                frame["id"],
                lambda: question(self),
                lambda answer: self._answer(frame["id"], answer.result),
            )
        else:
            raise AssertionError(f"unknown frame {kind!r}")

    def _cancel(self, request_id: int) -> None:
        if request_id == self._running_job:
            self._job_cancelled = True
        for frame in [one for one in self._pending_jobs if one["id"] == request_id]:
            self._pending_jobs.remove(frame)
        self._grammars.cancel(request_id)
        self._aside.cancel(request_id)
        self.scheduler.cancel(request_id)

    def _generate(self, request_id: int, request: GenerationRequest) -> None:
        def fail(error: HomespecError) -> None:
            self._outbox.error(request_id, error)
            # Not at once: this is called from inside a turn of the scheduler.
            self._inbox.put({"type": "cancel", "id": request_id})

        reply = Reply(
            request_id,
            request.choices,
            send=self._outbox.send,
            fail=fail,
            report=self._report,
            clock_s=self.clock_s,
        )
        with self._answering(request_id):
            check_tools(request, self.loaded.template)
            if answer_grammar(request, self.loaded.template) is not None and self._grammars.hold(
                request_id, lambda: self._generate(request_id, request)
            ):
                return
            if is_long(request):
                self._aside.begin(
                    request_id,
                    lambda: with_prompt_ids(self.loaded, request),
                    lambda read: self._submit(request_id, read.result, reply),
                )
            else:
                # Once for all choices, here too.
                self._submit(request_id, lambda: with_prompt_ids(self.loaded, request), reply)

    def _submit(self, request_id: int, read: Callable[[], GenerationRequest], reply: Reply) -> None:
        with self._answering(request_id):
            request = read()
            for index in range(request.choices):
                self._submit_choice(request_id, index, request, reply)
            self._replies[request_id] = reply

    def _submit_choice(
        self, request_id: int, index: int, request: GenerationRequest, reply: Reply
    ) -> None:
        notes = logprob_notes(self.loaded, request)
        voice = reply.voice(index, notes, tool_calls(request, self.loaded.template))

        def finish(conversation: Conversation | None, outcome: Outcome) -> None:
            self.totals.ended(conversation, outcome)
            self._lost.of_target(outcome.error)
            voice.end(conversation, outcome)
            if reply.over:
                self._replies.pop(request_id, None)

        self.submit(
            request_id,
            for_choice(request, index),
            emit=voice.say,
            finish=finish,
            conversation_id=request_id if index == 0 else self._own_id(),
            notes=notes,
        )

    def _run_job(self, frame: Frame) -> None:
        self._running_job, self._job_cancelled = frame["id"], False
        job = self._jobs[frame["type"]]
        self._answer(frame["id"], lambda: job(frame.get("options") or {})(self))
        self._running_job = None

    def _answer(self, request_id: int, work: Callable[[], Mapping[str, Any]]) -> None:
        with self._answering(request_id):
            self._outbox.send({"type": "result", "id": request_id, "result": work()})

    @contextmanager
    def _answering(self, request_id: int) -> Iterator[None]:
        """Whatever goes wrong in the block is the request's error, and nobody else's."""
        try:
            yield
        except HomespecError as error:
            self._lost.of_target(error)
            self._outbox.error(request_id, error)
        except Exception:
            logging.getLogger(__name__).exception("request %d failed", request_id)
            self._outbox.error(request_id, ModelError("the request failed inside the worker"))

    def _send_snapshot(self) -> None:
        self._snapshot_at_s = self.clock_s()
        self._told = self.scheduler.idle
        self._outbox.send({"type": "snapshot", "snapshot": self.snapshot()})


def _governed(loaded: Loaded) -> frozenset[object]:
    """What a governor must be made anew for when there is more of it."""
    speculation = loaded.settings.speculation
    return frozenset(
        (name, draft.key, draft.settings.max_draft_tokens, speculation)
        for name, draft in loaded.drafts.items()
        if draft.usable
    )
