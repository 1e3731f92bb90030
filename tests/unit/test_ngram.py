"""Lookup drafting against a search of the whole sequence."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from homespecd.drafters.ngram import NgramDrafter
from homespecd.drafters.protocol import NO_PROPOSAL, Proposal
from tests.fakes import drive

_TOKENS = st.lists(st.integers(0, 2), max_size=30)


def no_draw(logits: np.ndarray, sequence: Sequence[int]) -> tuple[int, None]:
    raise AssertionError(f"a lookup draws nothing, {len(logits)} logits for {len(sequence)} tokens")


def propose(drafter: NgramDrafter, committed: Sequence[int], k: int) -> tuple[int, ...]:
    expected = drafter.expected_length(committed, k)
    proposal = drive(drafter.propose(committed, k, no_draw))
    assert proposal.q is None
    assert len(proposal.tokens) == expected
    return proposal.tokens


@given(first=_TOKENS, more=_TOKENS, known=st.integers(0, 40))
def test_hindsight_is_foresight_for_each_token(
    first: list[int], more: list[int], known: int
) -> None:
    text = [*first, *more]
    foreseen = sum(
        NgramDrafter("n", min_match=2).foresee(text[:end]) == text[end]
        for end in range(len(first), len(text))
    )
    drafter = NgramDrafter("n", min_match=2)
    committed = text[:known]
    propose(drafter, committed, 4)
    committed += text[known:]  # the same sequence, longer

    for sequence in (committed, list(text)):
        assert drafter.hindsight(sequence, len(more)) == foreseen
        assert propose(drafter, sequence, 4) == propose(NgramDrafter("n", min_match=2), text, 4)


def search(
    tokens: Sequence[int], k: int, *, min_match: int, max_match: int
) -> tuple[int, tuple[int, ...]]:
    """(match length, proposal): every earlier place, the longest match, the most recent first."""
    best, source = 0, 0
    for place in range(len(tokens) - 1, 0, -1):
        length = 0
        while length < min(max_match, place) and tokens[place - 1 - length] == tokens[-1 - length]:
            length += 1
        if length >= min_match and length > best:
            best, source = length, place
    sequence = list(tokens)
    for _ in range(k if best else 0):
        sequence.append(sequence[source + len(sequence) - len(tokens)])
    return best, tuple(sequence[len(tokens) :])


@given(
    tokens=_TOKENS,
    k=st.integers(0, 12),
    min_match=st.integers(1, 3),
    more=st.integers(0, 6),
)
def test_proposes_what_followed_the_longest_match(
    tokens: list[int], k: int, min_match: int, more: int
) -> None:
    drafter = NgramDrafter("n", min_match=min_match, max_match=min_match + more)
    expected = search(tokens, k, min_match=min_match, max_match=min_match + more)
    assert propose(drafter, tokens, k) == expected[1]
    assert drafter.match_length == expected[0]


@given(steps=st.lists(st.tuples(_TOKENS, st.integers(0, 30), st.booleans()), max_size=8))
def test_follows_whatever_is_committed(steps: list[tuple[list[int], int, bool]]) -> None:
    """Grown, cut, replaced, with and without being told: as a drafter that sees it for the first
    time."""
    drafter = NgramDrafter("n", min_match=2, max_match=5)
    committed: list[int] = []
    for added, keep, told in steps:
        committed = committed[:keep] + added
        if told:
            drafter.rewind(min(keep, len(committed)))
        fresh = NgramDrafter("n", min_match=2, max_match=5)
        assert propose(drafter, committed, 6) == propose(fresh, committed, 6)
        assert drafter.match_length == fresh.match_length
        assert vars(drafter) == vars(fresh), "taking tokens back undoes the index exactly"


def test_a_rewind_is_seen_in_the_match() -> None:
    drafter = NgramDrafter("n", min_match=2)
    assert propose(drafter, [1, 2, 3, 1, 2], 1) == (3,)
    drafter.rewind(3)
    assert drafter.match_length == 0
    drafter.rewind(99)
    assert propose(drafter, [1, 2, 3, 1, 2], 1) == (3,)


def test_goes_on_past_the_end_of_what_it_copies() -> None:
    """Text that repeats itself with a short period is continued for all of k."""
    assert propose(NgramDrafter("n"), [7, 8, 9, 7, 8, 9], 8) == (7, 8, 9, 7, 8, 9, 7, 8)


def test_prefers_the_longer_match_to_the_more_recent() -> None:
    tokens = [4, 1, 2, 3, 50, 9, 1, 2, 3, 60, 4, 1, 2, 3]
    drafter = NgramDrafter("n")
    assert propose(drafter, tokens, 1) == (50,)
    assert drafter.match_length == 4


def test_prefers_the_most_recent_of_equals() -> None:
    assert propose(NgramDrafter("n"), [1, 2, 3, 50, 1, 2, 3, 60, 1, 2, 3], 1) == (60,)


def test_nothing_to_say() -> None:
    drafter = NgramDrafter("n")
    for committed in ([], [1], [1, 2], [1, 2, 3, 4, 5]):
        assert drafter.expected_length(committed, 4) == 0
        assert drive(drafter.propose(committed, 4, no_draw)) == NO_PROPOSAL
    assert drive(drafter.propose([1, 2, 3, 1, 2, 3], 0, no_draw)) == Proposal(tokens=())
    assert drafter.expected_length([1, 2, 3, 1, 2, 3], -1) == 0


def test_looks_at_a_bounded_number_of_places() -> None:
    """The one long match lies behind more short ones than it may look at."""
    tokens = [8, 1, 2, 3, 50] + [9, 1, 2, 3, 60] * 5 + [8, 1, 2, 3]
    assert propose(NgramDrafter("n", max_places=6), tokens, 1) == (50,)
    assert propose(NgramDrafter("n", max_places=5), tokens, 1) == (60,)


def test_memory_grows_with_the_sequence_and_is_given_back() -> None:
    drafter = NgramDrafter("n")
    empty = drafter.nbytes
    propose(drafter, list(range(5000)), 4)
    assert drafter.nbytes > empty + 5000 * 80
    drafter.rewind(0)
    assert drafter.nbytes < empty + 5000 * 80


def test_senseless_lengths_are_refused() -> None:
    with pytest.raises(ValueError, match="min_match"):
        NgramDrafter("n", min_match=4, max_match=3)
