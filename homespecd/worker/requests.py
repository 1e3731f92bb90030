"""Requests on their way into the queue: each is checked, waits beside the engine's steps for what
takes long (a grammar's tables, a long text), and becomes a ticket for each of its choices.

From the ticket on the scheduler has them; a reply gathers what their conversations say.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from typing import Any

from homespecd.decoding.constraint import GrammarSpec
from homespecd.decoding.grammar import Grammar
from homespecd.errors import HomespecError, ModelError
from homespecd.worker.aside import Aside, Once
from homespecd.worker.generate import Conversation
from homespecd.worker.grammars import begun, grammar_vocabulary
from homespecd.worker.intake import (
    Emit,
    Finish,
    for_choice,
    is_long,
    logprob_notes,
    make_ticket,
    with_prompt_ids,
)
from homespecd.worker.logprobs import LogprobNotes
from homespecd.worker.messages import Frame, GenerationRequest
from homespecd.worker.outbox import Outbox
from homespecd.worker.replies import Reply
from homespecd.worker.serving import Serving
from homespecd.worker.tools import answer_grammar, check_tools, tool_calls
from homespecd.worker.waiting import Outcome


class Requests:
    """Everyone who waits for an answer of this worker. All methods are the engine's thread's.

    Args:
        post: puts a frame into the engine's own inbox, from any thread.
    """

    def __init__(self, serving: Serving, *, outbox: Outbox, post: Callable[[Frame], None]) -> None:
        self._serving = serving
        self._outbox = outbox
        self._post = post
        self._replies: dict[int, Reply] = {}
        self._next_own_id = -1
        loaded = serving.loaded
        self._tables = Once(
            lambda: grammar_vocabulary(loaded.tokenizer, vocab_size=loaded.vocab_size)
        )

        def wake() -> None:
            post({"type": "wake"})

        # A thread for grammars alone: no text waits the third of a second that their tables take,
        # or the seconds of one that is made to be difficult.
        self._for_grammars = Aside("grammars", wake=wake)
        self._aside = Aside("aside", wake=wake)

    def generate(self, request_id: int, request: GenerationRequest) -> None:
        """Answer a request, choice by choice."""

        def fail(error: HomespecError) -> None:
            self._outbox.error(request_id, error)
            # Not at once: this is called from inside a turn of the scheduler.
            self._post({"type": "cancel", "id": request_id})

        reply = Reply(
            request_id,
            request.choices,
            send=self._outbox.send,
            fail=fail,
            report=self._serving.report,
            clock_s=self._serving.clock_s,
        )
        with self.answering(request_id):
            template = self._serving.loaded.template
            check_tools(request, template)
            spec = answer_grammar(request, template)
            if spec is None:
                self._read(request_id, request, reply, None)
            else:
                # A grammar that could not be made is missed when it is used, after all else.
                self._for_grammars.begin(
                    request_id,
                    lambda: self._begun(spec),
                    lambda made: self._read(request_id, request, reply, made.result),
                )

    def ask(self, request_id: int, question: Callable[[], Mapping[str, Any]]) -> None:
        """Answer what takes no step of a model, whatever else runs."""
        self._aside.begin(
            request_id, question, lambda answer: self.answer(request_id, answer.result)
        )

    def answer(self, request_id: int, work: Callable[[], Mapping[str, Any]]) -> None:
        """Do `work` now; what it returns is the request's result."""
        with self.answering(request_id):
            self._outbox.send({"type": "result", "id": request_id, "result": work()})

    def start(self, request: GenerationRequest, *, emit: Emit, finish: Finish) -> int:
        """Queue a request of the engine's own (a job's); returns its id, which is negative.

        Raises:
            RequestError: the request cannot be answered as asked.
        """
        own_id, spec = self._own_id(), answer_grammar(request, self._serving.loaded.template)
        grammar = None if spec is None else partial(self._begun, spec)
        self._queue(own_id, request, emit=emit, finish=finish, grammar=grammar)
        return own_id

    def cancel(self, request_id: int) -> None:
        """Nobody waits for it any more. Unknown ids (already ended) are fine."""
        self._for_grammars.cancel(request_id)
        self._aside.cancel(request_id)
        self._serving.scheduler.cancel(request_id)

    def release(self) -> None:
        """Go on with requests that have waited beside the steps."""
        self._for_grammars.release()
        self._aside.release()

    def flush_if_due(self) -> None:
        """Send what was said a while ago."""
        for reply in self._replies.values():
            reply.flush_if_due()

    @contextmanager
    def answering(self, request_id: int) -> Iterator[None]:
        """Whatever goes wrong in the block is the request's error, and nobody else's."""
        try:
            yield
        except HomespecError as error:
            self._serving.lost.of_target(error)
            self._outbox.error(request_id, error)
        except Exception:
            logging.getLogger(__name__).exception("request %d failed", request_id)
            self._outbox.error(request_id, ModelError("the request failed inside the worker"))

    def _begun(self, spec: GrammarSpec) -> Grammar:
        return begun(self._tables(), spec)

    def _read(
        self,
        request_id: int,
        request: GenerationRequest,
        reply: Reply,
        grammar: Callable[[], Grammar] | None,
    ) -> None:
        """Its text to ids, once for all choices."""
        loaded = self._serving.loaded

        def read() -> GenerationRequest:
            return with_prompt_ids(loaded, request)

        def queue(read: Callable[[], GenerationRequest]) -> None:
            with self.answering(request_id):
                request = read()
                for index in range(request.choices):
                    self._queue_choice(request_id, index, request, reply, grammar)
                self._replies[request_id] = reply

        if is_long(request):
            self._aside.begin(request_id, read, lambda done: queue(done.result))
        else:
            queue(read)

    def _queue_choice(
        self,
        request_id: int,
        index: int,
        request: GenerationRequest,
        reply: Reply,
        grammar: Callable[[], Grammar] | None,
    ) -> None:
        loaded = self._serving.loaded
        notes = logprob_notes(loaded, request)
        voice = reply.voice(index, notes, tool_calls(request, loaded.template))

        def finish(conversation: Conversation | None, outcome: Outcome) -> None:
            self._serving.totals.ended(conversation, outcome)
            self._serving.lost.of_target(outcome.error)
            voice.end(conversation, outcome)
            if reply.over:
                self._replies.pop(request_id, None)

        self._queue(
            request_id,
            for_choice(request, index),
            emit=voice.say,
            finish=finish,
            conversation_id=request_id if index == 0 else self._own_id(),
            notes=notes,
            grammar=grammar,
        )

    def _queue(
        self,
        request_id: int,
        request: GenerationRequest,
        *,
        emit: Emit,
        finish: Finish,
        conversation_id: int | None = None,
        notes: LogprobNotes | None = None,
        grammar: Callable[[], Grammar] | None = None,
    ) -> None:
        serving = self._serving
        serving.memory.mark(serving.clock_s())
        ticket = make_ticket(
            serving.loaded,
            request_id,
            request,
            emit=emit,
            finish=finish,
            clock_s=serving.clock_s,
            grammar=grammar,
            conversation_id=conversation_id,
            notes=notes,
        )
        serving.scheduler.submit(ticket)

    def _own_id(self) -> int:
        self._next_own_id -= 1
        return self._next_own_id
