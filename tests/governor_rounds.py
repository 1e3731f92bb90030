"""A plain round alone, for tests that report rounds by hand and say what is different in theirs."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from homespecd.governor.protocol import Choice, Reason, RoundRecord

_PLAIN = RoundRecord(
    request=1,
    at_s=1.0,
    choice=Choice(None, 0, Reason.SPECULATING),
    context=50,
    catch_up=0,
    rows=1,
    total_rows=1,
    lanes=1,
    proposed=0,
    accepted=0,
    committed=1,
    draft_ms=0.0,
    step_ms=7.2,
    wall_ms=7.4,
)


def round_record(**changes: Any) -> RoundRecord:
    """The record of one: one token, one row, nothing proposed."""
    return replace(_PLAIN, **changes)
