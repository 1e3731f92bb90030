"""What speaks for and against a drafter, what does not, and what one that lost must promise."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from homespecd.governor.fare import Ended, Fare
from homespecd.governor.measured import DrafterSpec, MeasuredGovernor
from homespecd.governor.protocol import Choice, RoundRecord, Situation, SpeculationMode
from tests.governor_answers import Draft, Lookup
from tests.governor_machine import FP32, INT4, Machine
from tests.governor_sim import World, fixed_policies
from tests.governor_worlds import CHAT, governor_for, times_plain, world

WARM, WIDE = (Machine(curve, cold_steps=0) for curve in (INT4, FP32))
COPIES = Draft("draft", {"": 0.03, "copy": 0.95}, token_ms=2.4, read_row_ms=0.2)


def standing_of(governor: MeasuredGovernor) -> list[Any]:
    """A drafter's verdict, what may still be lost on it, and what it gained in which request."""
    record = governor.to_record()["drafters"]["draft"]
    return [record["switch"], record["advance"], record["fares"]["all"][-1]]


def begun(one: World, kind: int) -> World:
    """All of its prompts begin alike."""
    return replace(one, answers=[replace(answer, beginnings=(kind,)) for answer in one.answers])


def test_rounds_that_somebody_insisted_on_speak_neither_for_nor_against() -> None:
    """One client has `speculation: on` where it loses, another copies in between with `auto`."""
    copies = begun(world(WIDE, [COPIES], [("copy", (("copy", 99),))] * 4), 1)
    prose = begun(world(WIDE, [COPIES], [CHAT] * 4), 2)
    governor = governor_for(copies)
    copies.run(governor)
    copies.run(governor, mode=SpeculationMode.OFF, start_s=100.0, first_id=100)  # all are over
    before = standing_of(governor)

    insisted = prose.run(governor, mode=SpeculationMode.ON, start_s=200.0, first_id=200)
    copies.run(governor, mode=SpeculationMode.OFF, start_s=300.0, first_id=300)
    unmoved = standing_of(governor)
    asked = copies.run(governor, start_s=400.0, first_id=400)

    assert times_plain(prose, insisted, 0, 4) < 0.9
    assert unmoved == before
    assert times_plain(copies, asked, 0, 4) > 1.4
    assert standing_of(governor) != before


@pytest.mark.parametrize(("chance", "used"), [(0.6, False), (0.95, True)])
def test_one_that_was_measured_slower_must_promise_a_quarter_more(
    chance: float, used: bool
) -> None:
    one = world(WIDE, [Draft("draft", {"": chance}, token_ms=7.25)], [CHAT])
    learning = world(Machine(FP32), one.drafters, [CHAT] * 8)
    governor = governor_for(learning)
    learning.run(governor)
    record = governor.to_record()
    shares = {}
    for on in (True, False):
        record["drafters"]["draft"]["switch"] |= {"on": on, "evidence": [0.0, 0.0, 0.0]}
        outcome = one.run(governor_for(one, remembered=record), start_s=1000.0, first_id=1000)
        shares[on] = outcome.speculative_rounds / outcome.rounds

    assert shares[True] > 0.5
    assert (shares[False] > 0.5) is used
    assert used or shares[False] < 0.1


def test_a_spike_is_nobodys_fault() -> None:
    """One step of two seconds, and the lookup is used in the same answer as if nothing had been."""
    one = world(WARM, [Lookup()], [CHAT] * 4)
    usual, spoiled = governor_for(one), Spoiled(governor_for(one), at_proposal=2)
    for governor in (usual, spoiled.inner):
        one.run(governor)

    again = world(WARM, [Lookup()], [CHAT])
    undisturbed = again.run(usual, start_s=1000.0, first_id=1000)
    disturbed = again.run(spoiled, start_s=1000.0, first_id=1000)

    assert spoiled.left == 0
    assert undisturbed.speculative_rounds > 10
    assert disturbed.speculative_rounds >= 0.7 * undisturbed.speculative_rounds
    assert spoiled.inner.standing().mode == usual.standing().mode


