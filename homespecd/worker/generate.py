"""The core algorithm: one answer, round by round.

A conversation is a generator. It yields `Work` (rows for the target or a draft model), receives a
`StepResult`, and ends with why it finished. It never runs a model itself, so the scheduler can put
the rows of several conversations into one step, and closing the generator anywhere leaves its slot
right.

Not here: how tokens are drawn (`decoding.sampling`), which proposals stand (`decoding.verify`), how
many to propose (`governor`), who shares a step (`worker.scheduler`).
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Mapping, Sequence
from dataclasses import dataclass, field

from homespecd.decoding.constraint import Constraint
from homespecd.decoding.distant import DistantRow
from homespecd.decoding.sampling import Sampler
from homespecd.decoding.verify import Chance, Verdict, verify_block, verify_replay
from homespecd.drafters.protocol import (
    NO_PROPOSAL,
    Drafter,
    Draw,
    Probabilities,
    Proposal,
    StepResult,
    Work,
)
from homespecd.errors import ModelError
from homespecd.governor.kinds import beginnings
from homespecd.governor.protocol import (
    Choice,
    Governor,
    Reason,
    RoundRecord,
    Situation,
    SpeculationMode,
)
from homespecd.runtime.step import AnyLogits, Logits, Model, Rows, whole
from homespecd.worker.account import Account
from homespecd.worker.answer import Answer
from homespecd.worker.logprobs import LogprobNotes
from homespecd.worker.slots import Slot
from homespecd.worker.views import Prefix


@dataclass(frozen=True)
class Surroundings:
    """What a conversation shares with its neighbours. `other_rows` and `prefill_rows` are asked
    each time: they depend on who else is decoding now."""

    target: Model
    governor: Governor
    clock_s: Callable[[], float]
    other_rows: Callable[[], int]
    prefill_rows: Callable[[], int]
    drafter_failed: Callable[[str, ModelError], None]


@dataclass
class Conversation:
    """One request in its slot. `emit(text, tokens)` takes what a round adds to the answer.

    blocked: a reason that holds for the whole request, whatever the governor would say (its target
    cannot verify blocks, say); None when speculation is possible.
    constraint: what the text must be, None when it may be anything; the sampler has it too.
    logprobs: where log-probabilities are noted, None when nobody asked for them.
    """

    id: int
    slot: Slot
    prompt: Sequence[int]
    sampler: Sampler
    answer: Answer
    account: Account
    emit: Callable[[str, int], None]
    mode: SpeculationMode
    drafters: tuple[str, ...]
    max_draft_tokens: int
    chance: Chance
    blocked: Reason | None = None
    logprobs: LogprobNotes | None = None
    constraint: Constraint | None = None
    prefilling: bool = field(default=True, init=False)
    beginnings: tuple[int, ...] = field(default=(), init=False)

    def __post_init__(self) -> None:
        self.beginnings = beginnings(self.prompt)

    def rounds(self, around: Surroundings) -> Generator[Work, StepResult, str]:
        """Produce the answer; returns its finish reason ("stop" or "length")."""
        slot = self.slot
        reused = slot.begin(self.prompt)
        if self.answer.generated == 0:
            self.account.cached_tokens = reused
        try:
            yield from self._prefill(around)
            self.prefilling = False
            self.account.go_on(around.clock_s())
            while True:
                finish_reason = yield from self._round(around)
                if finish_reason is not None:
                    return finish_reason
        finally:
            slot.settle()

    def pause(self, now_s: float) -> Sequence[int]:
        """Give the slot up between two rounds; returns the text so far, to go on from."""
        self.account.pause(now_s)
        self.prompt = tuple(self.slot.committed)
        return self.prompt

    def resumed(self, slot: Slot) -> Conversation:
        """Go on in another slot, or in the same one after somebody else had it."""
        self.slot, self.prefilling = slot, True
        return self

    def _prefill(self, around: Surroundings) -> Generator[Work, StepResult, None]:
        """All of the prompt but its last chunk, which rides with the first round."""
        slot = self.slot
        while True:
            chunk = around.prefill_rows()
            if len(slot.committed) - slot.cache.length <= chunk:
                return
            start = slot.cache.length
            rows = slot.committed[start : start + chunk]
            yield Work(around.target, Rows(slot.cache, rows, logits_from=len(rows)))

    def _round(self, around: Surroundings) -> Generator[Work, StepResult, str | None]:
        """Choose, propose, step, verify, commit. Commits 1 … k + 1 tokens."""
        slot, clock_s = self.slot, around.clock_s
        started_s = clock_s()
        choice = self._choose(around, started_s)
        guesses = self._guesses() if choice.k == 0 else {}
        drafted = yield from self._propose(choice, around)
        proposal = self._within_grammar(drafted)
        impossible = len(drafted.tokens) - len(proposal.tokens)
        drafted_s = clock_s()

        length, cached = len(slot.committed), slot.cache.length
        result, proposal = yield from self._step(around, proposal)
        verdict = self._verify(result.logits, proposal)

        emitted = (*proposal.tokens[: verdict.accepted], verdict.final)
        kept = self.answer.commit(emitted)
        tokens = emitted[: kept.count]
        slot.commit(tokens, accepted=verdict.accepted)

        if self.logprobs is not None:
            self.logprobs.add(whole(result.logits), tokens, shown=kept.shown)

        covered = self._covered(choice, kept.count)
        ended_s = clock_s()
        record = RoundRecord(
            request=self.id,
            at_s=ended_s,
            choice=choice,
            context=length,
            catch_up=length - 1 - cached,
            rows=length - cached + len(proposal.tokens),
            total_rows=result.total_rows,
            total_proposed=result.proposed_rows,
            lanes=result.lanes,
            proposed=len(proposal.tokens),
            accepted=min(verdict.accepted, kept.count),
            committed=kept.count,
            draft_ms=(drafted_s - started_s) * 1e3 if choice.k else 0.0,
            step_ms=result.ms,
            wall_ms=(ended_s - started_s) * 1e3,
            foreseen={name: guess == verdict.final for name, guess in guesses.items()},
            impossible=impossible,
            covered=covered,
        )
        self.account.add(record)
        around.governor.observe(record)
        self.emit(kept.text, kept.count)
        return kept.finish_reason

    def _step(
        self, around: Surroundings, proposal: Proposal
    ) -> Generator[Work, StepResult, tuple[StepResult, Proposal]]:
        """Logits [k + 1, vocab], row i after committed + proposal[:i], and the proposal they judge.

        A target that fails somewhere in a block may still be good for the next token: it is asked
        once more without the proposal, so that speculation never fails earlier than plain decoding.
        """
        slot = self.slot
        cached = slot.cache.length
        due = slot.committed[cached:]
        try:
            result = yield Work(
                around.target,
                Rows(slot.cache, [*due, *proposal.tokens], len(due) - 1, anywhere=True),
            )
        except ModelError:
            if not proposal.tokens:
                raise
            result = yield Work(around.target, Rows(slot.cache, due, len(due) - 1, anywhere=True))
            return result, NO_PROPOSAL
        return result, proposal

    def _choose(self, around: Surroundings, now_s: float) -> Choice:
        slot, room = self.slot, self.answer.room
        bound = min(room - 1, self.max_draft_tokens)
        mine = self._mine() if self.blocked is None and bound > 0 else {}
        offers = {
            name: drafter.expected_length(slot.committed, bound) for name, drafter in mine.items()
        }
        # The governor hears of plain rounds too: they are what speculation is compared with.
        choice = around.governor.choose(
            now_s,
            Situation(
                request=self.id,
                mode=self.mode,
                context=len(slot.committed),
                catch_up=len(slot.committed) - 1 - slot.cache.length,
                room=room,
                offers=offers,
                other_rows=around.other_rows(),
                matches=self._matches(offers),
                unread={name: slot.drafters[name].unread(slot.committed) for name in offers},
                beginnings=self.beginnings,
            ),
        )
        return choice if self.blocked is None else Choice(None, 0, self.blocked)

    def _mine(self) -> dict[str, Drafter]:
        """The drafters that this request may use and its slot has."""
        here = self.slot.drafters
        return {name: here[name] for name in self.drafters if name in here}

    def _matches(self, offers: Mapping[str, int]) -> dict[str, int]:
        """How well backed each offer is, for drafters that can tell."""
        lengths = {name: self.slot.drafters[name].match_length for name in offers}
        return {name: length for name, length in lengths.items() if length}

    def _guesses(self) -> dict[str, int]:
        """What drafters that cost nothing would have proposed first in a plain round."""
        if self.blocked is not None or self.mode is SpeculationMode.OFF:
            return {}
        committed = self.slot.committed
        guesses = {name: drafter.foresee(committed) for name, drafter in self._mine().items()}
        return {name: token for name, token in guesses.items() if token is not None}

    def _covered(self, choice: Choice, count: int) -> int:
        """How many of the tokens of a block another drafter would have foreseen."""
        if choice.k == 0:
            return 0
        committed = self.slot.committed
        others = (drafter for name, drafter in self._mine().items() if name != choice.drafter)
        return max((drafter.hindsight(committed, count) for drafter in others), default=0)

    def _propose(
        self, choice: Choice, around: Surroundings
    ) -> Generator[Work, StepResult, Proposal]:
        """The drafter's proposal. A drafter that fails is given up; the text does not notice."""
        if choice.drafter is None or choice.k == 0:
            return NO_PROPOSAL
        drafter = self.slot.drafters[choice.drafter]
        try:
            proposal = yield from drafter.propose(self.slot.committed, choice.k, self._draw_draft)
        except ModelError as error:
            around.drafter_failed(choice.drafter, error)
            self.drafters = tuple(name for name in self.drafters if name != choice.drafter)
            if not self.drafters:
                self.blocked = Reason.DRAFT_FAILED
            return NO_PROPOSAL
        assert len(proposal.tokens) <= choice.k
        return proposal

    def _within_grammar(self, proposal: Proposal) -> Proposal:
        """The proposal up to the first token that cannot come: what follows it is rows for nothing.

        A draft that says from what it drew has drawn under the same constraint, and cutting what it
        drew would change the odds of what is left.
        """
        if self.constraint is None or proposal.q is not None or not proposal.tokens:
            return proposal
        possible = self.constraint.possible_run(self.slot.committed, proposal.tokens)
        return Proposal(proposal.tokens[:possible])

    @property
    def _draw_draft(self) -> Draw:
        """How a draft model's token is drawn: as the target's would be, so that they agree often.

        Where the target's own draw is fixed beforehand (greedy, or noise from a seed), the draft
        makes the same draw from its own logits; otherwise it samples, and says from what.
        """
        sampler = self.sampler

        def replayed(logits: Logits | DistantRow, sequence: Sequence[int]) -> tuple[int, None]:
            return sampler.draw(logits, sequence), None

        def sampled(
            logits: Logits | DistantRow, sequence: Sequence[int]
        ) -> tuple[int, Probabilities]:
            q = sampler.probabilities(logits, sequence)
            return self.chance.pick(q), q

        return replayed if sampler.params.replayable else sampled

    def _verify(self, logits: AnyLogits, proposal: Proposal) -> Verdict:
        """logits: [k + 1, vocab]."""
        sequence = [*self.slot.committed, *proposal.tokens]
        length = len(self.slot.committed)

        def before(i: int) -> Prefix:
            return Prefix(sequence, length + i)

        if self.sampler.params.replayable:
            return verify_replay(lambda i: self.sampler.draw(logits[i], before(i)), proposal.tokens)
        return verify_block(
            lambda i: self.sampler.probabilities(logits[i], before(i)),
            proposal.tokens,
            proposal.q,
            self.chance,
        )
