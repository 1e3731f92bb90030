"""What `systemctl status` shows of the service: which models are there, and how much faster."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection

from homespecd.daemon.models import Model
from homespecd.daemon.views import State


def status_line(models: Collection[Model]) -> str:
    """One line, the loaded models first: `smollm2 ready, 1.9× plain; 2 unloaded`."""
    present = [_model(model) for model in models if model.state is not State.UNLOADED]
    unloaded = Counter(model.state for model in models)[State.UNLOADED]
    if unloaded:
        present.append(f"{unloaded} unloaded")
    return "; ".join(present) or "no models"


def _model(model: Model) -> str:
    if model.state is State.LOADING:
        return f"{model.name} loading" + (f" ({model.progress})" if model.progress else "")
    if model.state is not State.READY or model.handle is None:
        return f"{model.name} {model.state.value}"
    known = model.handle.snapshot or model.handle.info
    return f"{model.name} ready{_speed(known.get('speculation') or {})}"


def _speed(speculation: object) -> str:
    assert isinstance(speculation, dict)
    measured = [one.get("speedup") for one in speculation.get("drafters") or []]
    faster = max((one for one in measured if one), default=None)
    if speculation.get("mode") != "plain" and faster is not None:
        return f", {faster:.1f}× plain"
    reason = str(speculation.get("reason") or "").replace("_", " ")
    return f", plain ({reason})" if reason else ""
