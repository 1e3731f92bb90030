"""How much memory a model will need, from its files alone, before it was ever loaded here."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from homespecd.bundle.external_data import stored_bytes
from homespecd.bundle.layout import LanesFiles, declared_context, find_graphs
from homespecd.bundle.manifest import is_bundle, read_manifest
from homespecd.errors import BundleError
from homespecd.worker.messages import DrafterSettings, WorkerSettings

# What a worker holds besides weights and caches: interpreter, libraries, tokenizer, scratch.
# Only for the first load of a model; afterwards what was measured counts.
OVERHEAD_BYTES = 160 * 2**20

# Positions beyond the context: a step's block, and the spare row of the lanes graphs.
_SPARE_POSITIONS = 64

_FLOAT_BYTES = 4

T = TypeVar("T")


@dataclass(frozen=True)
class Estimate:
    """target_bytes: everything but the drafts. draft_bytes: what they add; 0 = no draft models.

    floor_bytes: the target's weights alone, which it cannot do without.
    """

    target_bytes: int
    draft_bytes: int
    floor_bytes: int

    @property
    def total_bytes(self) -> int:
        return self.target_bytes + self.draft_bytes


def estimate(settings: WorkerSettings) -> Estimate:
    """Weights as stored, caches of all slots at the whole context, and a worker's own needs.

    Looks at the disk. A folder without a model counts as nothing: its load says better what is
    wrong.
    """
    path = Path(settings.path)
    weights = _weights_bytes(path, settings.variant)
    cache = _cache_bytes(path, settings.context, settings.slots)
    models = [one for one in settings.drafters if one.path] if settings.speculation.enabled else []
    return Estimate(
        target_bytes=weights + cache + OVERHEAD_BYTES,
        draft_bytes=sum(_draft_bytes(one, settings) for one in models),
        floor_bytes=weights,
    )


def _draft_bytes(draft: DrafterSettings, settings: WorkerSettings) -> int:
    path = Path(draft.path)
    declared = _ignored(lambda: declared_context(path))
    context = settings.context if declared is None else min(settings.context, declared)
    # Never nothing: whether there are drafts at all is told by this number.
    return max(1, _weights_bytes(path, draft.variant) + _cache_bytes(path, context, settings.slots))


def _weights_bytes(path: Path, variant: str) -> int:
    """Bytes of the graphs that would be loaded and of their data; a file of several graphs once."""

    def look() -> int:
        graphs = find_graphs(path, variant)
        if isinstance(graphs, LanesFiles):
            return stored_bytes(*graphs.graphs.values())
        return stored_bytes(graphs.graph, *([graphs.first] if graphs.first else []))

    return _ignored(look) or 0


def _cache_bytes(path: Path, context: int, slots: int) -> int:
    return (_ignored(lambda: _kv_bytes_per_token(path)) or 0) * (context + _SPARE_POSITIONS) * slots


def _kv_bytes_per_token(path: Path) -> int:
    """Keys and values of one token over all layers; 0 when the files do not say."""
    if is_bundle(path):
        return read_manifest(path).kv_bytes_per_token
    config: Any = json.loads((path / "config.json").read_text(encoding="utf-8"))
    config = config.get("text_config", config)
    heads = config["num_attention_heads"]
    kv_heads = config.get("num_key_value_heads") or heads
    head_dim = config.get("head_dim") or config["hidden_size"] // heads
    return int(2 * config["num_hidden_layers"] * kv_heads * head_dim * _FLOAT_BYTES)


def _ignored(look: Callable[[], T | None]) -> T | None:
    """What cannot be read is no reason to refuse anything here."""
    try:
        return look()
    except (OSError, ValueError, KeyError, TypeError, AttributeError, BundleError):
        return None
