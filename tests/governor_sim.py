"""Answers decoded on a simulated machine, by the measuring governor or by a fixed rule.

Time is simulated, everything is seeded. A governor sees noisy times; policies are compared by the
same times without noise, so that a comparison needs no averaging.
"""

from __future__ import annotations

import random
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Protocol

from homespecd.governor.protocol import (
    Choice,
    Reason,
    RoundRecord,
    Situation,
    SpeculationMode,
)
from tests.governor_answers import Answer, Drafting, Lookup
from tests.governor_machine import Machine


class Decider(Protocol):
    def choose(self, now_s: float, situation: Situation) -> Choice: ...

    def observe(self, record: RoundRecord) -> None: ...


@dataclass(frozen=True)
class Fixed:
    """Always the same drafter and k; k = 0 is plain."""

    drafter: str = ""
    k: int = 0

    def choose(self, now_s: float, situation: Situation) -> Choice:  # noqa: ARG002
        k = min(self.k, situation.offers.get(self.drafter, 0), situation.room - 1)
        if k <= 0:
            return Choice(None, 0, Reason.DISABLED_BY_REQUEST)
        return Choice(self.drafter, k, Reason.SPECULATING)

    def observe(self, record: RoundRecord) -> None:
        pass


def fixed_policies(drafters: Sequence[Drafting]) -> list[Fixed]:
    """Plain, and every drafter with every k up to its most."""
    return [Fixed()] + [
        Fixed(drafter.name, k) for drafter in drafters for k in range(1, drafter.max_k + 1)
    ]


@dataclass
class Outcome:
    """What a policy took. `true_ms` is without noise; per category, and per answer in order."""

    true_ms: float = 0.0
    categories: dict[str, float] = field(default_factory=dict)
    answers: list[float] = field(default_factory=list)
    tokens: int = 0
    rounds: int = 0
    speculative_rounds: int = 0
    seen_ms: float = 0.0
    # What looks cost: a try of a drafter, over plain rounds for the same tokens; a plain sample,
    # over what a token of that answer has cost of late.
    probe_ms: float = 0.0
    modes: list[str] = field(default_factory=list)
    choices: list[Choice] = field(default_factory=list)
    proposed: int = 0
    accepted: int = 0
    last_s: float = 0.0

    @property
    def switches(self) -> int:
        """How often the mode after an answer is another than after the one before."""
        return sum(before != after for before, after in pairwise(self.modes))


class _OfLate:
    """What a token of an answer has cost in its last rounds that were no looks."""

    def __init__(self) -> None:
        self._rounds: deque[tuple[float, int]] = deque(maxlen=16)

    def see(self, ms: float, tokens: int) -> None:
        self._rounds.append((ms, tokens))

    def token_ms(self, plain_ms: float) -> float:
        """At most a plain round, and that until something is known."""
        ms, tokens = (
            (sum(one) for one in zip(*self._rounds, strict=True)) if self._rounds else (0, 0)
        )
        return min(ms / tokens, plain_ms) if tokens else plain_ms


