"""Which machine this is, as far as measured times depend on it."""

from __future__ import annotations

import os
import platform
from pathlib import Path


def processor() -> str:
    """The processor's name as the kernel gives it."""
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        lines = []
    names = (line.split(":", 1)[1].strip() for line in lines if line.startswith("model name"))
    return next(names, platform.machine())


def describe_machine() -> str:
    """Processor and how many of them, in one line."""
    return f"{processor()}, {os.cpu_count()} CPUs"
