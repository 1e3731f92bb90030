"""A scheduler over any model, for tests of rounds: no process, no socket, no tokenizer.

Token ids spell themselves: id 3 is the text "d", so that stop strings and texts are easy to write.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from homespecd.decoding.constraint import Constraint
from homespecd.decoding.params import SamplingParams
from homespecd.decoding.sampling import Sampler
from homespecd.decoding.verify import Dice
from homespecd.drafters.protocol import Drafter
from homespecd.errors import HomespecError, ModelError
from homespecd.governor.fixed import FixedGovernor
from homespecd.governor.protocol import Governor, Reason, SpeculationMode
from homespecd.runtime.step import Model
from homespecd.worker.account import Account
from homespecd.worker.answer import Answer
from homespecd.worker.generate import Conversation
from homespecd.worker.logprobs import LogprobNotes
from homespecd.worker.scheduler import Scheduler
from homespecd.worker.slots import Slot
from homespecd.worker.waiting import Outcome, Ticket
from tests.fakes import FakeCache, FakeClock

GREEDY = SamplingParams(temperature=0.0)


def spell(tokens: Sequence[int]) -> str:
    return "".join(chr(ord("a") + token) for token in tokens)


class SpellingStream:
    """Each id is one letter."""

    def push(self, token: int) -> str:
        return spell([token])

    def finish(self) -> str:
        return ""


@dataclass
class Result:
    """What came of one request."""

    deltas: list[str] = field(default_factory=list)
    tokens: tuple[int, ...] = ()
    finish_reason: str | None = None
    error: HomespecError | None = None
    account: Account | None = None
    ended: bool = False

    @property
    def text(self) -> str:
        return "".join(self.deltas)


class Table:
    """Slots, a scheduler and a way to ask.

    Args:
        drafters: name → makes one slot's drafter.
        governor: by default a fixed k for every drafter.
    """

    def __init__(
        self,
        target: Model,
        *,
        drafters: Mapping[str, Callable[[], Drafter]] | None = None,
        k: int = 4,
        slots: int = 2,
        governor: Governor | None = None,
    ) -> None:
        self.target = target
        self.clock = FakeClock()
        self.failed_drafters: list[tuple[str, ModelError]] = []
        makers = dict(drafters or {})
        self.drafter_names = tuple(makers)
        self.governor = governor or FixedGovernor(dict.fromkeys(makers, k))
        self.slots = tuple(
            Slot(i, target.new_cache(), {name: make() for name, make in makers.items()})
            for i in range(slots)
        )
        self.scheduler = Scheduler(
            target=target,
            slots=self.slots,
            governor=self.governor,
            clock_s=self.clock,
            drafter_failed=lambda name, error: self.failed_drafters.append((name, error)),
        )
        self._ids = iter(range(1, 1_000_000))

    def submit(
        self,
        prompt: Sequence[int],
        *,
        sampling: SamplingParams = GREEDY,
        max_tokens: int = 32,
        stop: Sequence[str] = (),
        end_ids: Sequence[int] = (),
        mode: SpeculationMode = SpeculationMode.AUTO,
        vocab_size: int | None = None,
        max_draft_tokens: int = 16,
        blocked: Reason | None = None,
        dice: Callable[[], float] | None = None,
        constraint: Constraint | None = None,
        logprobs: LogprobNotes | None = None,
    ) -> tuple[int, Result]:
        request, result = next(self._ids), Result()
        room = self.target.spec.context - len(prompt)

        def start(slot: Slot) -> Conversation:
            return Conversation(
                id=request,
                slot=slot,
                prompt=prompt,
                sampler=Sampler(
                    sampling,
                    vocab_size=vocab_size or self.target.spec.vocab_size,
                    prompt_length=len(prompt),
                    constraint=constraint,
                ),
                answer=Answer(
                    stream=SpellingStream(),
                    stop=stop,
                    end_ids=frozenset(end_ids),
                    max_tokens=min(max_tokens, room),
                ),
                account=Account(prompt_tokens=len(prompt), submitted_s=self.clock()),
                emit=lambda text, _tokens: result.deltas.append(text),
                mode=mode,
                drafters=self.drafter_names,
                max_draft_tokens=max_draft_tokens,
                chance=Dice(dice or np.random.default_rng(request).random),
                blocked=blocked,
                logprobs=logprobs,
                constraint=constraint,
            )

        def finish(conversation: Conversation | None, outcome: Outcome) -> None:
            result.ended = True
            result.finish_reason, result.error = outcome.finish_reason, outcome.error
            if conversation is not None:
                result.account = conversation.account
                result.tokens = tuple(conversation.slot.committed[len(prompt) :])

        self.scheduler.submit(Ticket(id=request, prompt=prompt, start=start, finish=finish))
        return request, result

    def run(self) -> None:
        """Turn until nothing is left, checking the slots' invariant after every turn."""
        while not self.scheduler.idle:
            self.scheduler.turn()
        self.check_slots()

    def ask(self, prompt: Sequence[int], **options: object) -> Result:
        """One request, alone."""
        _, result = self.submit(prompt, **options)  # type: ignore[arg-type]
        self.run()
        return result

    def check_slots(self) -> None:
        """Idle slots: every cache holds a prefix of what was committed."""
        for slot in self.slots:
            assert slot.cache.length <= max(0, len(slot.committed) - 1)
            if isinstance(slot.cache, FakeCache):
                assert slot.cache.tokens == slot.committed[: slot.cache.length]
