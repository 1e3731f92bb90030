"""The status snapshot: what the supervisor knows, and what each worker last said of itself."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

from homespecd.daemon.models import Model
from homespecd.daemon.views import State

_NO_SPECULATION: Mapping[str, Any] = {
    "mode": "plain",
    "reason": "warming_up",
    "drafters": [],
    "step_ms": {},
    "plain_ms_per_token": None,
    "decode_tok_s": None,
    "exactness": None,
}


def model_snapshot(model: Model, *, in_flight: int, now_s: float) -> dict[str, Any]:
    """One entry of `models`. A model that is not loaded shows what it is configured to be."""
    handle = model.handle
    from_worker: Mapping[str, Any] = {}
    if handle is not None and model.state is not State.LOADING:
        from_worker = handle.snapshot or handle.info
    active = min(model.running, model.config.slots)
    idle = model.state is State.READY and model.running == 0
    return {
        "provider": None,
        "requested_provider": model.settings.provider,
        "provider_reason": "",
        "placement": None,
        "context": model.settings.context,
        "kv_bytes": 0,
        "precision": None,
        "digest": None,
        "lanes": None,
        "tools": None,
        "speculation": _NO_SPECULATION,
        **from_worker,
        "name": model.name,
        "pid": model.pid,
        "state": model.state.value,
        "residency": model.config.residency,
        "memory_bytes": model.held_bytes if model.state is State.READY else 0,
        "peak_memory_bytes": model.peak_bytes or None,
        "estimate_bytes": model.estimate.total_bytes,
        "cap_bytes": model.config.memory_cap_bytes,
        "active": active,
        "waiting": max(0, in_flight - active),
        "idle_s": round(now_s - model.idle_since_s, 3) if idle else None,
        "unload_in_s": _unload_in_s(model, now_s),
        "error": model.error or None,
        "loading": model.progress or None,
        "loads": model.loads,
        "totals": asdict(model.totals),
        "timings": model.timings.as_dict(),
    }


def _unload_in_s(model: Model, now_s: float) -> float | None:
    """When it goes if nobody asks for it any more; None = it is not there, or it stays."""
    if model.state is not State.READY or model.view().pinned:
        return None
    idle_s = 0.0 if model.running else now_s - model.idle_since_s
    left_s = max(0.0, model.idle_unload_s - idle_s)
    return round(left_s, 3) if math.isfinite(left_s) else None
