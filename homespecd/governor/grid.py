"""Where a step's price is kept: row counts and context lengths, near ones together."""

from __future__ import annotations

from bisect import bisect_left

# Rows above which the curve is kept on a grid instead of row by row: blocks to verify are short,
# prefill chunks are long and need no such detail.
_EXACT_ROWS = 20
_GRID = (24, 32, 48, 64, 96, 128, 192, 256, 384, 512, 768, 1024, 2048, 4096)


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
