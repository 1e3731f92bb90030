"""The cost curves: known points, what lies between them, noise, spikes, changes."""

from __future__ import annotations

import json
import random
from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from homespecd.governor.calibrate import at_once, calibrate, calibration_plan, still_unknown
from homespecd.governor.draft_costs import DraftCurve
from homespecd.governor.grid import context_bucket, grid_rows
from homespecd.governor.levels import Level
from homespecd.governor.step_costs import StepCurve
from homespecd.governor.surprise import Surprise

INT4 = {1: 7.25, 2: 8.95, 4: 12.2, 8: 18.6, 16: 31.4}


def price(curve: StepCurve, rows: int, context: int = 100, lanes: int = 1) -> float:
    return curve.price(rows=rows, context=context, lanes=lanes)


def test_measured_points_are_the_curve_and_between_them_it_is_straight() -> None:
    curve = StepCurve(INT4)

    for rows, ms in INT4.items():
        assert price(curve, rows) == pytest.approx(ms)
    assert price(curve, 6) == pytest.approx((12.2 + 18.6) / 2)
    assert price(curve, 24) == pytest.approx(31.4 + 8 * (31.4 - 18.6) / 8)


def test_a_curve_that_nobody_measured_still_has_a_shape() -> None:
    curve = StepCurve()
    curve.observe(rows=1, context=10, lanes=1, ms=10.0)

    assert price(curve, 1) == pytest.approx(10.0)
    assert 10.0 < price(curve, 2) < 20.0


def test_a_jump_stays_a_jump() -> None:
    """Early int4 kernels on CUDA: two rows cost three times as much as one."""
    curve = StepCurve({1: 29.0, 2: 100.0, 3: 195.0, 8: 200.0})

    assert [round(price(curve, rows)) for rows in (1, 2, 3, 5)] == [29, 100, 195, 197]


def test_spikes_hardly_move_a_price() -> None:
    curve, rng = StepCurve(INT4), random.Random(3)
    for _ in range(400):
        spike = 8.0 if rng.random() < 0.03 else 1.0
        curve.observe(rows=1, context=100, lanes=1, ms=7.25 * rng.lognormvariate(0, 0.05) * spike)

    assert price(curve, 1) == pytest.approx(7.25, rel=0.1)
    assert curve.changes == 0


@pytest.mark.parametrize(("between", "changed"), [(0.0, True), (-9.0, False)])
def test_a_change_is_off_to_the_same_side_again_and_again(between: float, changed: bool) -> None:
    """What is off to the other side in between begins the count anew."""
    surprise, level = Surprise(), Level(0.0, 0.0, 0.0)
    errors = [9.0, 9.0, 9.0, between or 9.0, 9.0, 9.0, 9.0]
    seen = [surprise.correct([level], error=one, count=1, pace=[]) for one in errors]

    assert any(seen) is changed


def test_a_slower_machine_is_seen_from_any_step_within_a_few() -> None:
    curve = StepCurve(INT4)
    for _ in range(100):
        curve.observe(rows=4, context=100, lanes=1, ms=12.2)
    for _ in range(8):
        curve.observe(rows=4, context=100, lanes=1, ms=24.4)

    assert price(curve, 4) == pytest.approx(24.4, rel=0.1)
    # Rows that did not run: half of it at least is put down to the machine.
    assert price(curve, 1) > 7.25 * 1.3
    assert curve.changes > 0


def test_a_longer_context_has_prices_of_its_own() -> None:
    curve = StepCurve(INT4)
    for _ in range(60):
        curve.observe(rows=2, context=100, lanes=1, ms=8.95)
        curve.observe(rows=2, context=3000, lanes=1, ms=13.0)

    assert price(curve, 2, context=100) == pytest.approx(8.95, rel=0.05)
    assert price(curve, 2, context=3000) == pytest.approx(13.0, rel=0.05)
    assert price(curve, 1, context=3000) > 1.2 * price(curve, 1, context=100)


def test_more_lanes_have_prices_of_their_own() -> None:
    curve = StepCurve(INT4)
    for _ in range(60):
        curve.observe(rows=4, context=100, lanes=1, ms=12.2)
        curve.observe(rows=4, context=100, lanes=4, ms=18.3)

    assert price(curve, 4, lanes=1) == pytest.approx(12.2, rel=0.05)
    assert price(curve, 4, lanes=4) == pytest.approx(18.3, rel=0.05)


@settings(max_examples=60, deadline=None)
@given(
    st.lists(
        st.tuples(
            st.integers(1, 300),
            st.integers(0, 200_000),
            st.integers(1, 4),
            st.floats(0.0, 1e6, allow_nan=False),
        ),
        max_size=40,
    )
)
def test_prices_are_positive_and_never_fall_with_rows(
    steps: list[tuple[int, int, int, float]],
) -> None:
    curve = StepCurve()
    for rows, context, lanes, ms in steps:
        curve.observe(rows=rows, context=context, lanes=lanes, ms=ms)

    for context in (0, 5000):
        prices = curve.prices(first=1, last=80, context=context, lanes=1)
        assert all(price > 0 for price in prices)
        assert all(after >= before * 0.999 for before, after in pairwise(prices))
    again = StepCurve()
    again.restore(json.loads(json.dumps(curve.to_record())))
    assert again.to_record() == curve.to_record()


