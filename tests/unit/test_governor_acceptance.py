"""Acceptance: by run length, per pair, per request."""

from __future__ import annotations

import json
import random
from typing import Any

import pytest

from homespecd.governor.acceptance import PairAcceptance, RequestAcceptance


def feed(request: RequestAcceptance, rights: list[bool], k: int = 4) -> None:
    """Blocks of k over a text in which the draft is right where `rights` says so."""
    at = 0
    while at + k < len(rights):
        block = rights[at : at + k]
        accepted = block.index(False) if False in block else k
        request.see(proposed=k, accepted=accepted, refused=accepted < k, match=None)
        at += accepted + 1


def fold(pair: PairAcceptance, request: RequestAcceptance) -> None:
    """The request is over."""
    own, tokens = request.shown
    if own is not None:
        pair.fold(own, tokens)


def test_an_unknown_draft_is_given_hope() -> None:
    expected = PairAcceptance().new_request().outlook(4, None).expected

    assert expected[0] == 0.0
    assert 0.5 < expected[1] < 0.75
    assert expected == sorted(expected)
    assert expected[4] < 4


@pytest.mark.parametrize("chance", [0.1, 0.5, 0.9])
def test_a_steady_chance_is_learned_over_requests(chance: float) -> None:
    pair, rng = PairAcceptance(), random.Random(5)
    for _ in range(12):
        request = pair.new_request()
        feed(request, [rng.random() < chance for _ in range(300)])
        fold(pair, request)

    assert pair.new_request().outlook(1, None).expected[1] == pytest.approx(chance, abs=0.12)


def test_a_draft_that_is_wrong_at_every_third_token_is_seen_through() -> None:
    pair = PairAcceptance()
    request = pair.new_request()
    feed(request, [position % 3 != 2 for position in range(600)])

    one, two, three = request.outlook(3, None).expected[1:]

    assert one > 0.9
    assert two - one > 0.8
    assert three - two < 0.1


def test_a_change_of_subject_shows_within_a_few_rounds() -> None:
    pair = PairAcceptance()
    request = pair.new_request()
    feed(request, [True] * 200)
    assert request.outlook(4, None).expected[4] > 3.4

    for _ in range(6):
        request.see(proposed=4, accepted=0, refused=True, match=None)

    assert request.outlook(4, None).expected[4] < 1.5
    # The pair itself has not lost its good name over six rounds of one request.
    assert pair.new_request().outlook(4, None).expected[4] > 1.6


def test_a_long_match_is_worth_more_than_a_short_one() -> None:
    pair = PairAcceptance()
    for _ in range(60):
        request = pair.new_request()
        request.see(proposed=2, accepted=0, refused=True, match=2)
        request.see(proposed=8, accepted=8, refused=False, match=12)
        fold(pair, request)

    request = pair.new_request()

    assert request.outlook(4, 12).expected[4] > 3.3
    assert request.outlook(4, 2).expected[4] < 2.0


def test_looking_on_is_learning_too() -> None:
    pair = PairAcceptance()
    request = pair.new_request()
    before = request.outlook(2, None).expected[2]
    for _ in range(10):
        request.foresee(right=True, match=None)

    assert request.outlook(2, None).expected[2] > before
    assert request.run == 10


def test_a_block_cut_off_by_a_stop_is_no_rejection() -> None:
    kept, refused = PairAcceptance().new_request(), PairAcceptance().new_request()
    kept.see(proposed=4, accepted=2, refused=False, match=None)
    refused.see(proposed=4, accepted=2, refused=True, match=None)

    assert kept.outlook(4, 0).expected[4] > refused.outlook(4, 0).expected[4]


def test_counts_and_record() -> None:
    pair = PairAcceptance()
    assert (pair.rate, pair.length) == (None, None)
    pair.count(4, 3)
    pair.count(4, 1)

    again = PairAcceptance()
    again.restore(json.loads(json.dumps(pair.to_record())))

    assert again.rate == 0.5
    assert again.length == 3.0
    assert again.to_record() == pair.to_record()


@pytest.mark.parametrize(
    "damage",
    [{"counts": [1, 2, 3]}, {"runs": []}, {"base": [1e9, 0.1]}, {"folded": float("inf")}],
)
def test_a_damaged_record_is_refused(damage: dict[str, Any]) -> None:
    record = PairAcceptance().to_record() | damage

    with pytest.raises(ValueError, match=r".+"):
        PairAcceptance().restore(record)
