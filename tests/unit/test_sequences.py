"""The common prefix, whatever kind of sequence it is asked of."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from homespecd.decoding.sequences import common_prefix

_TOKENS = st.lists(st.integers(0, 1), max_size=12)


@given(held=_TOKENS, tokens=_TOKENS)
def test_common_prefix(held: list[int], tokens: list[int]) -> None:
    expected = 0
    while expected < min(len(held), len(tokens)) and held[expected] == tokens[expected]:
        expected += 1
    assert common_prefix(held, tokens) == expected
    assert common_prefix(held, tuple(tokens)) == expected
