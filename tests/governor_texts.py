"""Real answers for the simulated machine: what a lookup and a draft model made of each position.

`data/decoded_texts.json` holds, for SmolLM2 at int4 and at fp32, the token ids of the shipped
prompts and of 128 greedy tokens of their answers, and where the same model at the other precision
would have said the same. So drafters fare as they really do, and only the time is simulated.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from homespecd.drafters.ngram import NgramDrafter
from homespecd.governor.kinds import beginnings
from tests.fakes import drive
from tests.governor_answers import Answer, Draft, Drafting

_FILE = Path(__file__).parent / "data" / "decoded_texts.json"
CATEGORIES = ("chat", "summary", "question", "code edit", "translation", "list copy")
NEVER = "never"  # the name of a draft that is wrong at every position

# Milliseconds of a step of the int4 model by rows, on the machine that the texts are from.
INT4_EXACT = {1: 9.6, 2: 11.4, 3: 13.0, 4: 14.6, 6: 17.6, 8: 20.9, 12: 27.6, 16: 34.0, 64: 95.0}


@dataclass(frozen=True)
class Known:
    """A drafter's fate, position by position: right[i] = how many of its tokens would stand."""

    offers: Sequence[int]
    matches: Sequence[int] | None
    right: Sequence[int]

    def accepted(self, position: int, k: int) -> int:
        return min(k, self.right[position])


def real_answers(precision: str, drafters: Sequence[Drafting], tokens: int) -> list[Answer]:
    """One answer per category, cut after so many tokens."""
    return [
        Answer(
            category,
            prompt=len(_texts()[precision][category].prompt),
            domains=[category] * tokens,
            laid={one.name: _fate(precision, category, one, tokens) for one in drafters},
            beginnings=beginnings(_texts()[precision][category].prompt),
        )
        for category in CATEGORIES
    ]


@dataclass(frozen=True)
class Text:
    """Token ids of a prompt and its answer; where the other precision would say the same."""

    prompt: Sequence[int]
    answer: Sequence[int]
    agreed: Sequence[bool]


@cache
def _texts() -> dict[str, dict[str, Text]]:
    return {
        precision: {
            category: Text(one["prompt"], one["answer"], [bit == "1" for bit in one["draft"]])
            for category, one in texts.items()
        }
        for precision, texts in json.loads(_FILE.read_text("utf-8")).items()
    }


def real_texts(precision: str) -> list[Text]:
    """One for each category."""
    return [_texts()[precision][category] for category in CATEGORIES]


def _fate(precision: str, category: str, drafter: Drafting, tokens: int) -> Known:
    if not isinstance(drafter, Draft):
        return _lookup(precision, category, tokens, drafter.max_k)
    text = _texts()[precision][category]
    right, run = [0] * tokens, 0
    for position in reversed(range(tokens)):
        agrees = text.agreed[position] and drafter.name != NEVER
        run = run + 1 if agrees else 0
        right[position] = run
    return Known([drafter.max_k] * tokens, None, right)


@cache
def _lookup(precision: str, category: str, tokens: int, max_k: int) -> Known:
    text = _texts()[precision][category]
    prompt, answer = text.prompt, text.answer[:tokens]
    lookup = NgramDrafter("ngram")
    offers, matches, right = [], [], []
    for position in range(len(answer)):
        committed = [*prompt, *answer[:position]]
        offers.append(lookup.expected_length(committed, max_k))
        matches.append(lookup.match_length)
        proposed = drive(lookup.propose(committed, max_k, _no_draw)).tokens
        stands = 0
        for token, own in zip(proposed, answer[position:], strict=False):
            if token != own:
                break
            stands += 1
        right.append(stands)
    return Known(offers, matches, right)


def _no_draw(logits: object, sequence: object) -> tuple[int, None]:
    raise AssertionError(f"a lookup draws nothing: {logits}, {sequence}")
