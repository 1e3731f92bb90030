"""What a step costs by rows, context and lanes, learned from every one that really ran.

Verification, other clients' tokens and prefill all look up the same curve. It knows nothing of
acceptance or of decisions. Not covered: memory, and what a step costs on another machine.

A price is a product (a sum in logarithms): the machine's pace now × all steps of several rows ×
this row count × this context × this row count at this context × this number of lanes. A slower
machine is therefore seen from any step, while "only wide steps got slower" stays distinguishable.
"""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Collection, Mapping
from itertools import accumulate
from statistics import median
from typing import Any

from homespecd.governor.grid import context_bucket, grid_rows
from homespecd.governor.levels import Level
from homespecd.governor.surprise import Surprise, log_ms

# A row more than one, relative to a step of one row, until it was measured. In between the int4
# (0.2) and the fp32 (0.05) curves seen on CPUs, nearer the dearer one: guessing low costs time.
_GUESSED_ROW = 0.15


class StepCurve:
    """Milliseconds of a target pass by rows, context and lanes."""

    def __init__(self, measured: Mapping[int, float] | None = None) -> None:
        self._pace = Level(0.0, 0.02, 0.0004)
        self._wide = Level(0.0, 0.005, 0.0002)
        self._rows: dict[int, Level] = {}
        self._known: list[int] = []
        self._contexts: dict[int, Level] = {}
        self._cells: dict[tuple[int, int], Level] = {}
        self._lanes: dict[int, Level] = {1: Level(0.0, 0.0, 0.0)}
        self._surprise = Surprise()
        # Prices at the known row counts, per context bucket and lanes, until something is learned.
        self._points: dict[tuple[int, int], list[float]] = {}
        self._prices: dict[tuple[int, int, int, int], list[float]] = {}
        self.changes = 0
        for rows, ms in (measured or {}).items():
            self._learn_row(grid_rows(rows), log_ms(ms), variance=0.003)

    def observe(self, *, rows: int, context: int, lanes: int, ms: float, count: int = 1) -> None:
        """Steps that really ran; ms: their median."""
        value = log_ms(ms)
        at, bucket = grid_rows(rows), context_bucket(context)
        if at not in self._rows:
            # The first of its kind starts where the curve was, or where it is if there was none.
            others = self._common(bucket, lanes) + (self._wide.mean if at > 1 else 0.0)
            curve = math.log(self.price(rows=at, context=context, lanes=lanes))
            start = curve if self._known else value
            self._learn_row(at, start - others, variance=self._doubt_of(at))
        self._forget_prices()
        levels = self._parts(at, bucket, lanes)
        error = value - sum(level.mean for level in levels)
        pace = [self._pace, self._wide] if at > 1 else [self._pace]
        self.changes += self._surprise.correct(levels, error=error, count=count, pace=pace)

    def price(self, *, rows: int, context: int, lanes: int) -> float:
        """Expected milliseconds of one step."""
        return self.prices(first=rows, last=rows, context=context, lanes=lanes)[0]

    def prices(self, *, first: int, last: int, context: int, lanes: int) -> list[float]:
        """Expected milliseconds of steps of first … last rows; never falls as rows grow."""
        bucket = context_bucket(context)
        key = (first, last, bucket, lanes)
        found = self._prices.get(key)
        if found is None:
            found = self._prices[key] = self._priced(first, last, bucket, lanes)
        return found

    def _priced(self, first: int, last: int, bucket: int, lanes: int) -> list[float]:
        if not self._known:
            common = self._common(bucket, lanes)
            return [math.exp(common) * _guessed_shape(rows) for rows in range(first, last + 1)]
        points = self._points.get((bucket, lanes))
        if points is None:
            points = self._points[bucket, lanes] = self._measured_points(bucket, lanes)
        known = self._known
        at = bisect_left(known, first)
        if known[at : at + last - first + 1] == [*range(first, last + 1)]:
            return points[at : at + last - first + 1]  # every one of them has run
        return [self._between(points, rows) for rows in range(first, last + 1)]

    def _measured_points(self, bucket: int, lanes: int) -> list[float]:
        common = self._common(bucket, lanes)
        wide, exp = common + self._wide.mean, math.exp
        rows, cells = self._rows, self._cells
        points = []
        for at in self._known:
            value = (wide if at > 1 else common) + rows[at].mean
            cell = cells.get((bucket, at))
            points.append(exp(value if cell is None else value + cell.mean))
        # A step has a row of each lane at least: what is said of fewer was never measured there,
        # and must not lift or lower what was.
        first = min(bisect_left(self._known, lanes), len(points) - 1)
        even = _levelled(points[first:])
        return [min(point, even[0]) for point in points[:first]] + even

    def table(self) -> dict[int, float]:
        """The curve of one lane at a short context, at the row counts that were measured."""
        return {
            rows: self.price(rows=rows, context=0, lanes=1) for rows in self._known if rows <= 64
        }

    def to_record(self) -> dict[str, Any]:
        return {
            "pace": self._pace.to_record(),
            "wide": self._wide.to_record(),
            "noise": self._surprise.noise,
            "rows": {str(rows): level.to_record() for rows, level in self._rows.items()},
            "contexts": {str(key): level.to_record() for key, level in self._contexts.items()},
            "cells": {f"{c}:{r}": level.to_record() for (c, r), level in self._cells.items()},
            "lanes": {str(key): level.to_record() for key, level in self._lanes.items()},
        }

    def restore(self, record: Mapping[str, Any]) -> None:
        """Take over what an earlier run learned; of what was measured now, what it did not know.

        Raises ValueError, KeyError or TypeError.
        """
        measured = {rows: level.mean for rows, level in self._rows.items()}
        self._pace.restore(record["pace"])
        self._wide.restore(record["wide"])
        self._surprise.restore(record["noise"])
        for rows, level in record["rows"].items():
            self._learn_row(grid_rows(max(1, int(rows))), 0.0, variance=0.0)
            self._rows[grid_rows(max(1, int(rows)))].restore(level)
        for bucket, level in record["contexts"].items():
            self._context(int(bucket)).restore(level)
        for key, level in record["cells"].items():
            bucket, rows = key.split(":")
            self._cell(int(bucket), int(rows)).restore(level)
        for lanes, level in record["lanes"].items():
            self._lane(int(lanes)).restore(level)
        if measured:
            self._join(measured, known={grid_rows(max(1, int(rows))) for rows in record["rows"]})
        self._forget_prices()

    def _join(self, measured: Mapping[int, float], *, known: Collection[int]) -> None:
        """Logarithms measured by themselves become rows of a curve that knows some others: what
        both have says how much busier the machine is now than it was."""
        curve = {rows: sum(one.mean for one in self._parts(rows, 0, 1)) for rows in measured}
        busier = [ms - curve[rows] for rows, ms in measured.items() if rows in known]
        off = median(busier) if busier else 0.0
        for rows, ms in measured.items():
            if rows not in known:
                self._rows[rows].mean += ms - curve[rows] - off

    def _forget_prices(self) -> None:
        self._points.clear()
        self._prices.clear()

    def _doubt_of(self, at: int) -> float:
        """Variance of what the curve says about a row count that never ran: small between two that
        did, large past them."""
        inside = bool(self._known) and self._known[0] < at < self._known[-1]
        return 0.01 if inside else 0.1

    def _learn_row(self, at: int, value: float, *, variance: float) -> None:
        if at not in self._rows:
            self._known.insert(bisect_left(self._known, at), at)
        self._rows[at] = Level(value, variance, 0.00003)

    def _common(self, bucket: int, lanes: int) -> float:
        return self._pace.mean + self._context(bucket).mean + self._lane(lanes).mean

    def _parts(self, at: int, bucket: int, lanes: int) -> list[Level]:
        parts = [self._pace, self._rows[at], self._context(bucket), self._cell(bucket, at)]
        if at > 1:
            parts.append(self._wide)
        if lanes > 1:
            parts.append(self._lane(lanes))
        return parts

    def _context(self, bucket: int) -> Level:
        level = self._contexts.get(bucket)
        if level is None:
            near = min(self._contexts, key=lambda other: abs(other - bucket), default=None)
            mean = 0.0 if near is None else self._contexts[near].mean
            # The first bucket is the reference that the rows were measured at.
            level = Level(mean, 0.001 if near is None else 0.05, 0.00003)
            self._contexts[bucket] = level
        return level

    def _cell(self, bucket: int, at: int) -> Level:
        return self._cells.setdefault((bucket, at), Level(0.0, 0.002, 0.00001))

    def _lane(self, lanes: int) -> Level:
        level = self._lanes.get(lanes)
        if level is None:
            near = min(self._lanes, key=lambda other: abs(other - lanes))
            level = self._lanes[lanes] = Level(self._lanes[near].mean, 0.1, 0.00003)
        return level

    def _between(self, points: list[float], rows: int) -> float:
        known = self._known
        at = bisect_left(known, rows)
        if at < len(known) and known[at] == rows:
            return points[at]
        if len(known) == 1 or at == 0:
            return points[0] * _guessed_shape(rows) / _guessed_shape(known[0])
        if at == len(known):
            at -= 1  # past the last point: along the last slope
        low, high = known[at - 1], known[at]
        slope = (points[at] - points[at - 1]) / (high - low)
        return points[at - 1] + slope * (rows - low)


def _levelled(points: list[float]) -> list[float]:
    """Points that rise: half-way between the highest before and the lowest after, so that one that
    is off lifts or lowers its neighbours only half as far."""
    if points == sorted(points):
        return points
    highest = accumulate(points, max)
    lowest = [*accumulate(reversed(points), min)]
    return [(high + low) / 2 for high, low in zip(highest, reversed(lowest), strict=True)]


def _guessed_shape(rows: int) -> float:
    return 1.0 + _GUESSED_ROW * (rows - 1)
