"""Stop strings: the same cut however the text is cut into pieces."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from homespecd.decoding.stops import StopStrings
from homespecd.errors import RequestError

_ALPHABET = "ab\n"  # few letters, so that stops overlap themselves and each other
_STOPS = st.lists(st.text(_ALPHABET, min_size=1, max_size=5), max_size=4)
_PIECES = st.lists(st.text(_ALPHABET, max_size=6), max_size=10)


def first_match(text: str, stops: list[str]) -> tuple[int, str | None]:
    """Where to cut, by looking at every beginning of the whole text."""
    for end in range(len(text) + 1):
        ending = [stop for stop in stops if text[:end].endswith(stop)]
        if ending:
            longest = max(ending, key=len)
            return end - len(longest), longest
    return len(text), None


@given(stops=_STOPS, pieces=_PIECES)
def test_output_is_the_text_cut_at_the_first_match(stops: list[str], pieces: list[str]) -> None:
    cut, matched = first_match("".join(pieces), stops)
    stream = StopStrings(stops)
    out = "".join([stream.push(piece) for piece in pieces])
    assert stream.matched == matched
    assert out + stream.finish() == "".join(pieces)[:cut]


@given(stops=_STOPS, pieces=_PIECES)
def test_holds_back_what_can_become_a_match_and_no_more(
    stops: list[str], pieces: list[str]
) -> None:
    """After every push: what is held is the longest end of the text that begins a stop string."""
    stream = StopStrings(stops)
    out = seen = ""
    for piece in pieces:
        out += stream.push(piece)
        seen += piece
        if stream.matched is not None:
            break
        begins = {stop[:n] for stop in stops for n in range(1, len(stop))}
        longest = max((b for b in begins if seen.endswith(b)), key=len, default="")
        assert out == seen[: len(seen) - len(longest)]


def test_a_beginning_is_held_until_it_is_decided() -> None:
    """Case C4: "\\nUs" is delivered at the end of the text, and never before."""
    stream = StopStrings(["\nUser:"])
    assert [stream.push(piece) for piece in ("Hi", "\n", "Us", "e a", "\nUs")] == [
        "Hi",
        "",
        "",
        "\nUse a",
        "",
    ]
    assert stream.finish() == "\nUs"
    assert stream.finish() == ""


def test_nothing_comes_after_a_match() -> None:
    stream = StopStrings(["END"])
    assert stream.push("one ENDtwo") == "one "
    assert stream.matched == "END"
    assert stream.push("three") == ""
    assert stream.finish() == ""


def test_a_match_that_starts_inside_a_piece_and_ends_inside_another() -> None:
    stream = StopStrings(["cdef"])
    assert stream.push("abc") == "ab"
    assert stream.push("defg") == ""
    assert stream.matched == "cdef"


def test_the_earliest_complete_match_wins() -> None:
    """ "bc" is there before "abcd" is; of "abc" and "bc", which end together, the longer one."""
    for stops, out, matched in ((["abcd", "bc"], "a", "bc"), (["bc", "abc"], "", "abc")):
        whole = StopStrings(stops)
        assert (whole.push("abcd"), whole.matched) == (out, matched)
        by_letter = StopStrings(stops)
        assert "".join(by_letter.push(letter) for letter in "abcd") == out
        assert by_letter.matched == matched


def test_no_stops_hold_nothing() -> None:
    stream = StopStrings([])
    assert stream.push("text") == "text"
    assert stream.finish() == ""


def test_an_empty_stop_string_is_refused() -> None:
    with pytest.raises(RequestError, match="empty") as caught:
        StopStrings(["ok", ""])
    assert caught.value.param == "stop"
