"""Models in Ollama's words, from the status snapshot."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import Any

from homespecd.api.service import ModelCard
from homespecd.api.values import FOR_EVER_S

Snapshot = Mapping[str, Any]


def resolved(name: str, known: Sequence[str]) -> str:
    """The model that a name stands for: clients add `:latest` to names without a tag."""
    return name.removesuffix(":latest") if name not in known else name


def tags(cards: Sequence[ModelCard], snapshot: Snapshot) -> dict[str, Any]:
    """`GET /api/tags`: every configured model."""
    found = _by_name(snapshot)
    return {
        "models": [
            {**_entry(found[card.name]), "modified_at": _time(card.created_s)}
            for card in cards
            if card.name in found
        ]
    }


def running(snapshot: Snapshot, *, now_s: float) -> dict[str, Any]:
    """`GET /api/ps`: the models in memory, and when each goes if nobody asks for it. now_s: time of
    day."""
    return {
        "models": [
            {
                **_entry(model),
                "size": model["memory_bytes"],
                "size_vram": 0 if model["provider"] == "cpu" else model["memory_bytes"],
                "context_length": model["context"],
                "expires_at": _time(now_s + _stays_s(model)),
            }
            for model in snapshot["models"]
            if model["state"] == "ready"
        ]
    }


def _stays_s(model: Snapshot) -> float:
    """A pinned model has no end; the field has to be a time."""
    left_s = model["unload_in_s"]
    return FOR_EVER_S if left_s is None else min(float(left_s), FOR_EVER_S)


def shown(card: ModelCard, snapshot: Snapshot) -> dict[str, Any]:
    """`POST /api/show`."""
    model = _by_name(snapshot)[card.name]
    return {
        "modified_at": _time(card.created_s),
        # Of a model file there is none: the configuration says how a model is run.
        "modelfile": "",
        "template": "",
        "parameters": "",
        "details": _details(model),
        "model_info": {
            "general.architecture": "homespecd",
            "homespecd.context_length": model["context"],
        },
        "capabilities": ["completion", *(["tools"] if model.get("tools") else [])],
        "homespec": dict(model),
    }


def _by_name(snapshot: Snapshot) -> dict[str, Snapshot]:
    return {model["name"]: model for model in snapshot["models"]}


def _entry(model: Snapshot) -> dict[str, Any]:
    return {
        "name": model["name"],
        "model": model["name"],
        "size": model["memory_bytes"] or model["estimate_bytes"],
        "digest": (model["digest"] or "").removeprefix("sha256:"),
        "details": _details(model),
    }


def _details(model: Snapshot) -> dict[str, Any]:
    return {
        "parent_model": "",
        "format": "onnx",
        "family": "",
        "families": [],
        "parameter_size": "",
        "quantization_level": model["precision"] or "",
    }


def _time(seconds: float) -> str:
    return datetime.fromtimestamp(seconds, UTC).isoformat().replace("+00:00", "Z")
