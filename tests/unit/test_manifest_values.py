"""A manifest with any value in the place of any other: it is read, or refused in one sentence."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from homespecd.bundle.manifest import MANIFEST_FILE, Manifest, read_manifest
from homespecd.errors import BundleError

STATED: dict[str, Any] = {
    "name": "m", "architecture": "llama", "precision": "int4", "layers": 2, "heads": 2,
    "kv_heads": 1, "head_dim": 8, "hidden": 16, "feed_forward": 32, "vocab": 64,
    "tokenizer_vocab": 64, "context": 128, "lanes": [1, 2], "bos_id": None, "add_bos": False,
    "eos_ids": [0],
    "parts": [{"part": "embedding", "precision": "int8", "block_size": 32, "source": "Q8_0",
               "kept": True, "layers": 0}],
    "kernels": {"cpu": "x", "blocks": {"4": 32}, "invariant": {"fp32": True}},
    "width_invariant": True, "source_file": "f", "source_sha256": "0", "licence": "",
    "files": {"weights.bin": "0"}, "digest": "d", "weights_bytes": 9, "format": 1,
}  # fmt: skip
HOSTILE = (None, True, -1, 0, 10**30, 1e308, "x", "", [], {}, [[]], {"a": 1}, [-1], [None], 1.5)


def places(value: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    inner = value.items() if isinstance(value, dict) else enumerate(value)
    for key, one in inner:
        yield (*path, key)
        if isinstance(one, dict | list):
            yield from places(one, (*path, key))


def with_value(path: tuple[Any, ...], value: Any) -> Any:
    changed = json.loads(json.dumps(STATED))
    at = changed
    for key in path[:-1]:
        at = at[key]
    at[path[-1]] = value
    return changed


def well_formed(manifest: Manifest) -> bool:
    counts = (manifest.layers, manifest.kv_heads, manifest.head_dim, manifest.context)
    return (
        all(type(one) is int and one > 0 for one in (*counts, *manifest.lanes))
        and max(manifest.lanes) >= 1
        and manifest.kv_bytes_per_token < 1 << 52
        and all(isinstance(name, str) for name in (*manifest.files, *manifest.kernel_probes()))
    )


@pytest.mark.parametrize("path", list(places(STATED)), ids=str)
def test_any_value_anywhere(tmp_path: Path, path: tuple[Any, ...]) -> None:
    refused: list[BundleError] = []
    for value in HOSTILE:
        (tmp_path / MANIFEST_FILE).write_text(json.dumps(with_value(path, value)))
        try:
            assert well_formed(read_manifest(tmp_path))
        except BundleError as error:
            refused.append(error)
    assert refused
    assert all("import the model again" in str(one) for one in refused)
    assert all(len(one.message) < 160 for one in refused)


def test_the_value_is_named(tmp_path: Path) -> None:
    (tmp_path / MANIFEST_FILE).write_text(json.dumps(with_value(("kv_heads",), [[]])))
    with pytest.raises(BundleError, match=r"cannot be, kv_heads: \[\[\]\]"):
        read_manifest(tmp_path)
    (tmp_path / MANIFEST_FILE).write_text(json.dumps(STATED))
    assert read_manifest(tmp_path).kv_heads == 1
