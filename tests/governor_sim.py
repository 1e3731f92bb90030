"""A simulated machine, target, drafters and texts, for the measuring governor.

Time is simulated, everything is seeded. What is right at a position of a text is drawn once per
text, so that every policy (plain, a fixed k, the governor) decodes the very same answers and their
times can be compared one by one. A governor sees noisy times; policies are compared by the same
times without noise, so that a comparison needs no averaging.
"""

from __future__ import annotations

import math
import random
from bisect import bisect_left
from collections import deque
from collections.abc import Callable, Mapping, Sequence
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

INT4 = {1: 7.25, 2: 8.95, 4: 12.2, 8: 18.6, 16: 31.4, 64: 70.0}
FP32 = {1: 22.6, 2: 24.0, 4: 26.4, 8: 32.2, 16: 38.1, 64: 90.0}
CUDA = {1: 29.0, 2: 100.0, 3: 195.0, 8: 200.0, 64: 260.0}

Pace = Callable[[int, int, int], float]  # request index, position, rows → factor


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


def steady(request: int, position: int, rows: int) -> float:  # noqa: ARG001
    return 1.0


@dataclass(frozen=True)
class Machine:
    """What things cost. `sigma`: log-normal noise of each time; `spikes`: chance of one of ×6."""

    curve: Mapping[int, float]
    sigma: float = 0.03
    spikes: float = 0.0
    cold_steps: int = 3
    per_1000_tokens: float = 0.25  # how much dearer a step is per thousand tokens of context
    overhead_ms: float = 0.15
    row_ms: float = 0.02
    pace: Pace = steady

    def step_ms(self, rows: int, context: int, request: int, position: int) -> float:
        known = sorted(self.curve)
        at = min(max(1, bisect_left(known, rows)), len(known) - 1)
        low, high = known[at - 1], known[at]
        slope = (self.curve[high] - self.curve[low]) / (high - low)
        ms = self.curve[low] + slope * (rows - low)
        return ms * (1 + self.per_1000_tokens * context / 1000) * self.pace(request, position, rows)

    def noise(self, rng: random.Random, step: int) -> float:
        factor = math.exp(rng.gauss(0.0, self.sigma))
        if rng.random() < self.spikes:
            factor *= 6.0
        return factor * (5.0 if step < self.cold_steps else 1.0)


@dataclass(frozen=True)
class Draft:
    """A model as draft: right with a chance by the text's domain, a little less deep in a block."""

    name: str
    chance: Mapping[str, float]
    token_ms: float
    read_row_ms: float = 0.0
    fading: float = 0.98
    max_k: int = 8
    pace: Pace = steady

    def lay(self, rng: random.Random, domains: Sequence[str]) -> Laid:
        return Laid(
            offers=[self.max_k] * len(domains),
            matches=None,
            luck=[rng.random() for _ in domains],
            chance=[self.chance.get(domain, self.chance[""]) for domain in domains],
            fading=self.fading,
        )

    def ms(self, k: int, unread: int) -> float:
        return self.token_ms * k + self.read_row_ms * unread


# Per domain: length of a run in which a copy is right, length of what follows without a match, the
# chance of a chance match there, and the chance that such a match is right.
_COPYING = {
    "copy": ((20, 60), (1, 2), 0.3, 0.2),
    "edit": ((6, 16), (2, 6), 0.3, 0.25),
    "summary": ((2, 9), (4, 14), 0.25, 0.25),
    "chat": ((0, 2), (8, 20), 0.25, 0.2),
}


@dataclass(frozen=True)
class Lookup:
    """An n-gram drafter: has an offer only where the text repeats itself."""

    name: str = "ngram"
    max_k: int = 16
    ms_each: float = 0.05
    matches: bool = True
    pace: Pace = steady

    def lay(self, rng: random.Random, domains: Sequence[str]) -> Laid:
        length = len(domains)
        right, match = [False] * length, [0] * length
        position = 0
        while position < length:
            runs, gaps, chance_match, chance_right = _COPYING[domains[position]]
            domain = domains[position]
            for index in range(rng.randint(*runs)):
                if position < length and domains[position] == domain:
                    right[position], match[position] = True, 2 + index
                    position += 1
            for index in range(rng.randint(*gaps)):
                if position < length and domains[position] == domain:
                    right[position] = rng.random() < chance_right
                    # The first wrong token of a copy is one that the match still vouches for.
                    before = match[position - 1] if position and index == 0 else 0
                    spurious = 2 if rng.random() < chance_match else 0
                    match[position] = before + 1 if before else spurious
                    if index == 0 and before:
                        right[position] = False
                    position += 1
        return Laid(
            offers=[self.max_k if one else 0 for one in match],
            matches=match if self.matches else None,
            luck=[0.5] * length,
            chance=[1.0 if one else 0.0 for one in right],
            fading=1.0,
        )

    def ms(self, k: int, unread: int) -> float:  # noqa: ARG002
        return self.ms_each


@dataclass(frozen=True)
class Laid:
    """A drafter's fate over one text, position by position."""

    offers: Sequence[int]
    matches: Sequence[int] | None
    luck: Sequence[float]
    chance: Sequence[float]
    fading: float

    def accepted(self, position: int, k: int) -> int:
        for index in range(k):
            at = position + index
            if at >= len(self.luck) or self.luck[at] >= self.chance[at] * self.fading**index:
                return index
        return k


class Fate(Protocol):
    """How a drafter fares over a text: what it offers at each position, and what of it is right."""

    @property
    def offers(self) -> Sequence[int]: ...

    @property
    def matches(self) -> Sequence[int] | None: ...

    def accepted(self, position: int, k: int) -> int: ...


@dataclass(frozen=True)
class Answer:
    """One request: what kind of text at each position, and what each drafter makes of it."""

    category: str
    prompt: int
    domains: Sequence[str]
    laid: Mapping[str, Fate]
    beginnings: Sequence[int] = ()

    def offers(self, position: int) -> dict[str, int]:
        """What each drafter could propose there."""
        return {name: laid.offers[position] for name, laid in self.laid.items()}

    def matches(self, position: int) -> dict[str, int]:
        """How well backed that is, of those that can tell."""
        return {
            name: laid.matches[position]
            for name, laid in self.laid.items()
            if laid.matches is not None and laid.offers[position]
        }

    def unread(
        self, position: int, drafters: Sequence[Drafting], read: Mapping[str, int]
    ) -> dict[str, int]:
        """What a draft must read first, of those that have read so much."""
        return {
            one.name: max(0, self.prompt + position - read.get(one.name, 0) - 1)
            for one in drafters
            if isinstance(one, Draft)
        }


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


Drafting = Draft | Lookup


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


def answers(
    drafters: Sequence[Drafting],
    kinds: Sequence[tuple[str, Sequence[tuple[str, int]]]],
    *,
    seed: int,
    prompt: int = 200,
) -> list[Answer]:
    """One answer per kind: a category, and the domains that its text runs through."""
    rng = random.Random(seed)
    made = []
    for category, parts in kinds:
        domains = [domain for domain, length in parts for _ in range(length)]
        laid = {drafter.name: drafter.lay(rng, domains) for drafter in drafters}
        made.append(Answer(category, prompt, domains, laid))
    return made


def fixed_policies(drafters: Sequence[Drafting]) -> list[Fixed]:
    """Plain, and every drafter with every k up to its most."""
    return [Fixed()] + [
        Fixed(drafter.name, k) for drafter in drafters for k in range(1, drafter.max_k + 1)
    ]
