"""How short of memory the machine is, by the kernel's own measure (PSI)."""

from __future__ import annotations

from pathlib import Path

_SOURCE = Path("/proc/pressure/memory")


def memory_pressure_avg10(source: Path = _SOURCE) -> float | None:
    """Share of the last 10 s (in %) in which some task waited for memory; None without PSI."""
    try:
        first = source.read_text().splitlines()[0]
    except (OSError, IndexError):
        return None
    for word in first.split():
        if word.startswith("avg10="):
            return float(word.removeprefix("avg10="))
    return None
