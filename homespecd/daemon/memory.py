"""How much memory models hold, and how much there is."""

from __future__ import annotations

import psutil  # type: ignore[import-untyped]


def worker_bytes(pid: int) -> int | None:
    """Memory of a process, shared pages counted in parts (PSS); None when it is gone, or cannot be
    asked now.

    The weights of a model are mapped from a file: two processes that map the same file share them.
    """
    try:
        process = psutil.Process(pid)
        try:
            return int(process.memory_full_info().pss)
        except psutil.AccessDenied:
            return int(process.memory_info().rss)
    except (psutil.NoSuchProcess, OSError):
        return None


def available_bytes() -> int:
    """What the machine could give to a process now without swapping; nothing, while it cannot be
    asked (no descriptors are left): nobody loses what it holds for that."""
    try:
        return int(psutil.virtual_memory().available)
    except OSError:
        return 0