class Spoiled:
    """Another program takes the machine for two seconds, in a round with a proposal."""

    def __init__(self, inner: MeasuredGovernor, *, at_proposal: int) -> None:
        self.inner = inner
        self.left = at_proposal

    def choose(self, now_s: float, situation: Situation) -> Choice:
        return self.inner.choose(now_s, situation)

    def observe(self, record: RoundRecord) -> None:
        if record.proposed and self.left:
            self.left -= 1
            if not self.left:
                step_ms, wall_ms = record.step_ms + 2000.0, record.wall_ms + 2000.0
                record = replace(record, step_ms=step_ms, wall_ms=wall_ms)
        self.inner.observe(record)


def test_one_that_was_never_tried_is_waited_for_less() -> None:
    """Its prompt takes longer to read than a first look may cost; some eight answers later, the
    time since makes up for it."""
    draft = Draft("draft", {"": 0.9}, token_ms=3.0, read_row_ms=0.3)
    one = world(Machine(FP32), [draft], [("chat", (("chat", 100),))] * 16, prompt=2000)
    governor = MeasuredGovernor(
        [DrafterSpec("draft", 8)], step_ms=FP32, draft_ms={"draft": {1: 3.0, 8: 24.0}}
    )

    outcome = one.run(governor)

    first = next(number for number, choice in enumerate(outcome.choices) if choice.k)
    assert 400 < first < 1200


def test_what_rounds_take_besides_their_step_makes_blocks_worth_more() -> None:
    """2 ms for each round, whatever it carries: two tokens in one round save that as well."""
    machine = Machine({1: 2.0, 2: 3.2, 4: 5.6, 8: 10.4, 16: 20.0}, overhead_ms=2.0)
    one = world(machine, [Draft("draft", {"": 0.65}, token_ms=0.05)], [CHAT] * 12)

    outcome = one.run(governor_for(one))

    assert times_plain(one, outcome, 4, 12) > 1.15


def test_what_a_proposed_token_takes_besides_its_row_makes_blocks_shorter() -> None:
    """Half a millisecond for each, where a row more in the step takes next to nothing."""
    machine = Machine({1: 3.0, 2: 3.05, 16: 3.8, 64: 6.0}, row_ms=0.5)
    one = world(machine, [Draft("draft", {"": 0.5}, token_ms=0.02)], [CHAT] * 12)

    outcome = one.run(governor_for(one))

    best = min(sum(one.run(policy).answers[4:]) for policy in fixed_policies(one.drafters))
    assert sum(outcome.answers[4:]) <= 1.08 * best


def test_trust_outlives_a_restart() -> None:
    fare = Fare()
    for _ in range(6):
        fare.learn(Ended(None, 0, left=1.0, tokens=100, gained=20.0, saved=None, since=0))

    again = Fare.from_record(fare.to_record())

    assert again.trust.first_stake == fare.trust.first_stake > Fare().trust.first_stake


def shown(own: float) -> Ended:
    """A long request that was so far off the average (log-odds)."""
    return Ended(own, 1000, left=1.0, tokens=1000, gained=None, saved=None, since=0)


def test_how_far_requests_of_a_kind_differ_is_learned() -> None:
    alike, unlike = Fare(), Fare()
    for number in range(12):
        alike.learn(shown(0.5))
        unlike.learn(shown(0.5 + (2.0 if number % 2 else -2.0)))

    assert alike.spread < 0.5
    assert unlike.spread > 2.5


def test_a_request_that_is_far_off_speaks_of_a_change() -> None:
    fare = Fare()
    for _ in range(30):
        fare.learn(shown(1.0))

    fare.learn(shown(-4.0))

    assert fare.mean < -0.5
