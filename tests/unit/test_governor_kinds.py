"""Requests that begin alike, and what is remembered of them."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from homespecd.governor.fare import Ended, Fare
from homespecd.governor.kinds import Kinds, beginnings
from homespecd.governor.pair import DrafterSpec, Pair

SYSTEM = list(range(100, 116))
PROMPTS = st.lists(st.integers(0, 1 << 40), max_size=80)


def prompt(instructions: int, text: int) -> list[int]:
    return [*SYSTEM, *[instructions] * 16, *[text] * 40]


@dataclass
class Noted:
    """What was told of a kind."""

    seen: list[str]

    def child(self) -> Noted:
        return Noted([])

    def to_record(self) -> list[Any]:
        return self.seen


def noted() -> Kinds[Noted]:
    return Kinds(Noted([]))


def tell(kinds: Kinds[Noted], tokens: list[int], what: str) -> None:
    for one in kinds.passed(beginnings(tokens)):
        one.seen.append(what)


@given(PROMPTS, PROMPTS)
def test_who_shares_tokens_shares_beginnings(first: list[int], more: list[int]) -> None:
    short, long = beginnings(first), beginnings([*first, *more])

    assert long[: len(short)] == short
    assert len(set(long)) == len(long)
    assert all(0 <= one < 1 << 24 for one in long)  # no text can be told from so little


def test_hashes_are_the_same_in_every_process() -> None:
    assert beginnings(range(70)) == (16196368, 1317664, 7089984)


def test_the_longest_beginning_that_is_known_counts() -> None:
    kinds = noted()
    tell(kinds, prompt(1, 1), "a")
    tell(kinds, prompt(1, 2), "b")
    tell(kinds, prompt(2, 3), "c")

    assert kinds.nearest(beginnings(prompt(1, 1))).seen == ["a"]  # all of it was there before
    assert kinds.nearest(beginnings(prompt(1, 9))).seen == ["a", "b"]  # the instructions
    assert kinds.nearest(beginnings(prompt(9, 9))).seen == ["a", "b", "c"]  # the system prompt
    assert kinds.nearest(beginnings([7] * 40)).seen == ["a", "b", "c"]
    assert kinds.nearest(()).seen == ["a", "b", "c"]


def test_texts_that_come_once_do_not_push_out_an_app() -> None:
    kinds = noted()
    for once in range(2000):
        tell(kinds, [once] * 70, "once")
        if once % 50 == 0:
            tell(kinds, prompt(1, 1), "app")

    assert kinds.nearest(beginnings(prompt(1, 2))).seen == ["app"] * 40
    assert len(kinds.each()) <= 257


def test_a_record_restores_all_of_it() -> None:
    kinds = noted()
    tell(kinds, prompt(1, 1), "a")
    tell(kinds, prompt(2, 2), "b")
    record = json.loads(json.dumps(kinds.to_record()))

    again = noted()
    again.restore(record, Noted)

    assert again.to_record() == kinds.to_record()
    assert again.nearest(beginnings(prompt(2, 5))).seen == ["b"]


def ended(**changes: Any) -> Ended:
    shown = {"own": None, "compared": 0, "left": 1.0, "tokens": 1000}
    return Ended(**({"gained": None, "saved": None, "since": 100} | shown | changes))


def test_a_kind_starts_as_the_one_it_is_part_of_and_goes_its_own_way() -> None:
    pair = Pair(DrafterSpec("draft", 8), 1.0, None)
    copied, prose = beginnings(prompt(1, 1)), beginnings(prompt(2, 2))
    for _ in range(20):
        pair.retire(copied, ended(own=2.0, compared=500, left=0.2, gained=9.0, saved=40.0))
        pair.retire(prose, ended(own=-2.0, compared=500, left=1.0, gained=-0.5))

    good, bad = pair.fare(copied), pair.fare(prose)
    unknown = pair.fare(())

    assert good.mean - bad.mean > 3.0
    assert bad.mean < unknown.mean < good.mean
    assert good.left < 0.3 < 0.5 < unknown.left < bad.left
    assert good.trust.first_stake > unknown.trust.first_stake > bad.trust.first_stake
    assert good.saved == pytest.approx(0.4)  # for each of the tokens since
    assert bad.saved is None


def test_averages_stay_averages_while_the_pair_moves() -> None:
    """What is known of a kind is kept relative to the pair, whose average takes its share."""
    pair = Pair(DrafterSpec("draft", 8), 1.0, None)
    kind = beginnings(prompt(1, 1))

    def chance() -> float:
        fare = pair.fare(kind)
        request = pair.acceptance.new_request(mean=fare.mean)
        return request.outlook(1, None).expected[1]

    pair.retire(kind, ended(own=1.0, compared=10_000))
    before = chance()
    for _ in range(50):  # as it was expected to be
        pair.retire(kind, ended(own=pair.fare(kind).mean, compared=10_000))

    assert chance() == pytest.approx(before, abs=0.02)


def test_what_a_draft_saved_is_forgotten_when_it_is_not_asked_for_long() -> None:
    fare = Fare()
    fare.learn(ended(saved=-30.0))
    for _ in range(31):
        fare.learn(ended())
    assert fare.saved == pytest.approx(-0.3)

    fare.learn(ended())

    assert fare.saved is None


def test_another_pace_of_the_machine_makes_gains_void_and_leaves_texts_alone() -> None:
    pair = Pair(DrafterSpec("draft", 8), 1.0, None)
    kind = beginnings(prompt(1, 1))
    for _ in range(3):
        pair.retire(kind, ended(own=2.0, compared=100, gained=-1.0, saved=-1.0))
    before = pair.fare(kind)
    mean = before.mean

    pair.doubt()

    after = pair.fare(kind)
    assert after.mean == mean
    assert after.saved is None
    assert after.trust.first_stake == 1.2


@pytest.mark.parametrize(
    "record",
    [
        [1, 0.0, 1.0, 1.0, 1.0, None, 0],
        [-1, 0.0, 1.0, 1.0, 1.0, None, 0, []],
        [1, 31.0, 1.0, 1.0, 1.0, None, 0, []],
        [1, 0.0, 0.0, 1.0, 1.0, None, 0, []],
        [1, 0.0, 1.0, 1.1, 1.0, None, 0, []],
        [1, 0.0, 1.0, 1.0, 1.0, float("nan"), 0, []],
        [1, 0.0, 1.0, 1.0, 1.0, None, 0, [float("inf")]],
    ],
)
def test_a_damaged_record_is_refused(record: list[Any]) -> None:
    with pytest.raises(ValueError, match=r".+"):
        Fare.from_record(record)
    assert Fare.from_record([1, 0.0, 1.0, 1.0, 1.0, 2.0, 0, [1.0]]).saved == 2.0
