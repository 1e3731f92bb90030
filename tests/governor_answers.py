"""Simulated drafters and texts, for the measuring governor.

What is right at a position of a text is drawn once per text, so that every policy (plain, a fixed
k, the governor) decodes the very same answers and their times can be compared one by one.
"""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from tests.governor_machine import Pace, steady


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


Drafting = Draft | Lookup


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
