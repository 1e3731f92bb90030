"""Bars and numbers for tables."""

from __future__ import annotations

from typing import Any

from homespecd.config.units import format_size

_EIGHTHS = " ▏▎▍▌▋▊▉█"


def bar(value: float, largest: float, columns: int) -> str:
    """A bar of at most `columns` characters, to an eighth of one; `largest` fills it."""
    if largest <= 0 or value <= 0:
        return ""
    eighths = round(min(value / largest, 1.0) * columns * 8)
    full, rest = divmod(eighths, 8)
    return "█" * full + (_EIGHTHS[rest] if rest else "")


def number(value: Any, decimals: int = 1, suffix: str = "") -> str:
    """A number that may not be there yet."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return "–"
    return f"{value:.{decimals}f}{suffix}"


def size(value: Any) -> str:
    """A size that may not be there yet."""
    return format_size(value) if isinstance(value, int) else "–"


def words(value: Any) -> str:
    """`slower_than_plain` as people read it."""
    return str(value).replace("_", " ") if value else "–"
