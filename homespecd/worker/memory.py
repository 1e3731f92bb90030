"""What this process holds, as the kernel counts it."""

from __future__ import annotations

from pathlib import Path

_STATUS = Path("/proc/self/status")


def _status_bytes(field: str) -> int:
    for line in _STATUS.read_text().splitlines():
        if line.startswith(field):
            return int(line.split()[1]) * 1024
    return 0


def peak_bytes() -> int:
    """The most resident memory this process has ever held (VmHWM); 0 where it cannot be read."""
    return _status_bytes("VmHWM:")


def resident_bytes() -> int:
    """Resident memory now (VmRSS); pages mapped from files are in it, shared or not."""
    return _status_bytes("VmRSS:")
