"""Whether the values of a manifest are what their names promise: a file may hold anything.

Not covered: whether they are true. Keys that are missing or unknown are `manifest`'s to name.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

Check = Callable[[Any], bool]

# More than any model has; what is larger would only be multiplied, and allocated.
_MOST = 1 << 48
_MOST_WIDE = 1 << 16


def wrong_value(stated: Mapping[str, Any]) -> str:
    """The first value that cannot be meant, as `key: it`; "" when there is none."""
    return _wrong(stated, _MANIFEST)


def _wrong(stated: Mapping[str, Any], checks: Mapping[str, Check]) -> str:
    for key, fits in checks.items():
        if key in stated and not fits(stated[key]):
            return f"{key}: {_shown(stated[key])}"
    return ""


def _shown(value: Any) -> str:
    said = ascii(value)
    return said if len(said) <= 40 else f"{said[:40]}…"


def _count(least: int, most: int) -> Check:
    return lambda value: type(value) is int and least <= value <= most


def _is(kind: type) -> Check:
    return lambda value: isinstance(value, kind)


def _one_of(*values: str) -> Check:
    return lambda value: isinstance(value, str) and value in values


def _list(fits: Check, *, least: int = 0) -> Check:
    return lambda value: isinstance(value, list) and len(value) >= least and all(map(fits, value))


def _table(fits: Check) -> Check:
    return lambda value: isinstance(value, dict) and all(map(fits, value.values()))


def _record(checks: Mapping[str, Check]) -> Check:
    return lambda value: isinstance(value, dict) and not _wrong(value, checks)


_PART: Mapping[str, Check] = {
    "part": _is(str),
    "precision": _one_of("int4", "int8", "fp16", "fp32"),
    "block_size": _count(0, _MOST_WIDE),
    "source": _is(str),
    "kept": _is(bool),
    "layers": _count(0, _MOST_WIDE),
}
_KERNELS: Mapping[str, Check] = {
    "cpu": _is(str),
    "blocks": _table(_count(1, _MOST_WIDE)),
    "invariant": _table(_is(bool)),
}
_COUNTED = ("vocab", "tokenizer_vocab", "context", "weights_bytes")
_WIDE = ("layers", "heads", "kv_heads", "head_dim")
_TEXTS = ("name", "architecture", "precision", "source_file", "source_sha256", "licence", "digest")

_MANIFEST: Mapping[str, Check] = {
    **dict.fromkeys(_TEXTS, _is(str)),
    **dict.fromkeys(_WIDE, _count(1, _MOST_WIDE)),
    **dict.fromkeys(("hidden", "feed_forward"), _count(1, 1 << 24)),
    **dict.fromkeys(_COUNTED, _count(1, _MOST)),
    **dict.fromkeys(("add_bos", "width_invariant"), _is(bool)),
    "lanes": _list(_count(1, _MOST_WIDE), least=1),
    "bos_id": lambda value: value is None or _count(0, _MOST)(value),
    "eos_ids": _list(_count(0, _MOST)),
    "parts": _list(_record(_PART)),
    "kernels": _record(_KERNELS),
    "files": _table(_is(str)),
}
