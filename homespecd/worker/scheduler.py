"""Who shares a step: conversations in, one pass over the weights out.

Each active conversation has exactly one piece of work outstanding. A turn runs one step: the
drafts' work first, so that the proposals can be verified together, then the target's for everyone.
All of this happens on the engine's one thread; nothing here blocks but the models.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Generator, Sequence
from dataclasses import dataclass, replace

from homespecd.drafters.protocol import StepResult, Work
from homespecd.errors import HomespecError, ModelError
from homespecd.governor.protocol import Governor
from homespecd.runtime.step import Model, Rows
from homespecd.worker.generate import Conversation, Surroundings
from homespecd.worker.slots import WORTH_COPYING, Slot, pick
from homespecd.worker.waiting import Outcome, Ticket, Waiting

# A conversation that has had so many tokens gives its slot to one that waits, and waits itself; it
# goes on where it was, at the price of reading its text again. So nobody waits longer than this for
# a long answer to end; and no less than half of the text so far keeps the price low.
TURN_TOKENS = 128


@dataclass(eq=False)
class Active:
    """A conversation under way and the one piece of work it waits for.

    began_at: how many tokens its text had when it got its slot.
    """

    ticket: Ticket
    conversation: Conversation
    rounds: Generator[Work, StepResult, str]
    work: Work
    began_at: int

    @property
    def turn_is_over(self) -> bool:
        """It has had its share, for as long as somebody waits."""
        length = len(self.conversation.slot.committed)
        turn = max(TURN_TOKENS, self.began_at // 2)
        return not self.conversation.prefilling and length - self.began_at >= turn


class Scheduler:
    """Owns the slots and the queue.

    Args:
        slots: the places for conversations; no more run at once. Who waits has one in turn.
        drafter_failed: told once per failed proposal, with the drafter's name.
    """

    def __init__(
        self,
        *,
        target: Model,
        slots: Sequence[Slot],
        governor: Governor,
        clock_s: Callable[[], float],
        drafter_failed: Callable[[str, ModelError], None],
    ) -> None:
        self._target = target
        self._slots = tuple(slots)
        self._governor = governor
        self._clock_s = clock_s
        self._waiting = Waiting()
        # In the order in which their work became due: who waited longest is served first.
        self._active: list[Active] = []
        self._drafter_failed = drafter_failed
        self._caught_up_last = False

    @property
    def waiting(self) -> int:
        return len(self._waiting)

    @property
    def active(self) -> int:
        return len(self._active)

    @property
    def working(self) -> dict[int, Model]:
        """Slot index → the model that its conversation waits for."""
        return {one.conversation.slot.index: one.work.model for one in self._active}

    def use_governor(self, governor: Governor) -> None:
        """For requests that begin from now on; the others keep the one they know."""
        self._governor = governor

    @property
    def idle(self) -> bool:
        return not self._active and not self._waiting

    def submit(self, ticket: Ticket) -> None:
        self._waiting.append(ticket)

    def cancel(self, request: int) -> None:
        """Stop all choices of a request. Unknown ids (already ended) are fine."""
        for ticket in [one for one in self._waiting if one.id == request]:
            self._waiting.remove(ticket)
            ticket.finish(None, Outcome())
        for active in [one for one in self._active if one.ticket.id == request]:
            active.rounds.close()
            self._end(active, Outcome())

    def close(self) -> None:
        """Leave everything as it is, before the models go; nobody is told."""
        for active in self._active:
            active.rounds.close()
        self._active.clear()

    def turn(self) -> bool:
        """Admit who fits and run one step; False when there was nothing to do."""
        self._admit()
        if not self._active:
            return False
        model = self._next_model()
        sharing = [one for one in self._active if one.work.model is model][: model.spec.lanes]
        self._caught_up_last = model is not self._target
        self._step(model, sharing)
        return True

    def _next_model(self) -> Model:
        """Proposals in the making go first: their blocks can then be verified in one step.

        A draft that is only catching up with a long prompt holds nobody up: its chunks take turns
        with the target's steps.
        """
        drafting = [one.work for one in self._active if one.work.model is not self._target]
        proposing = [work for work in drafting if work.rows.logits_from < len(work.rows.tokens)]
        if proposing:
            return proposing[0].model
        all_drafting = len(drafting) == len(self._active)
        if drafting and (all_drafting or not self._caught_up_last):
            return drafting[0].model
        return self._target

    def _admit(self) -> None:
        while ready := self._ready():
            taken = {id(active.conversation.slot) for active in self._active}
            free = [slot for slot in self._slots if id(slot) not in taken]
            if not free and not self._make_room():
                return
            if not free:
                continue
            served = (active.ticket.peer for active in self._active)
            ticket = self._waiting.pop(served, among=ready)
            slot = pick(free, ticket.prompt)
            slot.adopt(ticket.prompt, (one for one in self._slots if one is not slot))
            conversation = None
            try:
                conversation = ticket.start(slot)
                rounds = conversation.rounds(self._around(conversation))
                work = next(rounds)
            except HomespecError as error:
                ticket.finish(conversation, Outcome(error=error))
                continue
            except Exception:
                ticket.finish(conversation, _unforeseen(ticket, slot))
                continue
            self._active.append(Active(ticket, conversation, rounds, work, len(ticket.prompt)))

    def _ready(self) -> list[Ticket]:
        """Who may begin: of several choices of one request the first reads the prompt for all."""
        reading = {
            one.ticket.id
            for one in self._active
            if one.conversation.slot.cache.length < len(one.ticket.prompt) - 1
        }
        return [
            one
            for one in self._waiting
            if one.id not in reading or len(one.prompt) <= WORTH_COPYING
        ]

    def _make_room(self) -> bool:
        """Somebody waits and every slot is taken: whose turn has been longest goes to the end."""
        over = [one for one in self._active if one.turn_is_over]
        if not over:
            return False
        longest = max(over, key=lambda one: len(one.conversation.slot.committed) - one.began_at)
        longest.rounds.close()
        self._active.remove(longest)
        conversation, ticket = longest.conversation, longest.ticket
        conversation.slot.used_at_s = self._clock_s()
        self._waiting.append(
            replace(
                ticket,
                prompt=conversation.pause(self._clock_s()),
                start=conversation.resumed,
                finish=lambda _, outcome: ticket.finish(conversation, outcome),
            )
        )
        return True

    def _around(self, conversation: Conversation) -> Surroundings:
        def decoding_others() -> int:
            others = (one.conversation for one in self._active)
            return sum(one is not conversation and not one.prefilling for one in others)

        return Surroundings(
            target=self._target,
            governor=self._governor,
            clock_s=self._clock_s,
            other_rows=lambda: self._rows_due(besides=conversation),
            prefill_rows=lambda: self._governor.prefill_rows(decoding_others()),
            drafter_failed=self._drafter_failed,
        )

    def _rows_due(self, *, besides: Conversation) -> int:
        """Rows others will put into the next target step: what they asked for, else one each."""
        return sum(
            len(one.work.rows.tokens) if one.work.model is self._target else 1
            for one in self._active
            if one.conversation is not besides
        )

    def _step(self, model: Model, sharing: Sequence[Active]) -> None:
        works = [one.work for one in sharing]
        started_s = self._clock_s()
        try:
            logits = model.step([work.rows for work in works])
        except ModelError as error:
            self._isolate(model, sharing, error)
            return
        result = StepResult(
            logits=logits[0],
            ms=(self._clock_s() - started_s) * 1e3,
            total_rows=sum(len(work.rows.tokens) for work in works),
            lanes=len(works),
            proposed_rows=sum(_proposed(work.rows) for work in works),
        )
        for active, own in zip(sharing, logits, strict=True):
            self._advance(active, replace(result, logits=own))

    def _isolate(self, model: Model, sharing: Sequence[Active], error: ModelError) -> None:
        """A shared step failed and changed no cache: let each try alone, so one pays for itself."""
        if len(sharing) == 1:
            self._advance(sharing[0], error)
            return
        for active in sharing:
            self._step(model, [active])

    def _advance(self, active: Active, result: StepResult | ModelError) -> None:
        """Resume a conversation with what it waited for, up to its next piece of work."""
        self._active.remove(active)
        self._active.append(active)
        try:
            if isinstance(result, ModelError):
                active.work = active.rounds.throw(result)
            else:
                active.work = active.rounds.send(result)
        except StopIteration as stop:
            self._end(active, Outcome(finish_reason=stop.value))
        except HomespecError as error:
            self._end(active, Outcome(error=error))
        except Exception:
            self._end(active, _unforeseen(active.ticket, active.conversation.slot))

    def _end(self, active: Active, outcome: Outcome) -> None:
        self._active.remove(active)
        active.conversation.slot.used_at_s = self._clock_s()
        active.ticket.finish(active.conversation, outcome)


def _unforeseen(ticket: Ticket, slot: Slot) -> Outcome:
    """A bug costs the request that met it, and nothing that its slot holds is trusted."""
    logging.getLogger(__name__).exception("request %d failed", ticket.id)
    slot.forget()
    return Outcome(error=ModelError("the request failed inside the worker"))


def _proposed(rows: Rows) -> int:
    """Rows of a proposal: all that need logits, but the one that would be needed anyway."""
    return max(0, len(rows.tokens) - rows.logits_from - 1)
