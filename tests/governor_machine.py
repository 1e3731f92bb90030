"""A simulated machine: what a step of so many rows takes, and how noisy that is."""

from __future__ import annotations

import math
import random
from bisect import bisect_left
from collections.abc import Callable, Mapping
from dataclasses import dataclass

INT4 = {1: 7.25, 2: 8.95, 4: 12.2, 8: 18.6, 16: 31.4, 64: 70.0}
FP32 = {1: 22.6, 2: 24.0, 4: 26.4, 8: 32.2, 16: 38.1, 64: 90.0}
CUDA = {1: 29.0, 2: 100.0, 3: 195.0, 8: 200.0, 64: 260.0}

Pace = Callable[[int, int, int], float]  # request index, position, rows → factor


def steady(request: int, position: int, rows: int) -> float:  # noqa: ARG001
    return 1.0


@dataclass(frozen=True)
class Machine:
    """What things cost. `sigma`: log-normal noise of each time; `spikes`: chance of one of ×6."""

    curve: Mapping[int, float]
    sigma: float = 0.03
    spikes: float = 0.0
    cold_steps: int = 3
    per_1000_tokens: float = 0.25  # how much dearer a step is per thousand tokens of context
    overhead_ms: float = 0.15
    row_ms: float = 0.02
    pace: Pace = steady

    def step_ms(self, rows: int, context: int, request: int, position: int) -> float:
        known = sorted(self.curve)
        at = min(max(1, bisect_left(known, rows)), len(known) - 1)
        low, high = known[at - 1], known[at]
        slope = (self.curve[high] - self.curve[low]) / (high - low)
        ms = self.curve[low] + slope * (rows - low)
        return ms * (1 + self.per_1000_tokens * context / 1000) * self.pace(request, position, rows)

    def noise(self, rng: random.Random, step: int) -> float:
        factor = math.exp(rng.gauss(0.0, self.sigma))
        if rng.random() < self.spikes:
            factor *= 6.0
        return factor * (5.0 if step < self.cold_steps else 1.0)
