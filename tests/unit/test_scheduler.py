"""Several clients at once on one engine: even shares, no long waits, and never worse than turns.

Time is simulated: a step costs what its rows cost on an int4 CPU model, the draft a tenth.
"""

from __future__ import annotations

from typing import Any

import pytest

from tests.engines import PLAIN, Worker, worker
from tests.fakes import FakeClock, FakeModel, HistoryLogits, WrongEvery

VOCAB = 16
BASE = HistoryLogits(VOCAB, seed=3)
PROMPTS = [tuple((7 * client + i) % VOCAB for i in range(20)) for client in range(4)]
TOKENS = 60


def target(clock: FakeClock) -> FakeModel:
    return FakeModel(BASE, clock=clock, context=2048, step_ms=lambda rows: 6.0 + 1.5 * rows)


def draft(period: int) -> Any:
    """Wrong at every so many-th position."""
    return lambda clock: FakeModel(
        WrongEvery(BASE, period), clock=clock, context=2048, step_ms=lambda rows: 0.6 + 0.1 * rows
    )


def decode(one: Worker, ids: list[int], prompts: list[tuple[int, ...]], **options: Any) -> float:
    """Ask for all of them at once; milliseconds until the last one is answered."""
    began_s = one.clock()
    for request, prompt in zip(ids, prompts, strict=True):
        one.generate(request, prompt, max_tokens=TOKENS, **options)
    one.work()
    return (one.clock() - began_s) * 1e3


def ms_per_token(one: Worker, request: int) -> float:
    speed = one.frames.last(request)["homespec"]["decode_tok_s"]
    return float(1e3 / speed)


@pytest.mark.parametrize("period", [1, 3, 12], ids=["bad-draft", "middling", "good"])
@pytest.mark.parametrize("clients", [2, 4])
def test_together_is_never_slower_than_in_turns_and_shares_are_even(
    clients: int, period: int
) -> None:
    with worker(target, {"draft": draft(period)}, slots=4) as one:
        for request in range(1, 9):  # what was never measured is learned here …
            one.answer(request, PROMPTS[request % 4], max_tokens=TOKENS)
            one.clock.advance_ms(3000)
        turns_ms = sum(decode(one, [10 + i], [PROMPTS[i]]) for i in range(clients))
        asked = PROMPTS[:clients]
        decode(one, list(range(100, 100 + clients)), asked)  # … and of company here
        batches = [list(range(first, first + clients)) for first in (20, 30, 40)]
        together_ms = sum(decode(one, ids, asked) for ids in batches) / len(batches)
        plain_ms = decode(one, list(range(50, 50 + clients)), asked, speculation=PLAIN)
        times = [[ms_per_token(one, request) for request in ids] for ids in batches]

    assert together_ms <= turns_ms
    assert together_ms <= plain_ms / 0.97
    assert all(max(own) <= 1.3 * sum(own) / len(own) for own in times)
    for client in range(clients):
        assert one.text(20 + client) == one.text(10 + client) == one.text(50 + client)


@pytest.mark.parametrize("copying", [1, 2, 3])
def test_those_who_copy_do_not_make_the_others_crawl(copying: int) -> None:
    """Long answers that are easy to guess beside short ones that are not: those lose little of what
    they had without speculation, and the long ones go on gaining."""

    def logits(tokens: tuple[int, ...]) -> Any:
        loops = tokens[:20] in PROMPTS[:copying]
        return BASE(tokens[-2:] if loops else tokens)

    def some_loop(clock: FakeClock) -> FakeModel:
        return FakeModel(logits, clock=clock, context=2048, step_ms=lambda rows: 6.0 + 1.5 * rows)

    def times(one: Worker, first: int, **options: Any) -> list[float]:
        for client, prompt in enumerate(PROMPTS):
            tokens = 5 * TOKENS if client < copying else TOKENS
            one.generate(first + client, prompt, max_tokens=tokens, **options)
        one.work()
        return [ms_per_token(one, first + client) for client in range(4)]

    with worker(some_loop, {"ngram": None}, slots=4) as one:
        for request in range(1, 9):
            one.answer(request, PROMPTS[request % 4], max_tokens=TOKENS)
            one.clock.advance_ms(3000)
        own = times(one, 20)
        plain = times(one, 30, speculation=PLAIN)

    slower = [a / b for a, b in zip(own, plain, strict=True)]
    assert max(slower[:copying]) < 0.8
    assert max(slower[copying:]) <= 1.12


def test_a_long_prompt_is_read_in_pieces_while_others_decode() -> None:
    """Alone in chunks of 64; beside a decoding client in chunks that keep its tokens coming."""
    long_prompt = tuple((5 * i + i // 9) % VOCAB for i in range(600))
    with worker(target, {"draft": draft(3)}, slots=4) as one:
        model: Any = one.engine.loaded.target
        one.answer(1, long_prompt, max_tokens=2)
        alone = max(rows for step in model.steps for _, rows, _ in step)
        one.generate(2, PROMPTS[0], max_tokens=200, speculation=PLAIN)
        for _ in range(20):
            one.engine.pump()
        steps = len(model.steps)
        one.generate(3, (9, *long_prompt), max_tokens=2, speculation=PLAIN)
        gaps, before_s = [], one.clock()
        seen = len(one.frames.of(2))
        while one.frames.of(3) == []:
            one.engine.pump()
            # Texts go out several tokens at a time: what counts is the time for one.
            fresh = sum(frame["tokens"] for frame in one.frames.of(2)[seen:])
            if fresh:
                seen = len(one.frames.of(2))
                gaps += [(one.clock() - before_s) * 1e3 / fresh] * fresh
                before_s = one.clock()
        chunks = [max(rows for _, rows, _ in step) for step in model.steps[steps:]]

    assert alone == 64
    assert 8 <= max(chunks) < 64
    assert max(gaps) <= 3.2 * (6.0 + 1.5)  # three times a plain step, and a row more
    assert len(gaps) >= 600 // max(chunks) - 1  # a token with every chunk


def test_whoever_waited_longest_is_served_first_where_there_are_more_than_lanes() -> None:
    """Six clients in six slots of a two-lane model: nobody is left behind."""

    def two_lanes(clock: FakeClock) -> FakeModel:
        return FakeModel(BASE, clock=clock, context=2048, lanes=2)

    prompts = [*PROMPTS, PROMPTS[0][::-1], PROMPTS[1][::-1]]
    with worker(two_lanes, {}, slots=6) as one:
        ids = list(range(1, 7))
        decode(one, ids, prompts)
        times = [ms_per_token(one, request) for request in ids]

    assert max(times) <= 1.05 * sum(times) / len(times)
