"""Whether a measured time is noise, a spike or a change, and how far a price may follow it.

Times are logarithms here, so that the same bounds fit every machine.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from homespecd.governor.levels import Level, finite, share

_FLOOR_MS = 1e-3

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


def log_ms(ms: float) -> float:
    """A time as the logarithm that prices are sums of; a clock that stood still is no minus ∞."""
    return math.log(max(ms, _FLOOR_MS))


class Surprise:
    """The noise of one kind of measurement, and whether it has left its level for good."""

    def __init__(self) -> None:
        self.noise = _NOISE
        self._same_side = 0

    def correct(
        self, levels: Sequence[Level], *, error: float, count: int, pace: Sequence[Level]
    ) -> bool:
        """Correct the levels whose sum was `error` too low in `count` measurements.

        pace: those of them that become unsure when this is a lasting change. Returns whether it is.
        """
        variance = sum(level.variance for level in levels)
        error, changed = self._tame(error, variance, count)
        if changed:
            for level in pace:
                level.variance = max(level.variance, _CHANGE_VARIANCE)
        share(levels, error, self.noise / count)
        return changed

    def restore(self, noise: Any) -> None:
        """Take over the noise of a record. Raises ValueError or TypeError when it is not sane."""
        self.noise = finite(noise, _NOISE_LOW, _NOISE_HIGH)

    def _tame(self, error: float, variance: float, count: int) -> tuple[float, bool]:
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
            return error, True  # the whole of it: the pace becomes unsure enough to take it
        return tamed, False