@dataclass(frozen=True)
class World:
    """A machine, drafters and the answers to produce."""

    machine: Machine
    drafters: Sequence[Drafting]
    answers: Sequence[Answer]
    foreseen: bool = True
    room: int = 0  # tokens that may come, where answers end before; 0 = they are that long

    def run(
        self,
        decider: Decider,
        *,
        seed: int = 1,
        mode: SpeculationMode = SpeculationMode.AUTO,
        start_s: float = 0.0,
        first_id: int = 0,
    ) -> Outcome:
        """Decode every answer, one after the other; requests are numbered from `first_id` on."""
        rng = random.Random(seed)
        outcome, now_s, step = Outcome(), start_s, 0
        for index in range(len(self.answers)):
            answer = self.answers[index]
            position, total = 0, len(answer.domains)
            read = {drafter.name: 0 for drafter in self.drafters}
            began_ms, of_late = outcome.true_ms, _OfLate()
            while position < total:
                situation = self._situation(answer, index, position, mode, first_id, read)
                choice = decider.choose(now_s, situation)
                record, true_ms = self._round(
                    answer, index, position, choice, situation, read, rng, step, now_s
                )
                step += 1
                now_s = record.at_s
                position += record.committed
                outcome.choices.append(choice)
                outcome.rounds += 1
                outcome.tokens += record.committed
                outcome.speculative_rounds += record.proposed > 0
                outcome.proposed += record.proposed
                outcome.accepted += record.accepted
                if record.catch_up:
                    # Reading the prompt is the same for all; a draft that reads it too is not.
                    outcome.true_ms += record.draft_ms
                else:
                    outcome.true_ms += true_ms
                    outcome.seen_ms += record.wall_ms
                    if choice.reason is Reason.PROBING:
                        machine = self.machine
                        plain_ms = machine.step_ms(1, situation.context, index, position)
                        plain_ms += machine.overhead_ms
                        instead_ms = plain_ms if choice.k else of_late.token_ms(plain_ms)
                        lost_ms = record.wall_ms - record.committed * instead_ms
                        outcome.probe_ms += max(0.0, lost_ms)
                    else:
                        of_late.see(record.wall_ms, record.committed)
                decider.observe(record)
            spent = outcome.true_ms - began_ms
            outcome.answers.append(spent)
            category = outcome.categories.get(answer.category, 0.0)
            outcome.categories[answer.category] = category + spent
            standing = getattr(decider, "standing", None)
            if standing is not None:
                outcome.modes.append(standing().mode)
            now_s += 0.5
        outcome.last_s = now_s
        return outcome

    def _situation(
        self,
        answer: Answer,
        index: int,
        position: int,
        mode: SpeculationMode,
        first_id: int,
        read: Mapping[str, int],
    ) -> Situation:
        return Situation(
            request=first_id + index,
            mode=mode,
            context=answer.prompt + position,
            catch_up=63 if position == 0 else 0,
            room=(self.room or len(answer.domains)) - position,
            offers=answer.offers(position),
            matches=answer.matches(position),
            unread=answer.unread(position, self.drafters, read),
            beginnings=answer.beginnings,
        )

    def _round(
        self,
        answer: Answer,
        index: int,
        position: int,
        choice: Choice,
        situation: Situation,
        read: dict[str, int],
        rng: random.Random,
        step: int,
        now_s: float,
    ) -> tuple[RoundRecord, float]:
        machine, context = self.machine, situation.context
        proposed = accepted = 0
        draft_ms = 0.0
        if choice.drafter is not None:
            drafter = next(one for one in self.drafters if one.name == choice.drafter)
            proposed = choice.k
            accepted = answer.laid[choice.drafter].accepted(position, choice.k)
            unread = max(0, context - read[choice.drafter] - 1)
            draft_ms = drafter.ms(choice.k, unread) * drafter.pace(index, position, 1)
            read[choice.drafter] = context + accepted
        rows = 1 + proposed + situation.catch_up
        step_ms = machine.step_ms(rows, context, index, position)
        rest_ms = machine.overhead_ms + machine.row_ms * proposed
        seen_draft_ms = draft_ms * machine.noise(rng, 99)
        seen_step_ms = step_ms * machine.noise(rng, step)
        wall_ms = seen_draft_ms + seen_step_ms + rest_ms
        foreseen = {
            drafter.name: answer.laid[drafter.name].accepted(position, 1) == 1
            for drafter in self.drafters
            if isinstance(drafter, Lookup) and situation.offers[drafter.name]
        }
        record = RoundRecord(
            request=situation.request,
            at_s=now_s + wall_ms / 1e3,
            choice=choice,
            context=context,
            catch_up=situation.catch_up,
            rows=rows,
            total_rows=rows,
            lanes=1,
            proposed=proposed,
            accepted=accepted,
            committed=min(accepted + 1, len(answer.domains) - position),
            draft_ms=seen_draft_ms,
            step_ms=seen_step_ms,
            wall_ms=wall_ms,
            foreseen=foreseen if self.foreseen and not proposed else {},
            covered=self._covered(answer, position, choice, accepted + 1) if proposed else 0,
        )
        return record, draft_ms + step_ms + rest_ms

    def _covered(self, answer: Answer, position: int, choice: Choice, tokens: int) -> int:
        """Of the tokens of a block, those that a lookup would have foreseen."""
        ends = min(position + tokens, len(answer.domains))
        return max(
            (
                sum(
                    answer.laid[one.name].accepted(at, 1) == 1
                    and answer.laid[one.name].offers[at] > 0
                    for at in range(position, ends)
                )
                for one in self.drafters
                if isinstance(one, Lookup) and one.name != choice.drafter
            ),
            default=0,
        )