def test_rows_and_contexts_are_kept_on_grids() -> None:
    assert [grid_rows(rows) for rows in (1, 20, 21, 60, 67, 10_000)] == [1, 20, 20, 64, 64, 4096]
    assert [context_bucket(context) for context in (1, 511, 512, 1023, 1024)] == [0, 0, 1, 1, 2]


def test_a_draft_costs_by_length_and_by_what_it_has_to_read() -> None:
    curve = DraftCurve()
    assert curve.price(4) == 0.0  # unknown: worth a try

    for _ in range(30):
        curve.observe(tokens=2, ms=10.0)
        curve.observe(tokens=4, ms=20.0)
    curve.observe_catch_up(tokens=2, rows=100, ms=90.0)

    assert curve.price(2) == pytest.approx(10.0, rel=0.05)
    assert curve.price(3) == pytest.approx(15.0, rel=0.05)
    assert curve.price(8) == pytest.approx(40.0, rel=0.05)
    assert curve.catch_up(50) == pytest.approx(40.0, rel=0.05)
    curve.observe_catch_up(tokens=2, rows=100, ms=890.0)  # while another program ran
    assert curve.catch_up(50) == pytest.approx(0.7 * 40.0 + 0.3 * 440.0, rel=0.05)


def test_one_slow_first_proposal_of_a_length_does_not_set_its_price() -> None:
    curve = DraftCurve({1: 5.0, 4: 20.0})

    curve.observe(tokens=2, ms=200.0)

    assert curve.price(2) < 25.0


@pytest.mark.parametrize("busy", [1.0, 3.0])
def test_what_is_measured_now_joins_what_was_known(busy: float) -> None:
    """Plain steps are known from before; on a machine that has other work now, wider ones are not
    taken for dearer than they are."""
    before = StepCurve({1: 7.25})
    for _ in range(50):
        before.observe(rows=1, context=10, lanes=1, ms=9.0)
        before.observe(rows=1, context=2000, lanes=1, ms=12.0)
    now = StepCurve({1: busy * 9.0, 2: busy * 11.0, 8: busy * 23.0})

    now.restore(before.to_record())

    assert price(now, 1) == pytest.approx(price(before, 1))
    assert price(now, 2) / price(now, 1) == pytest.approx(11.0 / 9.0)
    assert price(now, 8) / price(now, 1) == pytest.approx(23.0 / 9.0)


def test_what_was_known_is_not_measured_again() -> None:
    plan = calibration_plan(24)

    assert still_unknown(plan, {}) == plan
    assert still_unknown(plan, StepCurve({1: 7.0}).table()) == plan
    assert still_unknown(plan, StepCurve({1: 7.0, 2: 9.0, 25: 40.0}).table())[:3] == [1, 4, 8]
    assert still_unknown(plan, StepCurve(dict.fromkeys(plan, 7.0)).table()) == []


def test_the_plan_measures_what_matters_first() -> None:
    assert calibration_plan(16) == [1, 2, 17, 4, 8, 64, 3, 6, 12, 16]
    assert calibration_plan(3) == [1, 2, 4, 64, 3]


def test_calibration_ignores_cold_passes_and_one_interrupted_one() -> None:
    calls: list[int] = []

    def step_of(rows: int) -> float:
        calls.append(rows)
        if len(calls) <= 2:
            return 100.0
        return INT4[rows] * (10.0 if len(calls) == 4 else 1.0)

    measured = at_once(calibrate(step_of, [1, 2, 16], limit_ms=1e6))

    assert measured == {1: 7.25, 2: 8.95, 16: 31.4}


@given(
    base_ms=st.floats(0.1, 5000.0),
    row_ms=st.floats(0.0, 500.0),
    limit_ms=st.floats(0.0, 5000.0),
)
def test_calibration_is_bounded_in_time(base_ms: float, row_ms: float, limit_ms: float) -> None:
    spent: list[float] = []

    def step_of(rows: int) -> float:
        spent.append(base_ms + row_ms * rows)
        return spent[-1]

    measured = at_once(calibrate(step_of, calibration_plan(8), limit_ms=limit_ms))

    assert 1 in measured
    # Three first steps cannot be known beforehand.
    assert sum(spent) <= limit_ms + 3 * (base_ms + row_ms)


@pytest.mark.parametrize(
    ("stored_ms", "timed_ms", "least", "most"),
    [(30.0, 3.0, 2.0, 12.0), (3.0, 30.0, 2.9, 3.1), (3.0, 2.5, 2.9, 3.1)],
    ids=["far-quicker-now", "slower-now", "much-the-same"],
)
def test_a_draft_that_was_timed_on_a_busy_machine_is_believed_when_it_is_quick(
    stored_ms: float, timed_ms: float, least: float, most: float
) -> None:
    earlier = DraftCurve({1: stored_ms, 8: 8 * stored_ms})
    now = DraftCurve({1: timed_ms, 8: 8 * timed_ms})

    now.restore(json.loads(json.dumps(earlier.to_record())))

    assert least <= now.price(1) <= most
