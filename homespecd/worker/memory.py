"""What this process holds, as the kernel counts it.

Resident memory counts a page once for every place where it is mapped, and the weights of a packed
bundle are mapped by each of its graphs; the proportional measure (PSS) counts it once. The kernel
keeps the peak of the former only, so peaks are corrected by what the two differ.
"""

from __future__ import annotations

import contextlib
import ctypes
from pathlib import Path

_PROC = Path("/proc/self")

# Requests that begin while others run; more of them than this are not told apart.
_MOST_SPANS = 64


class PeakMeter:
    """The most that the process held since any moment at which a request began."""

    def __init__(self, proc: Path = _PROC) -> None:
        self._proc = proc
        self._spans: list[tuple[float, int]] = []  # end of a span, the most resident in it

    def mark(self, now_s: float) -> None:
        """A request begins: a span of time ends here, and the next begins."""
        self._spans.append((now_s, _field(self._proc / "status", "VmHWM:")))
        if len(self._spans) > _MOST_SPANS:
            # Two as one: whoever began between them is told too much rather than too little.
            (_, first), (end_s, second) = self._spans[:2]
            self._spans[:2] = [(end_s, max(first, second))]
        # "5" sets the kernel's peak to what is resident now. Where that is not allowed, the peak of
        # the process's whole life is what there is.
        with contextlib.suppress(OSError):
            (self._proc / "clear_refs").write_text("5")

    def peak_bytes(self, since_s: float) -> int:
        """The most held since then; pages that are mapped several times are counted once."""
        status = self._proc / "status"
        counted_twice = max(0, _field(status, "VmRSS:") - held_bytes(self._proc))
        peaks = [peak for end_s, peak in self._spans if end_s > since_s]
        return max(0, *peaks, _field(status, "VmHWM:")) - counted_twice


def held_bytes(proc: Path = _PROC) -> int:
    """Memory held now (PSS), or resident memory where the kernel does not say."""
    return _field(proc / "smaps_rollup", "Pss:") or _field(proc / "status", "VmRSS:")


def give_back() -> None:
    """Return what was freed to the system; the C library would keep it for later."""
    with contextlib.suppress(OSError, AttributeError):
        ctypes.CDLL(None).malloc_trim(0)


def _field(file: Path, name: str) -> int:
    """A size of /proc, in bytes; 0 where it cannot be read."""
    try:
        for line in file.read_text().splitlines():
            if line.startswith(name):
                return int(line.split()[1]) * 1024
    except OSError:
        pass
    return 0
