"""Who waits gets a slot in turn, fairly among users, and nobody's text depends on it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

import pytest

from homespecd.decoding.params import SamplingParams
from homespecd.drafters.ngram import NgramDrafter
from homespecd.drafters.protocol import Drafter
from homespecd.worker.scheduler import TURN_TOKENS
from homespecd.worker.slots import WORTH_COPYING
from homespecd.worker.waiting import Outcome, Ticket, Waiting
from tests.conversations import Result, Table
from tests.fakes import FakeModel, HistoryLogits, greedy

VOCAB = 16
BASE = HistoryLogits(VOCAB, seed=5)
LONG = 3 * TURN_TOKENS + 20


def table(*, slots: int = 1, drafts: bool = False) -> Table:
    model = FakeModel(BASE, context=2048)
    drafters: dict[str, Callable[[], Drafter]] = {}
    if drafts:
        drafters["ngram"] = lambda: NgramDrafter("ngram")
    return Table(model, slots=slots, drafters=drafters)


def expected(prompt: Sequence[int], count: int) -> tuple[int, ...]:
    return tuple(greedy(FakeModel(BASE), prompt, count))


@pytest.mark.parametrize("drafts", [False, True])
def test_a_short_answer_does_not_wait_for_a_long_one(drafts: bool) -> None:
    one = table(drafts=drafts)
    _, long = one.submit([1, 2, 3], max_tokens=LONG)
    one.scheduler.turn()
    _, short = one.submit([4, 5], max_tokens=5)
    while not short.ended:
        one.scheduler.turn()
    assert not long.ended
    assert len(long.text) <= TURN_TOKENS + 20
    one.run()
    assert short.tokens == expected([4, 5], 5)
    assert long.text == one_text([1, 2, 3], LONG)
    assert long.account is not None
    assert long.account.completion_tokens == LONG


def one_text(prompt: Sequence[int], count: int) -> str:
    return "".join(chr(ord("a") + token) for token in expected(prompt, count))


@pytest.mark.parametrize("sampling", [SamplingParams(temperature=0.0), SamplingParams(seed=3)])
@pytest.mark.parametrize("slots", [1, 2])
def test_taking_turns_changes_no_text(slots: int, sampling: SamplingParams) -> None:
    alone = [table().ask([index, 1, 2], max_tokens=LONG, sampling=sampling) for index in range(4)]
    together = table(slots=slots)
    results = [
        together.submit([index, 1, 2], max_tokens=LONG, sampling=sampling)[1] for index in range(4)
    ]
    together.run()
    for one, other in zip(alone, results, strict=True):
        assert other.text == one.text
        assert other.finish_reason == "length"
        assert one.account is not None
        assert other.account is not None
        assert other.account.completion_tokens == one.account.completion_tokens
        assert other.account.prompt_tokens == 3


def test_nobody_is_moved_while_nobody_waits() -> None:
    one = table(slots=1)
    result = one.ask([1, 2, 3], max_tokens=LONG)
    assert result.tokens == expected([1, 2, 3], LONG)


def test_the_turns_of_others_are_no_time_of_ones_own() -> None:
    """Decoding stops while others have the slot, and until the text was read again."""
    one = table()
    _, long = one.submit([1, 2, 3], max_tokens=LONG)
    one.scheduler.turn()
    _, other = one.submit([4], max_tokens=20)
    while not other.ended:
        one.scheduler.turn()
        if other.deltas:
            one.clock.advance_ms(100_000)
    one.run()
    assert long.account is not None
    assert other.account is not None
    assert long.account.paused_s > 1000
    assert long.account.decode_ms < 1000
    assert other.account.paused_s == 0
    assert other.account.decode_ms > 1_000_000


def test_a_conversation_that_waits_for_its_next_turn_can_be_cancelled() -> None:
    one = table()
    request, long = one.submit([1, 2, 3], max_tokens=LONG)
    one.scheduler.turn()
    _, other = one.submit([4], max_tokens=LONG)
    while not other.deltas:
        one.scheduler.turn()
    assert one.scheduler.waiting == 1
    one.scheduler.cancel(request)
    assert long.ended
    assert long.account is not None
    assert long.account.completion_tokens == len(long.text)
    one.run()
    assert other.tokens == expected([4], LONG)


# -- users -------------------------------------------------------------------------------------


def ticket(number: int, peer: int | None) -> Ticket:
    def start(_: object) -> None:
        raise AssertionError

    def finish(_conversation: object, _outcome: Outcome) -> None:
        raise AssertionError

    return Ticket(number, (1,), start, finish, peer)  # type: ignore[arg-type]


def test_one_users_many_do_not_go_before_anothers_few() -> None:
    waiting = Waiting()
    for number, peer in enumerate([1, 1, 1, 2, 1, None]):
        waiting.append(ticket(number, peer))
    served: list[int | None] = []
    order = []
    while len(waiting):
        one = waiting.pop(served)
        served.append(one.peer)
        order.append(one.id)
    assert order == [0, 3, 5, 1, 2, 4]


def test_among_equals_who_came_first_is_next() -> None:
    waiting = Waiting()
    for number in range(5):
        waiting.append(ticket(number, 7))
    waiting.remove(next(iter(waiting)))
    assert [waiting.pop([7, 7]).id for _ in range(4)] == [1, 2, 3, 4]


# -- what is read once -------------------------------------------------------------------------


PROMPT = [index % 13 for index in range(3 * WORTH_COPYING)]


def rows_computed(model: FakeModel) -> int:
    return sum(rows for step in model.steps for _, rows, _ in step)


def choices(one: Table, count: int, prompt: Sequence[int] = PROMPT) -> list[Result]:
    """Several choices of one request, as the engine queues them."""
    results = []
    for index in range(count):
        number, result = one.submit(prompt, max_tokens=6, sampling=SamplingParams(seed=index + 1))
        ticket = one.scheduler._waiting._tickets[-1]
        assert ticket.id == number
        one.scheduler._waiting._tickets[-1] = replace(ticket, id=77)
        results.append(result)
    return results


@pytest.mark.parametrize(("slots", "count"), [(4, 4), (2, 4)])
@pytest.mark.parametrize("drafts", [False, True])
def test_choices_read_their_prompt_once(slots: int, count: int, drafts: bool) -> None:
    model = FakeModel(BASE, context=2048, copying=True)
    drafters: dict[str, Callable[[], Drafter]] = {}
    if drafts:
        drafters["ngram"] = lambda: NgramDrafter("ngram")
    one = Table(model, slots=slots, drafters=drafters)
    together = choices(one, count)
    one.run()
    alone = [
        table(drafts=drafts).ask(PROMPT, max_tokens=6, sampling=SamplingParams(seed=index + 1))
        for index in range(count)
    ]
    assert [result.text for result in together] == [result.text for result in alone]
    # The prompt, and for each choice its own few tokens and blocks.
    assert rows_computed(model) < len(PROMPT) + count * 6 * 6
    assert [result.account.cached_tokens for result in together if result.account] == [
        0, *[len(PROMPT) - 1] * (count - 1)
    ]  # fmt: skip


def test_a_common_beginning_is_read_once() -> None:
    """A system prompt, say: whoever has it gives it, while its own conversation goes on."""
    model = FakeModel(BASE, context=2048, copying=True)
    one = Table(model, slots=2)
    _, first = one.submit([*PROMPT, 1], max_tokens=40)
    while not first.deltas:
        one.scheduler.turn()
    before = rows_computed(model)
    _, second = one.submit([*PROMPT, 2, 2], max_tokens=5)
    one.run()
    assert second.account is not None
    assert second.account.cached_tokens == len(PROMPT)
    assert rows_computed(model) - before < 40 + 2 + 5 + 40
    assert first.tokens == expected([*PROMPT, 1], 40)
    assert second.tokens == expected([*PROMPT, 2, 2], 5)


def test_little_in_common_is_not_copied() -> None:
    model = FakeModel(BASE, context=2048, copying=True)
    one = Table(model, slots=2)
    short = PROMPT[: WORTH_COPYING - 1]
    one.ask([*short, 1], max_tokens=5)
    _, busy = one.submit([*short, 1], max_tokens=20)
    _, second = one.submit([*short, 2], max_tokens=5)
    one.run()
    assert busy.tokens == expected([*short, 1], 20)
    assert second.account is not None
    assert second.account.cached_tokens == 0
