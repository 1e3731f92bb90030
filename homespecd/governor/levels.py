"""A number that is learned from noisy hints, and how several of them share one hint.

Both the costs and the acceptance are sums of parts (the machine's pace + this row count + this
context …; the pair + this request …), each with a mean and a variance. An observation that is off
by some error corrects every part in proportion to how unsure it is: a Kalman update that leaves the
covariances out. What is unsure moves fast, what is well known hardly moves, and the drift keeps
everything able to move again.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

_MAX_VARIANCE = 4.0  # ×/÷ 7 in a logarithm, 0.02 … 0.98 in log-odds: as unsure as makes sense
_MAX_MEAN = 30.0  # a factor of 1e13; whatever is past it was never measured


@dataclass(slots=True)
class Level:
    """One learned part: mean, variance, and the variance it gains with each observation."""

    mean: float
    variance: float
    drift: float

    def to_record(self) -> list[float]:
        return [self.mean, self.variance]

    def restore(self, record: Any) -> None:
        """Take the mean and variance of a record. Raises ValueError when it is not sane."""
        mean, variance = (float(number) for number in record)
        if not (abs(mean) <= _MAX_MEAN and 0.0 <= variance <= _MAX_VARIANCE):
            raise ValueError(f"level out of range: mean {mean}, variance {variance}")
        self.mean, self.variance = mean, variance


def share(levels: Sequence[Level], error: float, noise: float) -> None:
    """Correct the levels whose sum was `error` too low, measured with variance `noise`."""
    total = noise
    for level in levels:
        total += level.variance
    for level in levels:
        gain = level.variance / total
        level.mean += gain * error
        level.variance = min(level.variance * (1.0 - gain) + level.drift, _MAX_VARIANCE)


def finite(value: Any, low: float, high: float) -> float:
    """A number from a record. Raises ValueError unless it is within low … high."""
    number = float(value)
    if not (math.isfinite(number) and low <= number <= high):
        raise ValueError(f"{number} is not within {low} … {high}")
    return number
