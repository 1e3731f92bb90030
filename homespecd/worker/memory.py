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

# Seven milliseconds every five seconds are a thousandth.
_HELD_FOR_S = 5.0

# Requests that begin while others run; more of them than this are not told apart.
_MOST_SPANS = 64


class MemoryMeter:
    """What the process holds now, and the most it held since any request began.

    The proportional measure takes the kernel milliseconds (it walks every page), so it is taken
    anew only when the last one is some seconds old.
    """

    def __init__(self, proc: Path = _PROC) -> None:
        self._proc = proc
        self._held: tuple[float, int, int] | None = None  # when, held, counted twice
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

    def held_bytes(self, now_s: float) -> int:
        """What is held now, as of a few seconds ago at the most."""
        return self._look(now_s)[0]

    def peak_bytes(self, since_s: float, now_s: float) -> int:
        """The most held since then; pages that are mapped several times are counted once."""
        counted_twice = self._look(now_s)[1]
        peaks = [peak for end_s, peak in self._spans if end_s > since_s]
        return max(0, *peaks, _field(self._proc / "status", "VmHWM:")) - counted_twice

    def _look(self, now_s: float) -> tuple[int, int]:
        if self._held is None or now_s - self._held[0] >= _HELD_FOR_S:
            held = held_bytes(self._proc)
            resident = _field(self._proc / "status", "VmRSS:")
            self._held = (now_s, held, max(0, resident - held))
        return self._held[1:]


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
