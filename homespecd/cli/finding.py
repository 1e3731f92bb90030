"""What `homespecctl doctor` finds: something wrong, and what to do about it."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Finding:
    """level: "bad" (does not work, or is unsafe) or "warning" (slow, or a surprise)."""

    level: str
    what: str
    fix: str
