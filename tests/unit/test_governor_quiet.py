"""Rounds that are put by: answered at once, learned from later, and nobody can tell."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest

from homespecd.governor.lessons import Lessons
from homespecd.governor.measured import DrafterSpec, MeasuredGovernor
from homespecd.governor.protocol import Choice, Reason, RoundRecord, Situation, SpeculationMode
from tests.governor_sim import INT4, Draft, Drafting, Lookup, Machine, World, answers

KINDS = [(name, ((name, 120),)) for name in ("chat", "summary", "copy")]
BAD = Draft("draft", {"": 0.03}, token_ms=2.4, read_row_ms=0.2)


def governor(drafters: list[Drafting]) -> MeasuredGovernor:
    return MeasuredGovernor([DrafterSpec(one.name, one.max_k) for one in drafters], step_ms=INT4)


class AtOnce:
    """A governor that is asked for its view after every round, so that nothing stays put by."""

    def __init__(self, inner: MeasuredGovernor) -> None:
        self.inner = inner

    def choose(self, now_s: float, situation: Situation) -> Choice:
        return self.inner.choose(now_s, situation)

    def observe(self, record: RoundRecord) -> None:
        self.inner.observe(record)
        self.inner.standing()


@pytest.mark.parametrize("drafters", [[Lookup()], [Lookup(), BAD], [BAD]], ids=["a", "both", "b"])
def test_whether_something_is_put_by_makes_no_difference(drafters: list[Drafting]) -> None:
    world = World(Machine(INT4), drafters, answers(drafters, KINDS * 4, seed=3))
    later, at_once = governor(drafters), governor(drafters)

    a, b = world.run(later), world.run(AtOnce(at_once))

    assert a.choices == b.choices
    assert json.dumps(later.to_record()) == json.dumps(at_once.to_record())


def test_most_plain_rounds_are_put_by(monkeypatch: pytest.MonkeyPatch) -> None:
    """In chat a lookup has little to say, and a draft that is far from paying is left alone."""
    drafters: list[Drafting] = [Lookup(), BAD]
    world = World(Machine(INT4), drafters, answers(drafters, KINDS[:1] * 12, seed=3))
    decider = governor(drafters)
    world.run(decider)
    looked: list[int] = []
    told: list[int] = []
    learn = Lessons.learn

    def learned(self: Lessons, record: RoundRecord) -> None:
        told.append(record.request)
        learn(self, record)

    monkeypatch.setattr(Lessons, "learn", learned)
    original = decider._decide

    def decide(*arguments: object) -> object:
        looked.append(1)
        return original(*arguments)  # type: ignore[arg-type]

    monkeypatch.setattr(decider, "_decide", decide)
    outcome = world.run(decider, start_s=1000.0, first_id=1000)
    decider.standing()

    assert len(told) == outcome.rounds  # every round is learned from, sooner or later
    assert len(looked) < 0.6 * outcome.rounds


def situation(**changes: object) -> Situation:
    base = Situation(
        request=1, mode=SpeculationMode.AUTO, context=50, catch_up=0, room=40, offers={"ngram": 0}
    )
    return replace(base, **changes)  # type: ignore[arg-type]


def record(choice: Choice, request: int = 1, **changes: object) -> RoundRecord:
    base = RoundRecord(
        request=request,
        at_s=1.0,
        choice=choice,
        context=50,
        catch_up=0,
        rows=1,
        total_rows=1,
        lanes=1,
        proposed=0,
        accepted=0,
        committed=1,
        draft_ms=0.0,
        step_ms=7.2,
        wall_ms=7.4,
    )
    return replace(base, **changes)  # type: ignore[arg-type]


def test_reasons_are_those_of_rounds_that_are_thought_about() -> None:
    one = governor([Lookup()])

    assert one.choose(0.0, situation()).reason is Reason.WARMING_UP
    assert one.choose(0.0, situation(offers={})).reason is Reason.NO_DRAFT
    off = one.choose(0.0, situation(mode=SpeculationMode.OFF))
    assert off == Choice(None, 0, Reason.DISABLED_BY_REQUEST)


def test_a_round_that_is_never_reported_is_forgotten() -> None:
    """A client went away between question and answer: the next one's round is not taken for it."""
    one = governor([Lookup()])
    one.choose(0.0, situation())
    choice = one.choose(0.1, situation(request=2))
    one.observe(record(choice, request=2))

    assert one.speedup(None).plain_samples == 0  # cold
    for number in range(10):
        one.observe(record(one.choose(1.0 + number, situation(request=2)), request=2))
    assert one.speedup(None).plain_samples == 8  # three cold rounds of eleven


def test_in_company_nothing_is_put_by() -> None:
    """Others count on what this slot expects of the round."""
    one = governor([Lookup()])
    choice = one.choose(0.0, situation(other_rows=2))

    assert one._known.requests.others_tokens(99, 0.0) == 1.0
    one.observe(record(choice, total_rows=3, lanes=3))
    assert one._known.requests.others_tokens(99, 0.0) == 0.0


def test_a_round_that_others_joined_is_learned_at_once() -> None:
    one = governor([Lookup()])
    choice = one.choose(0.0, situation())
    for number in range(5):
        one.observe(record(choice, total_rows=2, lanes=2))
        choice = one.choose(float(number), situation())

    assert one._known.meter.plain_samples == 2  # three cold rounds of five, and none waits
