"""Rounds that are put by: answered at once, learned from later, and nobody can tell."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest

from homespecd.governor.lessons import Lessons, Seen
from homespecd.governor.measured import DrafterSpec, MeasuredGovernor
from homespecd.governor.protocol import Choice, Reason, RoundRecord, Situation, SpeculationMode
from homespecd.governor.speedup import circumstances
from tests.governor_answers import Draft, Drafting, Lookup, answers
from tests.governor_machine import INT4, Machine
from tests.governor_rounds import round_record
from tests.governor_sim import World

KINDS = [(name, ((name, 120),)) for name in ("chat", "summary", "copy")]
BAD = Draft("draft", {"": 0.03}, token_ms=2.4, read_row_ms=0.2)


def governor(drafters: list[Drafting]) -> MeasuredGovernor:
    specs = [DrafterSpec(one.name, one.max_k) for one in drafters]
    return MeasuredGovernor(specs, step_ms=INT4)


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
def test_what_is_put_by_is_learned_in_the_end(drafters: list[Drafting]) -> None:
    """Later, from fewer and better measurements: the same verdicts, and nearly the same times."""
    world = World(Machine(INT4), drafters, answers(drafters, KINDS * 4, seed=3))
    later, at_once = governor(drafters), governor(drafters)

    a, b = world.run(later), world.run(AtOnce(at_once))

    assert a.true_ms == pytest.approx(b.true_ms, rel=0.03)
    mine, other = later.standing(), at_once.standing()
    assert [one.reason for one in mine.drafters] == [one.reason for one in other.drafters]
    assert mine.plain_ms_per_token == pytest.approx(other.plain_ms_per_token, rel=0.02)


def test_plain_rounds_are_answered_at_once_and_learned_from_by_the_handful(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """In chat a lookup has little to say, and a draft that is far from paying is left alone."""
    drafters: list[Drafting] = [Lookup(), BAD]
    world = World(Machine(INT4), drafters, answers(drafters, KINDS[:1] * 12, seed=3))
    decider = governor(drafters)
    world.run(decider)
    looked: list[int] = []
    handfuls: list[int] = []
    of_machine = Lessons.of_machine

    def learned(self: Lessons, rounds: Sequence[Seen]) -> None:
        handfuls.append(len(rounds))
        of_machine(self, rounds)

    monkeypatch.setattr(Lessons, "of_machine", learned)
    original = decider._decide

    def decide(*arguments: Any) -> Any:
        looked.append(1)
        return original(*arguments)

    monkeypatch.setattr(decider, "_decide", decide)
    decider.standing()
    del handfuls[:]
    outcome = world.run(Unasked(decider), start_s=1000.0, first_id=1000)
    decider.standing()

    assert sum(handfuls) == outcome.rounds  # every round is learned from, sooner or later
    assert len(handfuls) <= outcome.rounds / 12
    assert len(looked) < 0.5 * outcome.rounds


class Unasked:
    """Whose view nobody asks for."""

    def __init__(self, inner: MeasuredGovernor) -> None:
        self._inner = inner

    def choose(self, now_s: float, situation: Situation) -> Choice:
        return self._inner.choose(now_s, situation)

    def observe(self, record: RoundRecord) -> None:
        self._inner.observe(record)


def situation(**changes: Any) -> Situation:
    base = Situation(
        request=1, mode=SpeculationMode.AUTO, context=50, catch_up=0, room=40, offers={"ngram": 0}
    )
    return replace(base, **changes)


def record(choice: Choice, request: int = 1, **changes: Any) -> RoundRecord:
    return round_record(choice=choice, request=request, **changes)


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


def test_others_count_on_what_a_slot_expects_of_its_round() -> None:
    one = governor([Lookup()])
    choice = one.choose(0.0, situation(other_rows=2))

    assert one._backlog.company(99, 2, 0.0).tokens == 1.0
    one.observe(record(choice, total_rows=3, lanes=3))
    assert one._backlog.company(99, 2, 0.0).tokens == 0.0


def test_a_round_that_others_joined_is_one_in_company() -> None:
    one = governor([Lookup()])
    choice = one.choose(0.0, situation())
    for number in range(5):
        one.observe(record(choice, total_rows=2, lanes=2))
        choice = one.choose(float(number), situation())

    assert one.speedup(None).plain_samples == 2  # three cold rounds of five
    assert one._known.meter.plain_rounds(circumstances(50, 1)) > 0
    assert one._known.meter.plain_rounds(circumstances(50, 0)) == 0


def test_a_draft_that_a_grammar_always_cuts_is_found_out() -> None:
    """None of what it proposes is ever verified, and all of it is wrong."""
    one = MeasuredGovernor([DrafterSpec("ngram", 8)], step_ms=INT4)
    asked = situation(offers={"ngram": 8}, matches={"ngram": 3}, room=400)
    spoken = []
    for number in range(60):
        choice = one.choose(number / 100, replace(asked, context=50 + number))
        spoken.append(choice.k)
        one.observe(record(choice, context=50 + number, impossible=choice.k))

    assert 0 < sum(spoken) <= 10
    assert not any(spoken[-25:])
    standing = one.standing().drafters[0]
    assert standing.acceptance_rate == 0.0


@pytest.mark.parametrize("name", ["at_s", "draft_ms", "step_ms", "wall_ms"])
@pytest.mark.parametrize("value", [float("nan"), float("inf"), -float("inf"), 1e308])
def test_times_that_are_none_are_not_learned(name: str, value: float) -> None:
    if name == "at_s" and value == 1e308:
        return  # a clock may say anything that is a number
    one = governor([Lookup()])
    for number in range(10):
        one.observe(record(one.choose(number / 10, situation())))
    before = one.to_record()

    changes: dict[str, Any] = {name: value}
    one.observe(record(one.choose(1.0, situation()), **changes))

    assert one.to_record() == before
    assert one.choose(1.1, situation()).k == 0
