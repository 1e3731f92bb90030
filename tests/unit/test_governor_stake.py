"""What a drafter may lose in a request."""

from __future__ import annotations

import json

import pytest

from homespecd.governor.stake import Advance, Stake, Trust


def known(*gained: float) -> Trust:
    """How a drafter fared in some requests."""
    trust = Trust()
    for one in gained:
        trust.remember(one)
    return trust


def staked(trust: Trust | None = None) -> Stake:
    """What a drafter may lose that nobody needs to be patient with any more."""
    advance = Advance()
    advance.cover(1e9)
    return Stake((trust or Trust()).first_stake, advance)


def test_a_text_in_which_nothing_is_right_costs_its_stake_and_then_a_trickle() -> None:
    stake = staked()
    lost = 0.0
    for _ in range(96):
        if stake.rounds >= 0.5:  # what a block of four costs on a compute-bound machine
            stake.see(plain_ms=10.0, spent_ms=15.0, round_ms=10.0)
            lost += 0.5
        stake.token(1)

    assert 1.0 <= lost <= 0.02 * 96


def test_a_short_block_that_was_right_earns_a_long_one() -> None:
    stake = staked()
    assert stake.rounds < 2.5  # what a block of sixteen costs there

    stake.see(plain_ms=50.0, spent_ms=15.0, round_ms=10.0)

    assert stake.rounds > 2.5


def test_gains_do_not_pay_for_endless_losses() -> None:
    stake = staked()
    for _ in range(500):
        stake.see(plain_ms=100.0, spent_ms=20.0, round_ms=10.0)
    rounds = 0
    while stake.rounds >= 1.0:
        stake.see(plain_ms=10.0, spent_ms=20.0, round_ms=10.0)
        rounds += 1

    assert rounds <= 6


def test_tokens_that_would_have_been_right_speak_for_another_try() -> None:
    stake = staked()
    while stake.rounds > 0:
        stake.see(plain_ms=0.0, spent_ms=10.0, round_ms=10.0)
    least = stake.rounds

    for _ in range(4):
        stake.encourage()

    assert stake.rounds == pytest.approx(least + 0.6)


def test_who_gained_in_every_text_may_lose_more_and_who_lost_in_one_may_not() -> None:
    always, mostly = known(*[20.0] * 6), known(*[20.0] * 5, -0.5)

    assert staked(always).rounds == 6.0
    assert staked(mostly).rounds == staked().rounds == 1.2
    for _ in range(16):
        mostly.remember(20.0)
    assert staked(mostly).rounds == 6.0  # that one text is long ago


def test_who_lost_every_time_may_lose_less_until_it_gains_once() -> None:
    trust = known(-0.5, -0.9)
    assert trust.first_stake == 1.2  # twice is bad luck

    trust.remember(-0.1)
    assert trust.first_stake == pytest.approx(0.3)

    trust.remember(0.2)
    assert trust.first_stake == 1.2


def test_the_first_losses_of_a_drafter_are_borne_once() -> None:
    advance = Advance()
    left = []
    for _ in range(8):
        stake = Stake(1.2, advance)
        stake.see(plain_ms=0.0, spent_ms=10.0, round_ms=10.0)
        left.append(stake.rounds)

    assert left[0] == 1.2
    assert left[-1] == pytest.approx(0.2)
    again = Advance()
    again.restore(json.loads(json.dumps(advance.to_record())))
    assert again.cover(1.0) == 0.0
