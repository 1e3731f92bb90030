"""Sizes and durations as people write them: "6GiB", "1.5GB", "15m", "1h30m".

A bare number is refused: whoever reads the file later should not have to guess the unit.
"""

from __future__ import annotations

import re
from decimal import Decimal

SIZE_FORM = 'a number and a unit, like "512MiB" or "6GiB" (B, KiB, MiB, GiB, TiB, KB, MB, GB, TB)'
DURATION_FORM = 'a number and a unit, like "30s", "15m" or "1h30m" (ms, s, m, h, d)'

_SIZE_UNITS = {
    "b": 1,
    "kib": 2**10,
    "mib": 2**20,
    "gib": 2**30,
    "tib": 2**40,
    "kb": 10**3,
    "mb": 10**6,
    "gb": 10**9,
    "tb": 10**12,
}
_DURATION_UNITS = {
    "ms": Decimal("0.001"),
    "s": Decimal(1),
    "m": Decimal(60),
    "h": Decimal(3600),
    "d": Decimal(86400),
}
# Twelve digits are enough for every size and time there is, and keep absurd ones out of arithmetic.
_NUMBER = r"[0-9]{1,12}(?:\.[0-9]{1,12})?"
_SIZE = re.compile(rf"({_NUMBER})\s*([A-Za-z]+)")
_DURATION_PART = re.compile(rf"({_NUMBER})\s*(ms|s|m|h|d)\s*")


def parse_size(text: str) -> int:
    """Bytes. Raises ValueError with the allowed form."""
    match = _SIZE.fullmatch(text.strip())
    unit = _SIZE_UNITS.get(match[2].lower()) if match else None
    if match is None or unit is None:
        raise ValueError(f'"{text}" is not a size: {SIZE_FORM}')
    return int(Decimal(match[1]) * unit)


def parse_duration(text: str) -> float:
    """Seconds. Raises ValueError with the allowed form."""
    rest = text.strip()
    total = Decimal(0)
    if not rest:
        raise ValueError(f'"{text}" is not a duration: {DURATION_FORM}')
    while rest:
        match = _DURATION_PART.match(rest)
        if match is None:
            raise ValueError(f'"{text}" is not a duration: {DURATION_FORM}')
        total += Decimal(match[1]) * _DURATION_UNITS[match[2]]
        rest = rest[match.end() :]
    return float(total)


def format_size(num_bytes: int) -> str:
    """A size for people, three digits at most: "0 B", "98.4 MiB", "6.00 GiB"."""
    if num_bytes < 1000:
        return f"{num_bytes} B"
    value = float(num_bytes)
    units = ["KiB", "MiB", "GiB", "TiB"]
    value /= 1024
    while value >= 1000 and len(units) > 1:
        value /= 1024
        units.pop(0)
    decimals = 0 if value >= 100 else 1 if value >= 10 else 2
    return f"{value:.{decimals}f} {units[0]}"


def format_duration(seconds: float) -> str:
    """A time span for people, its two largest units: "12s", "3m 20s", "2d 4h"."""
    whole = max(0, int(seconds))
    parts: list[str] = []
    for unit, length in (("d", 86400), ("h", 3600), ("m", 60), ("s", 1)):
        if whole >= length or (unit == "s" and not parts):
            parts.append(f"{whole // length}{unit}")
            whole %= length
    return " ".join(parts[:2])
