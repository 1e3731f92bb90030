"""Which governor a loaded model gets."""

from __future__ import annotations

from homespecd.governor.fixed import FixedGovernor
from homespecd.governor.protocol import Governor
from homespecd.worker.load import Loaded


def make_governor(loaded: Loaded) -> Governor:
    """A governor for the drafters that can be used."""
    return FixedGovernor(
        {
            name: draft.settings.max_draft_tokens
            for name, draft in loaded.drafts.items()
            if draft.usable
        }
    )
