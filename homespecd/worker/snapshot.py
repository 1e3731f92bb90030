"""One model's part of the status snapshot, as it is served."""

from __future__ import annotations

import os
from dataclasses import asdict
from typing import Any

from homespecd.governor.protocol import DrafterStanding, Reason, Standing, best_reason
from homespecd.runtime.step import ModelSpec
from homespecd.worker.load import Draft
from homespecd.worker.serving import Serving
from homespecd.worker.tools import takes_tools
from homespecd.worker.verdict import verdict


def model_snapshot(serving: Serving) -> dict[str, Any]:
    """Plain JSON values; the supervisor adds state, caps and who is asking."""
    loaded, standing = serving.loaded, serving.governor.standing()
    spec = loaded.target.spec
    reason = _reason(loaded.blocked, loaded.drafts, standing)
    return {
        "pid": os.getpid(),
        "provider": spec.provider,
        "requested_provider": spec.requested_provider,
        "provider_reason": spec.provider_reason,
        "placement": placement(spec),
        "memory_bytes": serving.memory.held_bytes(serving.clock_s()),
        "context": spec.context,
        "threads": spec.threads,
        "kv_bytes": sum(slot.nbytes for slot in serving.slots),
        "active": serving.scheduler.active,
        "waiting": serving.scheduler.waiting,
        "precision": loaded.identity.precision,
        "digest": loaded.identity.digest,
        "lanes": spec.lanes,
        "tools": takes_tools(loaded.template),
        "speculation": {
            "mode": "speculative" if reason is Reason.SPECULATING else "plain",
            "reason": reason.value,
            "drafters": [
                _drafter(draft, standing, kv_bytes=_kv_bytes(serving, name))
                for name, draft in loaded.drafts.items()
            ],
            "step_ms": {str(rows): round(ms, 3) for rows, ms in sorted(standing.step_ms.items())},
            "plain_ms_per_token": standing.plain_ms_per_token,
            "decode_tok_s": serving.totals.decode_tok_s,
            "exactness": verdict(loaded.exactness, spec),
        },
        "totals": serving.totals.as_dict(),
    }


def placement(spec: ModelSpec) -> dict[str, Any]:
    """Where a model runs, beside where it was asked to."""
    return {
        "requested": spec.requested_provider,
        "provider": spec.provider,
        "device": spec.device,
        "reason": spec.provider_reason,
        "share_elsewhere": spec.share_elsewhere,
        "operators_elsewhere": dict(spec.operators_elsewhere),
        "layout": spec.layout,
        "layout_reason": spec.layout_reason,
    }


def _reason(blocked: Reason | None, drafts: dict[str, Draft], standing: Standing) -> Reason:
    """How the best of the drafters stands that may be used now; the governor knows others too,
    which are gone or have failed."""
    if blocked is not None:
        return blocked
    usable = [name for name, draft in drafts.items() if draft.usable]
    if not usable:
        problems = [draft.problem for draft in drafts.values() if draft.problem is not None]
        return problems[0] if problems else Reason.NO_DRAFT
    reasons = (one.reason for one in standing.drafters if one.name in usable)
    return best_reason(reasons, default=Reason.WARMING_UP)


def _kv_bytes(serving: Serving, drafter: str) -> int:
    return sum(slot.drafters[drafter].nbytes for slot in serving.slots if drafter in slot.drafters)


def _state(draft: Draft) -> str:
    if draft.usable:
        return "ready"
    waiting = {Reason.DRAFT_OVER_CAP: "unloaded", Reason.WARMING_UP: "loading"}
    assert draft.problem is not None
    return waiting.get(draft.problem, "failed")


def _drafter(draft: Draft, standing: Standing, *, kv_bytes: int) -> dict[str, Any]:
    known = {one.name: one for one in standing.drafters}
    mine: DrafterStanding | None = known.get(draft.settings.name)
    entry: dict[str, Any] = {
        "name": draft.settings.name,
        "kind": draft.settings.kind,
        "state": _state(draft),
        "reason": (draft.problem or (mine.reason if mine else Reason.WARMING_UP)).value,
        "error": draft.detail or None,
        "placement": None if draft.model is None else placement(draft.model.spec),
        "memory_bytes": 0 if draft.model is None else draft.held_bytes + kv_bytes,
    }
    if mine is None:
        empty = dict.fromkeys(("acceptance_rate", "acceptance_length", "draft_ms", "speedup"))
        return entry | {"k": 0, "samples": 0} | empty
    return entry | {
        "k": mine.k if draft.usable else 0,
        "acceptance_rate": mine.acceptance_rate,
        "acceptance_length": mine.acceptance_length,
        "draft_ms": mine.draft_ms,
        "speedup": mine.speedup.measured,
        "samples": mine.speedup.speculative_samples,
        "measured": asdict(mine.speedup),
    }
