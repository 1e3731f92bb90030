"""What a worker says in the log about how its models were opened: what works less well than asked.

Pure; whoever has the outbox sends it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from homespecd.runtime.step import ModelSpec
from homespecd.worker.load import Draft


def of_placement(spec: ModelSpec, who: str = "") -> str:
    """Where a model runs that does not run (only) where it was asked to; "" when it does."""
    asked, used = spec.requested_provider, spec.provider
    if asked in ("auto", used) and not spec.provider_reason:
        return ""
    where = f"{used} ({spec.device})" if spec.device else used
    return (
        f"{who}asked for {asked} and runs on {where}: {spec.provider_reason or 'no reason known'}"
    )


def of_drafts(drafts: Mapping[str, Draft]) -> Iterator[str]:
    """Drafters that are off, and draft models that run elsewhere."""
    for name, draft in drafts.items():
        if not draft.usable:
            yield f"drafter {name} is off: {draft.detail}"
        elif draft.model is not None and (
            said := of_placement(draft.model.spec, f"drafter {name} ")
        ):
            yield said
