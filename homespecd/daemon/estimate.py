"""How much memory a model will need, from its files alone, before it was ever loaded here."""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from types import MappingProxyType
from typing import Any, TypeVar

from homespecd.bundle.external_data import stored_bytes
from homespecd.bundle.layout import LanesFiles, declared_context, find_graphs
from homespecd.bundle.manifest import PACKED_FOLDER, is_bundle, read_manifest
from homespecd.errors import BundleError
from homespecd.runtime.installed import installed_builds
from homespecd.worker.messages import DrafterSettings, WorkerSettings

MIB = 2**20


@dataclass(frozen=True)
class Footprint:
    """What a worker holds on a provider. Rather too much: a cap must hold for a first load too.

    weights, caches: times what is stored, and what keys and values of all positions take.
    overhead_bytes: interpreter, libraries, tokenizer, scratch.
    """

    weights: float = 1.0
    caches: float = 1.0
    overhead_bytes: int = 200 * MIB


# Only for the first load of a model; afterwards what was measured counts. Seen with SmolLM2:
# - cpu: some 200 MiB beside its (packed) weights, at int4, int8 and fp32.
# - openvino: its CPU device lays weights out anew and holds caches several times over. A loaded
#   worker had 640 MiB at int4 (102 stored), 800 at int8 (150) and 1,270 at fp32 (515), and at int4
#   1,350 with two slots of 2,048 positions in use. docs/LOG.md, "OpenVINO on a CPU", has the first
#   three without the rest of the worker.
# - cuda, directml: never measured, so like the CPU.
FOOTPRINTS: Mapping[str, Footprint] = MappingProxyType(
    {
        "cpu": Footprint(),
        "cuda": Footprint(),
        "openvino": Footprint(weights=3.25, caches=4.0, overhead_bytes=350 * MIB),
        "directml": Footprint(),
    }
)

# A file may say anything; no model has more.
_MOST_BYTES_PER_TOKEN = 1 << 30

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


def estimate(settings: WorkerSettings, *, installed: Collection[str] | None = None) -> Estimate:
    """Weights, caches of all slots at the whole context, and a worker's own needs, as they are on
    the provider; with "auto", on that of those it may choose which needs most.

    Looks at the disk. A folder without a model counts as nothing: its load says better what is
    wrong.

    Args:
        installed: providers that builds of onnxruntime are installed for; None = look.
    """
    installed = _installed() if installed is None else installed
    path = Path(settings.path)
    models = [one for one in settings.drafters if one.path] if settings.speculation.enabled else []
    return Estimate(
        target_bytes=max(
            _model_bytes(path, settings.variant, settings.context, settings.slots, provider)
            + FOOTPRINTS[provider].overhead_bytes
            for provider in _possible(settings.provider, installed)
        ),
        draft_bytes=sum(_draft_bytes(one, settings, installed) for one in models),
        floor_bytes=_weights_bytes(path, settings.variant),
    )


@cache
def _installed() -> tuple[str, ...]:
    return tuple(one.provider for one in installed_builds())


def _possible(provider: str, installed: Collection[str]) -> Collection[str]:
    """Where a model with this `provider` may come to run."""
    if provider != "auto":
        return (provider,)
    return {"cpu", *(one for one in installed if one in FOOTPRINTS)}


def _draft_bytes(
    draft: DrafterSettings, settings: WorkerSettings, installed: Collection[str]
) -> int:
    path = Path(draft.path)
    declared = _ignored(lambda: declared_context(path))
    context = settings.context if declared is None else min(settings.context, declared)
    needs = (
        _model_bytes(path, draft.variant, context, settings.slots, provider)
        for provider in _possible(draft.provider, installed)
    )
    # Never nothing: whether there are drafts at all is told by this number.
    return max(1, *needs)


def _model_bytes(path: Path, variant: str, context: int, slots: int, provider: str) -> int:
    weights = _weights_bytes(path, variant)
    if provider == "cpu":
        weights = max(weights, _packed_bytes(path))
    footprint = FOOTPRINTS[provider]
    caches = _cache_bytes(path, context, slots)
    return int(footprint.weights * weights + footprint.caches * caches)


def _weights_bytes(path: Path, variant: str) -> int:
    """Bytes of the graphs that would be loaded and of their data; a file of several graphs once."""

    def look() -> int:
        graphs = find_graphs(path, variant)
        if isinstance(graphs, LanesFiles):
            return stored_bytes(*graphs.graphs.values())
        return stored_bytes(graphs.graph, *([graphs.first] if graphs.first else []))

    return _ignored(look) or 0


def _packed_bytes(path: Path) -> int:
    """What the CPU's own copy of a bundle's weights takes, which is mapped instead of them; it may
    be twice as large. 0 when it was not made yet."""
    return _ignored(lambda: stored_bytes(*(path / PACKED_FOLDER).glob("*.onnx"))) or 0


def _cache_bytes(path: Path, context: int, slots: int) -> int:
    per_token = _ignored(lambda: _kv_bytes_per_token(path)) or 0
    return max(0, min(per_token, _MOST_BYTES_PER_TOKEN)) * (context + _SPARE_POSITIONS) * slots


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
    except (OSError, ValueError, ArithmeticError, LookupError, TypeError, AttributeError):
        return None
    except (RecursionError, BundleError):
        return None
