"""Sizes and durations as people write them."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from homespecd.config.units import format_duration, format_size, parse_duration, parse_size


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("0B", 0),
        ("17B", 17),
        ("4KiB", 4096),
        ("4 KiB", 4096),
        ("512MiB", 512 * 2**20),
        ("6GiB", 6 * 2**30),
        ("1.5GiB", 3 * 2**29),
        ("2TiB", 2**41),
        ("1KB", 1000),
        ("1.5MB", 1_500_000),
        ("6gb", 6 * 10**9),
        (" 1gib ", 2**30),
        ("0.1GB", 100_000_000),
    ],
)
def test_sizes(text: str, expected: int) -> None:
    assert parse_size(text) == expected


@pytest.mark.parametrize(
    "text",
    ["", "6", "6G", "GiB", "-1GiB", "1e3MiB", "6 Gi B", "6GiBs", "١GiB", "1.GiB", "9" * 13 + "B"],
)
def test_not_sizes(text: str) -> None:
    with pytest.raises(ValueError, match="is not a size: a number and a unit"):
        parse_size(text)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("250ms", 0.25),
        ("0s", 0.0),
        ("30s", 30.0),
        ("15m", 900.0),
        ("1.5h", 5400.0),
        ("2d", 172_800.0),
        ("1h30m", 5400.0),
        ("1h 30m 5s", 5405.0),
    ],
)
def test_durations(text: str, expected: float) -> None:
    assert parse_duration(text) == expected


@pytest.mark.parametrize("text", ["", " ", "15", "m", "15 min", "1h30", "-1s", "1:30", "1y", "5M"])
def test_not_durations(text: str) -> None:
    with pytest.raises(ValueError, match="is not a duration: a number and a unit"):
        parse_duration(text)


@given(st.integers(0, 2**50))
def test_a_shown_size_reads_back_close(num_bytes: int) -> None:
    """What `format_size` prints is a size that `parse_size` reads, within its three digits."""
    read = parse_size(format_size(num_bytes))
    assert abs(read - num_bytes) <= num_bytes * 0.006


@pytest.mark.parametrize(
    ("num_bytes", "expected"),
    [
        (0, "0 B"),
        (999, "999 B"),
        (1000, "0.98 KiB"),
        (98_362_432, "93.8 MiB"),
        (6 * 2**30, "6.00 GiB"),
        (5 * 2**50, "5120 TiB"),
    ],
)
def test_shown_sizes(num_bytes: int, expected: str) -> None:
    assert format_size(num_bytes) == expected


@pytest.mark.parametrize(
    ("seconds", "expected"),
    [
        (0, "0s"),
        (59.9, "59s"),
        (200, "3m 20s"),
        (3600, "1h"),
        (187_300, "2d 4h"),
        (86_401, "1d 1s"),
    ],
)
def test_shown_durations(seconds: float, expected: str) -> None:
    assert format_duration(seconds) == expected
