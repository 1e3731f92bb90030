"""What single rounds teach: of a drafter, of its request, and of when to look again."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from homespecd.governor.choice import Block
from homespecd.governor.fare import Ended
from homespecd.governor.knowledge import Knowledge
from homespecd.governor.lessons import Lessons
from homespecd.governor.measured import MeasuredGovernor
from homespecd.governor.pair import DrafterSpec, Pair
from homespecd.governor.prospects import Prospect, plain_round, prospects
from homespecd.governor.protocol import Choice, Reason, RoundRecord, Situation, SpeculationMode
from homespecd.governor.requests import ALONE, Asked
from homespecd.governor.switch import TimeBudget
from tests.governor_machine import FP32
from tests.governor_rounds import round_record

SITUATION = Situation(
    request=1, mode=SpeculationMode.AUTO, context=50, catch_up=0, room=99, offers={"draft": 8}
)
ROUND = round_record(
    choice=Choice("draft", 4, Reason.SPECULATING),
    rows=5,
    total_rows=5,
    proposed=4,
    accepted=2,
    committed=3,
    draft_ms=12.0,
    step_ms=27.9,
    wall_ms=40.0,
)


def known() -> Knowledge:
    """A draft that takes 3 ms for a token, and a lookup."""
    return Knowledge(
        [DrafterSpec("draft", 8), DrafterSpec("ngram", 8)],
        min_speedup=1.0,
        step_ms=FP32,
        draft_ms={"draft": {1: 3.0, 8: 24.0}},
    )


def taught(what: Knowledge, record: RoundRecord, **asked: Any) -> Pair:
    """The draft, after such a round."""
    lessons = Lessons(what, TimeBudget(0.02))
    expected = Asked(1.0, replace(SITUATION, **asked), tokens=3.0, proposed=4, expected_ms=40.0)
    lessons.of_machine([lessons.of_text(record, expected, cold=False)])
    return what.pairs["draft"]


def test_what_a_draft_had_to_read_counts_against_it() -> None:
    """300 ms of reading before the first block: its round, and they, are what was spent."""
    reading = replace(ROUND, draft_ms=312.0, wall_ms=340.0)

    plain_ms, spent_ms, _ = taught(known(), reading, unread={"draft": 900}).switch.to_record()[
        "evidence"
    ]

    assert spent_ms == pytest.approx(340.0)
    assert plain_ms == pytest.approx(3 * FP32[1], rel=0.1)


@pytest.mark.parametrize(("accepted", "again"), [(4, True), (0, False)])
def test_a_look_that_was_worth_it_is_followed_by_another(accepted: int, again: bool) -> None:
    look = Choice("draft", 4, Reason.PROBING)

    pair = taught(known(), replace(ROUND, choice=look, accepted=accepted, committed=accepted + 1))

    assert pair.probes.due is again


def test_a_new_request_brings_the_next_look_nearer() -> None:
    what = known()
    pair = what.pairs["draft"]
    for _ in range(12):
        pair.probes.nothing_new()

    what.state(1, 1.0, ())
    for _ in range(600):
        pair.probes.round()

    assert pair.probes.due


def test_every_token_lets_a_drafter_lose_a_little_again() -> None:
    what = known()
    state = what.state(1, 1.0, ())
    use = state.use_of(what.pairs["draft"])
    use.stake.see(plain_ms=0.0, spent_ms=60.0, round_ms=10.0)
    least = use.stake.rounds

    state.spend(10.0, 50, None, covered=0)

    assert use.stake.rounds == pytest.approx(least + 0.2)


def test_what_others_take_care_of_is_not_left_to_a_draft() -> None:
    what = known()
    state = what.state(1, 1.0, ())
    draft, lookup = (state.use_of(what.pairs[name]) for name in ("draft", "ngram"))
    assert state.left_to(draft) == 1.0

    for _ in range(10):
        state.spend(10.0, 8, lookup, covered=0)

    assert state.left_to(draft) < 0.25
    assert state.left_to(lookup) == 1.0


def test_a_draft_waits_where_others_may_yet_do_its_work() -> None:
    """Four hundred tokens to read, in texts of which a lookup mostly took the greater part."""
    what = known()
    for left in (0.1, 0.6) * 4:
        what.pairs["draft"].retire((), Ended(None, 0, left, 1000, gained=20.0, saved=None, since=0))
    state = what.state(1, 1.0, ())
    asked = replace(SITUATION, unread={"draft": 400})
    plain = plain_round(what, asked, state, ALONE)

    def playable() -> bool:
        return prospects(what, asked, state, plain)[0].playable is not None

    assert not playable()
    for _ in range(20):
        state.spend(plain.ms, 1, None, covered=0)
    assert playable()


@pytest.mark.parametrize("room", [10, 100])
def test_what_a_draft_must_read_is_in_the_price_of_a_try_once(room: int) -> None:
    """A part of it in the block's own price, the more the shorter the answer; the rest not."""
    what = known()
    state = what.state(1, 1.0, ())
    read, unread = (
        replace(SITUATION, offers={"draft": 1}, room=room, unread={"draft": rows})
        for rows in (0, 400)
    )
    plain = plain_round(what, read, state, ALONE)

    (free,) = prospects(what, read, state, plain)
    (dear,) = prospects(what, unread, state, plain)

    reading_ms = what.pairs["draft"].cost.catch_up(400)
    assert dear.block.ms > free.block.ms
    assert dear.unpaid_ms < reading_ms
    assert dear.block.ms + dear.unpaid_ms == pytest.approx(free.block.ms + reading_ms)
    assert free.unpaid_ms == 0.0


@pytest.mark.parametrize("in_use", [True, False])
def test_that_its_price_is_long_past_helps_only_a_drafter_that_is_off(in_use: bool) -> None:
    """A block that would not pay if all of it were right, going by what is known."""
    governor = MeasuredGovernor([DrafterSpec("draft", 4)], step_ms=FP32)
    pair = governor._known.pairs["draft"]
    pair.rounds, pair.switch.on = 1, in_use
    pair.probes.nothing_new()
    for _ in range(4 * 2048):
        pair.probes.round()
    state = governor._known.state(1, 1.0, ())
    asked = replace(SITUATION, offers={"draft": 4})
    plain = plain_round(governor._known, asked, state, ALONE)
    block = Block("draft", 4, 5.0, 6.0 * plain.ms, 1.0, 0.0)

    tried = governor._probe([Prospect(pair, block, None, 0.0)], asked, state, plain)

    assert pair.in_use is in_use
    assert (tried is None) is in_use
