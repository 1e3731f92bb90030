"""The measured speed-up: which rounds are compared with which."""

from __future__ import annotations

import json
from typing import Any

import pytest

from homespecd.governor.speedup import SpeedupMeter, circumstances

CELL = circumstances(100, 0)


def measured_at(pace: float, *, plain: int, speculative: int) -> SpeedupMeter:
    """A draft whose token takes twice as long as a plain one; first the plain rounds."""
    meter = SpeedupMeter()
    go_on(meter, pace, plain=plain, speculative=speculative)
    return meter


def go_on(meter: SpeedupMeter, pace: float, *, plain: int = 0, speculative: int = 0) -> None:
    for _ in range(plain):
        meter.add_plain(CELL, 10.0 * pace)
    for _ in range(speculative):
        meter.add_speculative("draft", CELL, ms=20.0 * pace, tokens=1)


def test_the_meter_compares_like_with_like() -> None:
    meter = SpeedupMeter()
    short, long = circumstances(100, 0), circumstances(9000, 0)
    for _ in range(20):
        meter.add_plain(short, 10.0)
        meter.add_plain(long, 30.0)
        meter.add_speculative("draft", long, ms=30.0, tokens=2)

    measured = meter.measured("draft")

    assert measured.measured == pytest.approx(2.0)
    assert measured.plain_ms_per_token == pytest.approx(30.0)
    assert measured.speculative_ms_per_token == pytest.approx(15.0)
    assert (measured.plain_samples, measured.speculative_samples) == (40, 20)
    assert meter.measured("stranger").measured is None
    assert meter.measured(None).measured == pytest.approx(2.0)


def test_without_both_sides_there_is_no_speedup() -> None:
    meter = SpeedupMeter()
    assert meter.measured(None).plain_ms_per_token is None
    meter.add_speculative("draft", circumstances(100, 0), ms=30.0, tokens=2)
    assert meter.measured("draft").measured is None
    meter.add_plain(circumstances(100, 3), 10.0)
    assert meter.measured("draft").measured is None


def test_one_spike_does_not_make_a_speedup() -> None:
    meter, cell = SpeedupMeter(), circumstances(100, 0)
    for _ in range(20):
        meter.add_plain(cell, 10.0)
        meter.add_speculative("draft", cell, ms=10.0, tokens=1)
    meter.add_plain(cell, 1000.0)

    speedup = meter.measured("draft").measured

    assert speedup is not None
    assert speedup < 1.15


def test_a_round_in_which_nothing_was_right_is_no_spike() -> None:
    """It takes as long as those of many tokens: by the token that is far more, and true."""
    meter, cell = SpeedupMeter(), circumstances(100, 0)
    for _ in range(20):
        meter.add_speculative("draft", cell, ms=100.0, tokens=10)
    for _ in range(20):
        meter.add_plain(cell, 10.0)
        meter.add_speculative("draft", cell, ms=100.0, tokens=1)

    spent = meter.measured("draft").speculative_ms_per_token

    assert spent == pytest.approx(4000 / 220, rel=0.1)


@pytest.mark.parametrize("pace", [0.2, 5.0])
def test_sides_that_ran_at_different_paces_are_not_compared(pace: float) -> None:
    """The machine gets slower (or quicker) after the draft was given up: it is no better for it."""
    meter = measured_at(1.0, plain=50, speculative=50)
    meter.doubt()
    go_on(meter, pace, plain=50)

    measured = meter.measured("draft")

    assert measured.measured == pytest.approx(0.5)
    assert (measured.plain_samples, measured.speculative_samples) == (100, 50)
    assert meter.plain_ms_per_token == pytest.approx(10.0 * pace)


@pytest.mark.parametrize("pace", [0.2, 5.0])
def test_nor_is_a_draft_that_ran_on_while_nothing_was_plain(pace: float) -> None:
    meter = measured_at(1.0, plain=50, speculative=50)
    meter.doubt()
    go_on(meter, pace, speculative=50)

    assert meter.measured("draft").measured == pytest.approx(0.5)
    assert meter.measured(None).measured == pytest.approx(0.5)


