"""Small plots of characters: a curve of costs, and what a number did over time. Pure."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

_EIGHTHS = " ▁▂▃▄▅▆▇█"


def columns(values: Sequence[float], *, height: int, top: float, bottom: float = 0.0) -> list[str]:
    """A column for each value, `height` lines of characters; `top` and above fill all of it."""
    span = max(top - bottom, 1e-9)
    filled = [round(max(0.0, min((v - bottom) / span, 1.0)) * height * 8) for v in values]
    lines = []
    for row in range(height - 1, -1, -1):
        eighths = (max(0, min(8, level - 8 * row)) for level in filled)
        lines.append("".join(_EIGHTHS[one] for one in eighths))
    return lines


def history(values: Sequence[float], *, width: int, height: int) -> list[str]:
    """The last values of a speed-up, with an axis that says what the top and the middle are.

    The line of 1× (as fast as plain) is always inside.
    """
    room = max(1, width - 6)
    shown = list(values)[-room:]
    top = nice_above(max([*shown, 1.0]))
    plot = columns(shown, height=height, top=top)
    labels = {0: f"{top:.3g}×", height - 1: "0"}
    if height >= 3:
        one = height - 1 - round((height - 1) / top) if top > 1 else 0
        labels.setdefault(one, "1×")
    lines = []
    for row, line in enumerate(plot):
        mark = "┤" if row in labels else "│"
        lines.append(f"{labels.get(row, ''):>4} {mark}{line}"[:width])
    return lines


def curve(step_ms: Mapping[str, float], *, width: int, height: int) -> list[str]:
    """Bars for a step over 1, 2, 4 … rows: what it takes, and how many times one row."""
    points = sorted((int(rows), ms) for rows, ms in step_ms.items())
    if len(points) > height:
        # Powers of two say the most; the smaller ones are what a block to verify has.
        by_worth = sorted(points, key=lambda point: (point[0] & (point[0] - 1) != 0, point[0]))
        points = sorted(by_worth[:height])
    if not points:
        return []
    largest = max(ms for _, ms in points) or 1.0
    single = points[0][1] or 1.0
    room = max(4, width - 24)
    lines = []
    for rows, ms in points:
        eighths = round(ms / largest * room * 8)
        full, rest = divmod(eighths, 8)
        drawn = "█" * full + ("", "▏", "▎", "▍", "▌", "▋", "▊", "▉")[rest]
        lines.append(f"{rows:>4} {drawn:<{room}} {ms:>7.1f} ms {ms / single:>5.2f}×"[:width])
    return lines


def nice_above(value: float) -> float:
    """The next of 1, 1.5, 2, 3, 5, 10, 15, … that is not below `value`."""
    if value <= 1.0:
        return 1.0
    scale = 10.0 ** math.floor(math.log10(value))
    for step in (1.0, 1.5, 2.0, 3.0, 5.0, 10.0):
        if value <= step * scale * (1 + 1e-9):
            return step * scale
    return 10.0 * scale
