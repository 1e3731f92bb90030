"""The best block, the measured speed-up, and what turns speculation on and off."""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import Any

import pytest

from homespecd.governor.acceptance import Outlook
from homespecd.governor.choice import Block, Plain, best_block, paid_back
from homespecd.governor.switch import Backoff, PairSwitch, TimeBudget

STEPS = [7.25, 8.95, 10.6, 12.2, 13.8, 15.4, 17.0, 18.6, 20.2]


def block(chance: float, **given: Any) -> Block:
    """The one of `blocks` where nothing is at stake."""
    best, playable = blocks(chance, **given)
    assert playable == best
    return best


def blocks(
    chance: float,
    *,
    worst: float = 0.0,
    steps: Sequence[float] = STEPS,
    token_ms: float = 7.25,
    draft_ms: float = 0.0,
    read_ms: float = 0.0,
    others: float = 0.0,
    stake_ms: float = 1e9,
    proven: bool = False,
) -> tuple[Block, Block | None]:
    def accepted(chance: float) -> list[float]:
        return [sum(chance**i for i in range(1, k + 1)) for k in range(len(steps))]

    return best_block(
        drafter="draft",
        outlook=Outlook(accepted(chance), accepted(worst)),
        draft_ms=lambda k: k * draft_ms,
        step_ms=steps,
        row_ms=0.0,
        read_ms=read_ms,
        proven=proven,
        horizon=50.0,
        token_ms=token_ms,
        stake_ms=stake_ms,
        plain=Plain(steps[0], others),
    )


def test_what_pays_is_long_and_what_does_not_is_short() -> None:
    assert block(0.95).k == 8
    assert block(0.95).ratio > 2
    assert block(0.1).k == 1
    assert block(0.1).gain_ms < 0
    assert block(0.1).ratio < 1


def test_the_ratio_says_what_the_numbers_say() -> None:
    found = block(0.5, steps=[10.0, 12.0])

    assert (found.k, found.tokens, found.ms) == (1, 1.5, 12.0)
    assert found.ratio == pytest.approx(1.5 / 12 * 10)
    assert found.gain_ms == pytest.approx(0.5 * 7.25 - 2)


def test_a_draft_that_costs_as_much_as_the_target_does_not_pay() -> None:
    assert block(0.99, draft_ms=7.0).ratio < 1.0


def test_a_kernel_that_is_dear_for_two_rows_but_flat_after_is_not_given_up_at_two() -> None:
    steps = [29.0, 100.0, 195.0, 196.0, 197.0, 198.0, 199.0, 200.0, 201.0, 202.0, 203.0]

    assert block(0.99, steps=steps, token_ms=29.0).k == 10


def test_what_must_be_read_first_is_paid_back() -> None:
    assert block(0.8, read_ms=100.0).ratio < block(0.8).ratio
    # Never more than all of it, by however long a block.
    assert paid_back(100.0, tokens=5.0, horizon=50.0) == pytest.approx(10.0)
    assert paid_back(100.0, tokens=9.0, horizon=3.0) == 100.0


def test_where_tokens_are_cheap_anyway_a_slow_block_gains_nothing() -> None:
    assert block(0.8, draft_ms=2.0, token_ms=9.0).gain_ms > 0
    assert block(0.8, draft_ms=2.0, token_ms=1.5).gain_ms < 0


def test_with_others_in_the_step_rows_are_dearer() -> None:
    assert block(0.7, others=3.0).k < block(0.7).k
    stretched = block(0.999, others=1.0, steps=[10.0 * k for k in range(1, 10)])
    assert stretched.k == 1  # nobody waits more than two and a half times as long


def test_a_block_is_no_longer_than_what_its_loss_may_be() -> None:
    best, playable = blocks(0.95, stake_ms=5.0)

    assert best.k == 8
    assert playable is not None
    assert playable.k == 3  # three rows more take 4.95 ms
    assert blocks(0.95, stake_ms=1.0)[1] is None


def test_what_a_draft_must_read_is_at_stake_too() -> None:
    assert blocks(0.95, read_ms=100.0, stake_ms=50.0)[1] is None
    assert blocks(0.95, read_ms=40.0, stake_ms=50.0)[1] is not None


def test_a_block_that_pays_even_at_worst_puts_nothing_at_stake() -> None:
    best, playable = blocks(0.95, worst=0.8, stake_ms=0.0)

    assert playable == best


def feed(switch: PairSwitch, ratio: float, rounds: int) -> None:
    for _ in range(rounds):
        switch.see(plain_ms=ratio, spent_ms=1.0)


def rounds_until(switch: PairSwitch, *, on: bool, ratio: float) -> int:
    """How many rounds of such a ratio turn it on or off."""
    for rounds in range(1, 300):
        feed(switch, ratio, 1)
        if switch.on is on:
            return rounds
    raise AssertionError(f"300 rounds at {ratio} do not turn it {'on' if on else 'off'}")


def test_the_first_rounds_decide_nothing_and_clear_losses_soon_do() -> None:
    switch = PairSwitch(1.0)
    feed(switch, 0.5, 20)
    assert switch.on
    feed(switch, 0.5, 10)
    assert not switch.on


def test_it_comes_back_when_it_wins_and_each_time_later() -> None:
    switch = PairSwitch(1.0)
    waits = []
    for _ in range(4):
        rounds_until(switch, on=False, ratio=0.5)
        waits.append(rounds_until(switch, on=True, ratio=2.0))

    assert waits == [8, 16, 32, 64]


def test_a_long_time_without_a_relapse_is_forgiven() -> None:
    switch = PairSwitch(1.0)
    for _ in range(3):
        rounds_until(switch, on=False, ratio=0.5)
        rounds_until(switch, on=True, ratio=2.0)
    feed(switch, 2.0, 1100)
    rounds_until(switch, on=False, ratio=0.1)

    assert rounds_until(switch, on=True, ratio=2.0) == 8


def test_after_doubt_the_verdict_stays_and_new_rounds_decide() -> None:
    known, doubted = PairSwitch(1.0), PairSwitch(1.0)
    for switch in (known, doubted):
        feed(switch, 2.0, 200)

    doubted.doubt()

    assert doubted.on
    assert rounds_until(doubted, on=False, ratio=0.5) < 40
    assert rounds_until(known, on=False, ratio=0.5) > 100


def test_a_draft_as_fast_as_plain_does_not_flicker() -> None:
    switch, rng = PairSwitch(1.0), random.Random(1)
    for _ in range(5000):
        switch.see(plain_ms=rng.choice([0.5, 1.0, 1.5]), spent_ms=1.0)

    assert switch.flips <= 4


def test_the_budget_is_a_share_of_the_time_and_cannot_be_hoarded() -> None:
    budget = TimeBudget(0.02)
    assert not budget.affords(0.1)
    budget.elapse(1000.0, 10.0)
    assert budget.affords(10.0)
    assert not budget.affords(20.1)
    budget.spend(10.0)
    assert not budget.affords(10.1)
    budget.elapse(1e9, 10.0)
    assert not budget.affords(241.0)


def test_looks_become_rarer_while_nothing_is_new() -> None:
    backoff = Backoff()
    gaps = []
    for _ in range(4):
        waited = 0
        while not backoff.due:
            backoff.round()
            waited += 1
        gaps.append(waited)
        backoff.nothing_new()
    assert gaps == [24, 48, 96, 192]

    backoff.surprised()
    assert backoff.due
