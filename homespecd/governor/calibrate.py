"""Which steps to time where nobody knows what they take, and for how long.

A pure plan and a loop over a given `step_of`; the loop adds up what it is told and looks at no
clock, so a slow model is measured less thoroughly, not longer.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Generator, Sequence
from statistics import median
from typing import TypeVar

from homespecd.governor.grid import grid_rows

T = TypeVar("T")

# The first passes grow arenas and wake the clock up; their times say nothing.
_WARM_UP_STEPS = 2

# Odd one out of three: one interrupted pass does not matter.
_PASSES = 3


def calibration_plan(max_k: int, prefill_rows: int = 64) -> list[int]:
    """Row counts in the order of what they are worth: where time runs out, the rest is read off the
    curve. A plain step and a short block first, the longest block next (what lies between two
    points is known far better than what lies past them), then the gaps, then a chunk of prompt.
    """
    wanted = [1, 2, max_k + 1, 4, 8, prefill_rows, 3, 6, 12, 16]
    longest = max_k + 1
    plan: list[int] = []
    for rows in wanted:
        if (rows <= longest or rows == prefill_rows) and rows not in plan:
            plan.append(rows)
    return plan


def still_unknown(plan: Sequence[int], known: Collection[int]) -> list[int]:
    """What is left of a plan where the curve has points already (`StepCurve.table`).

    A plain step stays in it: beside what it took before, it says how busy the machine is now.
    """
    unknown = [rows for rows in plan if grid_rows(rows) not in known]
    return [plan[0], *unknown] if unknown and plan[0] not in unknown else unknown


def calibrate(
    step_of: Callable[[int], float], plan: Sequence[int], *, limit_ms: float
) -> Generator[None, None, dict[int, float]]:
    """Time steps of the planned row counts: rows → milliseconds (median of up to three passes).

    One step for each turn of the generator, so that whoever has models answer meanwhile may go on
    with them in between; see `at_once`.

    Args:
        step_of: runs a step of so many rows and returns its milliseconds.
        plan: row counts, the most important first.
        limit_ms: no step is begun that would end past this, as far as can be told. Only the first
            row count is always measured, once.

    Passes go round the plan rather than row by row, so that a disturbance does not fall on one
    row count alone and a short limit still gives every row count its turn.
    """
    spent_ms = 0.0
    times: dict[int, list[float]] = {}
    for _ in range(_WARM_UP_STEPS if plan else 0):
        if spent_ms <= limit_ms / 4:
            spent_ms += step_of(plan[0])
            yield
    for _ in range(_PASSES):
        for rows in plan:
            expected_ms = _guess(times, rows)
            if times and spent_ms + expected_ms > limit_ms:
                continue
            ms = step_of(rows)
            spent_ms += ms
            times.setdefault(rows, []).append(ms)
            yield
    return {rows: median(times[rows]) for rows in sorted(times)}


def at_once(measuring: Generator[None, None, T]) -> T:
    """All turns of a generator, one after the other; what it returns."""
    while True:
        try:
            next(measuring)
        except StopIteration as done:
            result: T = done.value
            return result


def _guess(times: dict[int, list[float]], rows: int) -> float:
    """What a step will take: as it did, or as the widest one known, row by row."""
    if rows in times:
        return max(times[rows])
    if not times:
        return 0.0
    widest = max(times)
    ms = max(times[widest])
    return ms if rows <= widest else ms * rows / widest