@pytest.mark.parametrize("pace", [0.05, 1.0, 20.0])
def test_what_runs_at_the_new_pace_soon_says_more_than_what_was_before(pace: float) -> None:
    meter = measured_at(pace, plain=50, speculative=50)
    meter.doubt()
    for _ in range(30):
        meter.add_plain(CELL, 30.0)
        meter.add_speculative("draft", CELL, ms=30.0, tokens=3)

    measured = meter.measured("draft")

    assert measured.measured == pytest.approx(3.0, rel=0.35)
    assert measured.plain_ms_per_token == pytest.approx(30.0)


def test_in_the_end_nothing_is_left_of_what_was_before() -> None:
    meter = measured_at(1.0, plain=50, speculative=50)
    meter.doubt()
    for _ in range(1000):
        meter.add_plain(CELL, 30.0)
        meter.add_speculative("draft", CELL, ms=30.0, tokens=3)

    assert meter.measured("draft").measured == pytest.approx(3.0, rel=1e-3)


def test_a_comparison_outlives_one_change_after_another() -> None:
    meter = measured_at(1.0, plain=50, speculative=50)
    for pace in (2.0, 3.0, 1.0):
        meter.doubt()
        go_on(meter, pace, plain=5)
    meter.doubt()

    assert meter.measured("draft").measured == pytest.approx(0.5)
    assert meter.plain_ms_per_token == pytest.approx(10.0)


def test_after_doubt_new_samples_decide() -> None:
    meter = measured_at(1.0, plain=50, speculative=0)
    meter.doubt()
    assert meter.plain_rounds(CELL) == 0.0  # look again
    go_on(meter, 2.0, plain=1)

    assert meter.plain_ms_per_token == pytest.approx(20.0)


def test_a_text_read_before_a_change_is_still_a_part_of_what_its_tokens_cost() -> None:
    meter = SpeedupMeter()
    meter.add_reading("draft", CELL, 100.0)
    meter.doubt()
    go_on(meter, 1.0, plain=1, speculative=5)

    assert meter.measured("draft").speculative_ms_per_token == pytest.approx(40.0, rel=0.02)


def test_all_of_it_can_be_written_down_and_taken_up() -> None:
    meter = measured_at(1.0, plain=50, speculative=50)
    meter.doubt()
    go_on(meter, 2.0, plain=3, speculative=2)
    again = SpeedupMeter()
    again.restore_plain(json.loads(json.dumps(meter.plain_to_record())))
    again.restore("draft", json.loads(json.dumps(meter.to_record("draft"))))

    for name in ("draft", None):
        assert again.measured(name) == meter.measured(name)
    again.doubt()
    meter.doubt()
    assert again.measured("draft") == meter.measured("draft")


@pytest.mark.parametrize(
    "wrong",
    [
        {"before": [1.0, 1.0, 1.0]},
        {"before": [1.0, 0.0, 1.0, 1.0]},
        {"before": [1.0, float("nan"), 1.0, 1.0]},
        {"before": None},
        {"cells": {"0:0": [1.0, 0.0, 1.0]}},
        {"cells": {"0:0": [1.0, 1.0, 0.0]}},
        {"cells": {"0:0": [1.0, 1.0]}},
        {"cells": {"0": [1.0, 1.0, 1.0]}},
        {"cells": []},
        {"samples": -1},
        {"samples": "many"},
    ],
)
def test_a_record_that_makes_no_sense_is_refused(wrong: dict[str, Any]) -> None:
    record = measured_at(1.0, plain=1, speculative=1).to_record("draft")
    with pytest.raises((ValueError, TypeError, AttributeError)):
        SpeedupMeter().restore("draft", record | wrong)


def test_plain_rounds_without_tokens_are_compared_with_nothing() -> None:
    """Only a record that was tampered with says so."""
    meter = measured_at(1.0, plain=1, speculative=1)
    record = meter.plain_to_record()
    meter.restore_plain(record | {"cells": {"0:0": [5.0, 0.0, 0.0]}})

    assert meter.measured("draft").measured is None
    assert meter.plain_ms_per_token is None
