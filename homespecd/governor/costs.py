"""What a step and a draft cost, in milliseconds, learned from every one that really ran.

`StepCurve` prices a target pass by its rows; verification, other clients' tokens and prefill all
look up the same curve. `DraftCurve` prices a proposal by its length. Neither knows anything of
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

from homespecd.governor.levels import Level, finite, share

FLOOR_MS = 1e-3
_CEILING_MS = 1e7

# Rows above which the curve is kept on a grid instead of row by row: blocks to verify are short,
# prefill chunks are long and need no such detail.
_EXACT_ROWS = 20
_GRID = (24, 32, 48, 64, 96, 128, 192, 256, 384, 512, 768, 1024, 2048, 4096)

# A row more than one, relative to a step of one row, until it was measured. In between the int4
# (0.2) and the fp32 (0.05) curves seen on CPUs, nearer the dearer one: guessing low costs time.
_GUESSED_ROW = 0.15

# Variances of logarithms. 0.01 = 10 % standard deviation of one step, which is what an otherwise
# idle machine shows; the noise is learned from there within the bounds.
_NOISE, _NOISE_LOW, _NOISE_HIGH = 0.01, 0.001, 0.1
_NOISE_RATE = 0.03

# A measurement further off than this many standard deviations counts as this many (a spike from
# another program must not move a price); the same side so often in a row is no spike but a change,
# and the pace becomes unsure enough to follow it within two or three steps more.
_CLAMP = 2.5
_CHANGE_AFTER = 4
_CHANGE_VARIANCE = 0.2

# A draft that needs less than this part of what it should is believed at once.
_FAR_QUICKER = 0.5


def grid_rows(rows: int) -> int:
    """The row count under which a step of `rows` rows is kept."""
    if rows <= _EXACT_ROWS:
        return rows
    at = bisect_left(_GRID, rows)
    if at == len(_GRID):
        return _GRID[-1]
    low = _GRID[at - 1] if at else _EXACT_ROWS
    return low if rows - low < _GRID[at] - rows else _GRID[at]


def context_bucket(context: int) -> int:
    """0 up to 511 tokens, then one bucket per doubling."""
    return max(0, context.bit_length() - 9)


def bucket_context(bucket: int) -> int:
    """A context of this bucket."""
    return 0 if bucket == 0 else 1 << (bucket + 8)


class _Surprise:
    """The noise of one kind of measurement, and whether it has left its level for good."""

    def __init__(self) -> None:
        self.noise = _NOISE
        self._same_side = 0

    def tame(self, error: float, variance: float, count: int) -> tuple[float, bool]:
        """The error of `count` measurements, spikes cut, and whether it is a lasting change."""
        width = _CLAMP * math.sqrt(self.noise + variance)
        tamed = min(max(error, -width), width)
        if tamed == error:
            self._same_side = 0
            squared = max(0.0, error * error - variance) * count
            self.noise += min(0.5, _NOISE_RATE * count) * (squared - self.noise)
            self.noise = min(max(self.noise, _NOISE_LOW), _NOISE_HIGH)
            return error, False
        side = count if error > 0 else -count
        self._same_side = self._same_side + side if self._same_side * side > 0 else side
        if abs(self._same_side) >= _CHANGE_AFTER:
            # The variance has been raised: the whole error may be taken now.
            return error, True
        return tamed, False


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
        self._surprise = _Surprise()
        # Prices at the known row counts, per context bucket and lanes, until something is learned.
        self._points: dict[tuple[int, int], list[float]] = {}
        self._prices: dict[tuple[int, int, int, int], list[float]] = {}
        self.changes = 0
        for rows, ms in (measured or {}).items():
            self._learn_row(grid_rows(rows), math.log(max(ms, FLOOR_MS)), variance=0.003)

    def observe(self, *, rows: int, context: int, lanes: int, ms: float, count: int = 1) -> None:
        """Steps that really ran; ms: their median."""
        value = math.log(max(ms, FLOOR_MS))
        at, bucket = grid_rows(rows), context_bucket(context)
        if at not in self._rows:
            # The first of its kind starts where the curve was, or where it is if there was none.
            others = self._common(bucket, lanes) + (self._wide.mean if at > 1 else 0.0)
            curve = math.log(self.price(rows=at, context=context, lanes=lanes))
            start = curve if self._known else value
            self._learn_row(at, start - others, variance=self._doubt_of(at))
        self._forget_prices()
        levels = self._parts(at, bucket, lanes)
        variance = sum(level.variance for level in levels)
        error = value - sum(level.mean for level in levels)
        error, changed = self._surprise.tame(error, variance, count)
        if changed:
            self.changes += 1
            self._pace.variance = max(self._pace.variance, _CHANGE_VARIANCE)
            if at > 1:
                self._wide.variance = max(self._wide.variance, _CHANGE_VARIANCE)
        share(levels, error, self._surprise.noise / count)

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

    @property
    def knows_single(self) -> bool:
        return 1 in self._rows

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
        self._surprise.noise = finite(record["noise"], _NOISE_LOW, _NOISE_HIGH)
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


class DraftCurve:
    """Milliseconds of a proposal by its length, and of a row that the draft has to catch up on."""

    def __init__(self, measured: Mapping[int, float] | None = None) -> None:
        self._pace = Level(0.0, 0.02, 0.001)
        self._points: dict[int, Level] = {}
        self._known: list[int] = []
        self._surprise = _Surprise()
        self._row_ms: float | None = None
        self._prices: dict[int, float] = {}  # until something is learned
        self._timed = dict(measured or {})
        for tokens, ms in self._timed.items():
            self._learn(tokens, math.log(max(ms, FLOOR_MS)), 0.003)

    def observe(self, *, tokens: int, ms: float, count: int = 1) -> None:
        """Proposals of `tokens` tokens by a draft that was up to date; ms: their median."""
        value = math.log(max(ms, FLOOR_MS))
        point = self._points.get(tokens)
        if point is None:
            # As with rows: the first of its kind starts where the curve was, if there was one.
            start = math.log(max(self.price(tokens), FLOOR_MS)) if self._known else value
            self._learn(tokens, start - self._pace.mean, 0.1)
            point = self._points[tokens]
        levels = [self._pace, point]
        variance = self._pace.variance + point.variance
        error = value - self._pace.mean - point.mean
        error, changed = self._surprise.tame(error, variance, count)
        if changed:
            self._pace.variance = max(self._pace.variance, _CHANGE_VARIANCE)
        share(levels, error, self._surprise.noise / count)
        self._prices.clear()

    def observe_catch_up(self, *, tokens: int, rows: int, ms: float) -> None:
        """A proposal before which the draft had `rows` rows to catch up on."""
        expected_ms = self.price(tokens) + self.catch_up(rows)
        if ms < _FAR_QUICKER * expected_ms:
            # Which of the two is quicker than believed cannot be told: both, then.
            self._quicken(ms / expected_ms)
        per_row = max(0.0, ms - self.price(tokens)) / rows
        self._row_ms = per_row if self._row_ms is None else 0.7 * self._row_ms + 0.3 * per_row

    def price(self, tokens: int) -> float:
        """Expected milliseconds; 0 while nothing was measured, so that it is tried."""
        price = self._prices.get(tokens)
        if price is None:
            price = self._prices[tokens] = self._price(tokens)
        return price

    def _price(self, tokens: int) -> float:
        if not self._known:
            return 0.0
        at = bisect_left(self._known, tokens)
        if at < len(self._known) and self._known[at] == tokens:
            return self._at(tokens)
        if at == 0:
            return self._at(self._known[0]) * tokens / self._known[0]
        low = self._known[at - 1]
        if at == len(self._known):
            # Past the last point a draft goes on as it did: token after token at the same cost.
            return self._at(low) * tokens / low
        high = self._known[at]
        below, above = self._at(low), self._at(high)
        return below + max(0.0, above - below) * (tokens - low) / (high - low)

    def catch_up(self, rows: int) -> float:
        """Expected milliseconds for `rows` rows to catch up on."""
        # Rows in one pass are a good deal cheaper than drafting them one by one.
        per_row = 0.1 * self.price(1) if self._row_ms is None else self._row_ms
        return per_row * rows

    def to_record(self) -> dict[str, Any]:
        return {
            "pace": self._pace.to_record(),
            "noise": self._surprise.noise,
            "points": {str(tokens): level.to_record() for tokens, level in self._points.items()},
            "row_ms": self._row_ms,
        }

    def restore(self, record: Mapping[str, Any]) -> None:
        """Take over what an earlier run learned, unless what was timed now is far quicker: the
        machine may have been busy then.

        Raises ValueError, KeyError or TypeError.
        """
        if not record["points"]:
            return
        self._points.clear()
        self._known.clear()
        self._pace.restore(record["pace"])
        self._surprise.noise = finite(record["noise"], _NOISE_LOW, _NOISE_HIGH)
        for tokens, level in record["points"].items():
            self._learn(max(1, int(tokens)), 0.0, 0.0)
            self._points[max(1, int(tokens))].restore(level)
        self._prices.clear()
        row_ms = record["row_ms"]
        self._row_ms = None if row_ms is None else finite(row_ms, 0.0, _CEILING_MS)
        ratio = min((ms / self.price(tokens) for tokens, ms in self._timed.items()), default=1.0)
        if ratio < _FAR_QUICKER:
            self._quicken(ratio)

    def _quicken(self, ratio: float) -> None:
        """All of it takes so much less than was believed."""
        self._pace.mean += math.log(max(ratio, 1e-6))
        if self._row_ms is not None:
            self._row_ms *= ratio
        self._prices.clear()

    def _learn(self, tokens: int, value: float, variance: float) -> None:
        if tokens not in self._points:
            self._known.insert(bisect_left(self._known, tokens), tokens)
        self._points[tokens] = Level(value, variance, 0.0001)
        self._prices.clear()

    def _at(self, tokens: int) -> float:
        return math.exp(self._pace.mean + self._points[tokens].mean)


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
