"""From a request to a ticket for the queue: prompt, limits, sampler, and who may draft."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np

from homespecd.bundle.tokenizer import LONG_TEXT
from homespecd.decoding.grammar import Grammar
from homespecd.decoding.sampling import Sampler
from homespecd.decoding.verify import Dice
from homespecd.errors import RequestError
from homespecd.governor.protocol import Reason, SpeculationMode
from homespecd.worker.account import Account
from homespecd.worker.answer import Answer
from homespecd.worker.generate import Conversation
from homespecd.worker.load import Loaded
from homespecd.worker.logprobs import LogprobNotes
from homespecd.worker.messages import GenerationRequest
from homespecd.worker.prepare import prompt_ids
from homespecd.worker.slots import Slot
from homespecd.worker.tools import check_tools
from homespecd.worker.waiting import Outcome, Ticket

Emit = Callable[[str, int], None]
Finish = Callable[[Conversation | None, Outcome], None]


def make_ticket(
    loaded: Loaded,
    request_id: int,
    request: GenerationRequest,
    *,
    emit: Emit,
    finish: Finish,
    clock_s: Callable[[], float],
    grammar: Callable[[], Grammar] | None = None,
    conversation_id: int | None = None,
    notes: LogprobNotes | None = None,
) -> Ticket:
    """Everything about one choice of a request that can be settled before it has a slot.

    Args:
        grammar: what the text must follow, made already, or raises what making it raised.
        request_id: what a cancel names; shared by the choices of a request.
        conversation_id: the conversation's own, where it is not the request's.
        notes: where log-probabilities go, if the request asks for them.

    Raises:
        RequestError: it cannot be answered as asked.
    """
    context = loaded.target.spec.context
    check_tools(request, loaded.template)
    prompt = prompt_ids(
        request, tokenizer=loaded.tokenizer, template=loaded.template, context=context
    )
    _check_drafter(loaded, request)
    constraint = None
    if grammar is not None:
        constraint = grammar().anew(prompt_length=len(prompt))
    sampler = Sampler(
        request.sampling,
        vocab_size=loaded.vocab_size,
        prompt_length=len(prompt),
        min_tokens=request.min_tokens,
        end_ids=loaded.tokenizer.eos_ids,
        constraint=constraint,
    )
    # An answer ends with the context at the latest; it is then cut by length, as by max_tokens.
    room = context - len(prompt)
    max_tokens = room if request.max_tokens is None else min(request.max_tokens, room)
    account = Account(prompt_tokens=len(prompt), submitted_s=clock_s())

    def start(slot: Slot) -> Conversation:
        account.started_s = clock_s()
        return Conversation(
            id=request_id if conversation_id is None else conversation_id,
            slot=slot,
            prompt=prompt,
            sampler=sampler,
            answer=Answer(
                stream=loaded.tokenizer.stream(),
                stop=request.stop,
                end_ids=frozenset() if request.ignore_eos else loaded.tokenizer.eos_ids,
                max_tokens=max_tokens,
            ),
            account=account,
            emit=emit,
            mode=request.speculation,
            drafters=_usable_drafters(loaded, request),
            max_draft_tokens=_draft_bound(loaded, request),
            chance=Dice(np.random.default_rng().random),
            blocked=_blocked(loaded, request),
            logprobs=notes,
            constraint=constraint,
        )

    return Ticket(id=request_id, prompt=prompt, start=start, finish=finish, peer=request.peer)


def with_prompt_ids(loaded: Loaded, request: GenerationRequest) -> GenerationRequest:
    """The request with its prompt as token ids. Raises RequestError as `prompt_ids` does."""
    ids = prompt_ids(
        request,
        tokenizer=loaded.tokenizer,
        template=loaded.template,
        context=loaded.target.spec.context,
    )
    return replace(request, messages=None, prompt=ids)


def is_long(request: GenerationRequest) -> bool:
    """The text of its prompt takes so long to read that others' steps should not wait for it."""
    if isinstance(request.prompt, str):
        return len(request.prompt) >= LONG_TEXT
    said = (*(request.messages or ()), *request.tools)
    return sum(len(str(one)) for one in said) >= LONG_TEXT


def logprob_notes(loaded: Loaded, request: GenerationRequest) -> LogprobNotes | None:
    """Where one choice's log-probabilities are noted; None when the request wants none."""
    if request.logprobs is None:
        return None
    return LogprobNotes(loaded.tokenizer, vocab_size=loaded.vocab_size, top=request.logprobs)


def for_choice(request: GenerationRequest, index: int) -> GenerationRequest:
    """The request as its choice `index` takes it: the first as asked, others with a seed of their
    own that no client can ask for."""
    seed = request.sampling.seed
    if index == 0 or seed is None:
        return request
    return replace(request, sampling=replace(request.sampling, seed=seed + (index << 64)))


def _usable_drafters(loaded: Loaded, request: GenerationRequest) -> tuple[str, ...]:
    return tuple(
        name
        for name, draft in loaded.drafts.items()
        if draft.usable and request.drafter in (None, name)
    )


def _blocked(loaded: Loaded, request: GenerationRequest) -> Reason | None:
    """Why this request cannot be helped at all, whatever the governor would say."""
    if request.speculation is SpeculationMode.OFF:
        return Reason.DISABLED_BY_REQUEST
    if loaded.blocked is not None:
        return loaded.blocked
    if _usable_drafters(loaded, request):
        return None
    problems = [draft.problem for draft in loaded.drafts.values() if draft.problem is not None]
    return problems[0] if problems else Reason.NO_DRAFT


def _draft_bound(loaded: Loaded, request: GenerationRequest) -> int:
    bound = loaded.settings.speculation.max_draft_tokens
    asked = request.max_draft_tokens
    return bound if asked is None else min(bound, asked)


def _check_drafter(loaded: Loaded, request: GenerationRequest) -> None:
    if request.drafter is None or request.drafter in loaded.drafts:
        return
    known = ", ".join(loaded.drafts) or "none"
    raise RequestError(
        f"model {loaded.settings.name!r} has no drafter {request.drafter!r} (it has: {known})",
        param="homespec.drafter",
    )
