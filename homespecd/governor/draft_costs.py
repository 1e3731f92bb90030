"""What a proposal costs by its length, and catching up by rows, learned from those that really ran.

As with steps, in logarithms: the machine's pace now × this length.
"""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Mapping
from typing import Any

from homespecd.governor.levels import Level, finite
from homespecd.governor.surprise import Surprise, log_ms

_CEILING_MS = 1e7

# A draft that needs less than this part of what it should is believed at once.
_FAR_QUICKER = 0.5


class DraftCurve:
    """Milliseconds of a proposal by its length, and of a row that the draft has to catch up on."""

    def __init__(self, measured: Mapping[int, float] | None = None) -> None:
        self._pace = Level(0.0, 0.02, 0.001)
        self._points: dict[int, Level] = {}
        self._known: list[int] = []
        self._surprise = Surprise()
        self._row_ms: float | None = None
        self._prices: dict[int, float] = {}  # until something is learned
        self._timed = dict(measured or {})
        for tokens, ms in self._timed.items():
            self._learn(tokens, log_ms(ms), 0.003)

    def observe(self, *, tokens: int, ms: float, count: int = 1) -> None:
        """Proposals of `tokens` tokens by a draft that was up to date; ms: their median."""
        value = log_ms(ms)
        point = self._points.get(tokens)
        if point is None:
            # As with rows: the first of its kind starts where the curve was, if there was one.
            start = log_ms(self.price(tokens)) if self._known else value
            self._learn(tokens, start - self._pace.mean, 0.1)
            point = self._points[tokens]
        error = value - self._pace.mean - point.mean
        self._surprise.correct([self._pace, point], error=error, count=count, pace=[self._pace])
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
        self._surprise.restore(record["noise"])
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
