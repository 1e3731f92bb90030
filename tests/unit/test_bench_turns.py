"""How the comparisons of `bench` share out their time, and what they make of paired ratios."""

from __future__ import annotations

import pytest

from bench.turns import Limits, Ratio


def test_every_section_has_a_turn_however_little_time_there_is() -> None:
    assert list(Limits(tokens=64, minutes=0.0, most_turns=5, threads=1).turns(0.1)) == [0]


def test_no_more_turns_than_asked_for() -> None:
    limits = Limits(tokens=64, minutes=1e6, most_turns=3, threads=1)

    assert list(limits.turns(0.1)) == [0, 1, 2]


def test_a_miss_is_one_only_if_it_is_more_than_noise() -> None:
    noisy = Ratio.of([0.90, 0.93, 0.95, 0.97, 0.98, 1.01, 1.03, 1.06])
    clear = Ratio.of([0.93, 0.935, 0.94, 0.94, 0.945, 0.945, 0.95, 0.955])
    good = Ratio.of([1.5] * 4)

    assert noisy.interval[0] < 0.975 < noisy.interval[1]
    assert (noisy.verdict(0.98), clear.verdict(0.98)) == ("within noise", "MISSED")
    assert good.verdict(0.98) == "met"
    assert good.quartiles == good.interval == (1.5, 1.5)
    assert clear.to_json()["pairs"] == 8


@pytest.mark.parametrize("pairs", [1, 2])
def test_a_pair_or_two_are_a_ratio_too(pairs: int) -> None:
    ratio = Ratio.of([1.25] * pairs)

    assert str(ratio) == "1.250 (1.25–1.25)"
