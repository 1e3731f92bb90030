"""What a draft must read before it can propose: counted, weighed, and not for nothing twice."""

from __future__ import annotations

from typing import Any

import pytest

from homespecd.governor.measured import DrafterSpec, MeasuredGovernor
from homespecd.governor.protocol import Reason
from tests.engines import PLAIN, worker
from tests.fakes import FakeClock, FakeModel, HistoryLogits, WrongEvery
from tests.governor_answers import Draft, answers
from tests.governor_machine import FP32, Machine
from tests.governor_sim import Fixed, World, fixed_policies

GOOD = Draft("draft", {"": 0.92}, token_ms=3.0, read_row_ms=0.3)
# Tokens that a client lets an answer have; it ends by itself long before.
ROOM = 4000


def served(
    tokens: int,
    *,
    prompt: int,
    room: int = 0,
    count: int = 120,
    draft: Draft = GOOD,
    believed_ms: float = 3.0,
) -> tuple[MeasuredGovernor, World, list[float], list[float]]:
    """Answers of so many tokens: the governor, milliseconds of each with it, and plain."""
    made = answers([draft], [("chat", (("chat", tokens),))] * count, seed=7, prompt=prompt)
    one = World(Machine(FP32), [draft], made, room=room)
    governor = MeasuredGovernor(
        [DrafterSpec(draft.name, draft.max_k)],
        step_ms=FP32,
        draft_ms={draft.name: {1: believed_ms, draft.max_k: draft.max_k * believed_ms}},
    )
    return governor, one, one.run(governor).answers, one.run(Fixed()).answers


@pytest.mark.parametrize("prompt", [50, 200, 1000])
@pytest.mark.parametrize("tokens", [2, 3, 5, 8, 12])
def test_short_answers_that_end_by_themselves_lose_nothing(tokens: int, prompt: int) -> None:
    """Whoever sets no limit may get two tokens: reading a prompt for them is a loss."""
    governor, _, auto, plain = served(tokens, prompt=prompt, room=ROOM, count=200)

    assert sum(plain[10:]) / sum(auto[10:]) >= 0.98
    measured = governor.speedup("draft").measured
    if governor.standing().reason is Reason.SPECULATING:
        assert measured is not None
        assert measured >= 1.0


def test_reading_is_a_part_of_the_measured_speedup() -> None:
    governor, _, auto, plain = served(40, prompt=1000)
    measured = governor.speedup("draft").measured

    assert measured is not None
    assert measured == pytest.approx(sum(plain[10:]) / sum(auto[10:]), rel=0.15)


@pytest.mark.parametrize(("tokens", "prompt"), [(20, 50), (20, 200), (40, 200), (40, 1000)])
@pytest.mark.parametrize("room", [0, ROOM])
def test_what_a_draft_could_do_for_short_answers_is_found_out(
    tokens: int, prompt: int, room: int
) -> None:
    _, one, auto, _ = served(tokens, prompt=prompt, room=room)
    best = min(sum(one.run(policy).answers[20:]) for policy in fixed_policies([GOOD]))

    assert best / sum(auto[20:]) >= 0.90


@pytest.mark.parametrize("times", [2, 5, 10])
def test_a_draft_that_was_timed_on_a_busy_machine_gets_another_chance(times: int) -> None:
    draft = Draft("draft", {"": 0.85}, token_ms=3.0, read_row_ms=0.1)
    _, _, auto, plain = served(150, prompt=200, count=60, draft=draft, believed_ms=3.0 * times)

    assert sum(plain[40:]) / sum(auto[40:]) > 1.5


@pytest.mark.parametrize("times", [3, 8, 12])
def test_a_draft_that_was_slow_for_a_while_gets_another_chance(times: int) -> None:
    def pace(request: int, position: int, rows: int) -> float:  # noqa: ARG001
        return float(times) if 8 <= request < 12 else 1.0

    draft = Draft("draft", {"": 0.85}, token_ms=3.0, read_row_ms=0.1, pace=pace)
    _, _, auto, plain = served(150, prompt=200, count=100, draft=draft)

    assert sum(plain[4:8]) / sum(auto[4:8]) > 1.5
    assert sum(plain[80:]) / sum(auto[80:]) > 1.5


def test_a_draft_that_suits_every_third_answer_is_called_what_it_is() -> None:
    draft = Draft("draft", {"": 0.05, "copy": 1.0}, token_ms=3.0)
    kinds = [("chat", (("chat", 90),))] * 2 + [("copy", (("copy", 90),))]
    made = answers([draft], kinds * 20, seed=7, prompt=50)
    governor = MeasuredGovernor([DrafterSpec("draft", 8)], step_ms=FP32)
    one = World(Machine(FP32), [draft], made)
    auto, plain = one.run(governor), one.run(Fixed())

    assert plain.true_ms / auto.true_ms > 1.2
    assert governor.standing().reason is Reason.SPECULATING


def test_a_chat_goes_on_with_what_the_draft_has_read() -> None:
    """Turn after turn, only the new tokens are read: the slot has the rest from before."""
    base = HistoryLogits(16, seed=3)

    def target(clock: FakeClock) -> FakeModel:
        return FakeModel(base, clock=clock, context=8192, step_ms=lambda rows: 19.0 + 0.6 * rows)

    def draft(clock: FakeClock) -> FakeModel:
        logits = WrongEvery(base, 8)
        return FakeModel(logits, clock=clock, context=8192, step_ms=lambda rows: 2.1 + 0.3 * rows)

    def turns_ms(**options: Any) -> float:
        with worker(target, {"good": draft}, slots=1) as one:
            text, taken = tuple((5 * i + i // 9) % 16 for i in range(600)), []
            for turn in range(1, 31):
                one.clock.advance_ms(3000)
                began_s = one.clock()
                one.answer(turn, text, max_tokens=30, **options)
                taken.append((one.clock() - began_s) * 1e3)
                said = tuple(ord(letter) - ord("a") for letter in one.text(turn))
                text = (*text, *said, *(turn % 16,) * 10)
            return sum(taken[10:])

    assert turns_ms() < 0.5 * turns_ms(speculation=PLAIN)
