"""The Llama of `tests.tiny_gguf` in plain numpy, the whole sequence at once, in float64.

Written from the equations, with GGUF's own order of query and key rows (neighbours are rotated),
so that it shares nothing with the importer.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import numpy.typing as npt

from tests.tiny_gguf import TinyLlama

Array = npt.NDArray[np.float64]


def logits(
    model: TinyLlama, weights: Mapping[str, npt.NDArray[np.float32]], tokens: Sequence[int]
) -> Array:
    """Logits [n, vocab] of every position. `weights` by GGUF name, [out, in]."""
    w = {name.removesuffix(".weight"): np.float64(array) for name, array in weights.items()}
    hidden = w["token_embd"][list(tokens)]
    for layer in range(model.layers):
        block = {
            name.removeprefix(f"blk.{layer}."): array
            for name, array in w.items()
            if name.startswith(f"blk.{layer}.")
        }
        normed = _norm(hidden, block["attn_norm"])
        hidden = hidden + _attention(model, block, normed) @ block["attn_output"].T
        normed = _norm(hidden, block["ffn_norm"])
        gate, up = normed @ block["ffn_gate"].T, normed @ block["ffn_up"].T
        hidden = hidden + (gate / (1 + np.exp(-gate)) * up) @ block["ffn_down"].T
    return _norm(hidden, w["output_norm"]) @ w.get("output", w["token_embd"]).T


def _norm(values: Array, weight: Array) -> Array:
    return values / np.sqrt((values**2).mean(axis=-1, keepdims=True) + 1e-5) * weight


def _attention(model: TinyLlama, block: Mapping[str, Array], normed: Array) -> Array:
    count, size = len(normed), model.head_dim
    query = _rotated((normed @ block["attn_q"].T).reshape(count, model.heads, size))
    key = _rotated((normed @ block["attn_k"].T).reshape(count, model.kv_heads, size))
    value = (normed @ block["attn_v"].T).reshape(count, model.kv_heads, size)
    shared = model.heads // model.kv_heads
    key, value = np.repeat(key, shared, axis=1), np.repeat(value, shared, axis=1)
    scores = np.einsum("qhd,khd->hqk", query, key) / np.sqrt(size)
    scores[:, np.triu(np.ones((count, count), dtype=bool), 1)] = -np.inf
    weights = np.exp(scores - scores.max(axis=-1, keepdims=True))
    weights /= weights.sum(axis=-1, keepdims=True)
    mixed: Array = np.einsum("hqk,khd->qhd", weights, value)
    return mixed.reshape(count, -1)


def _rotated(heads: Array) -> Array:
    """Rotate neighbours (2i, 2i + 1) of [n, heads, size] by position · 10000^(-2i / size)."""
    count, _, size = heads.shape
    angles = np.arange(count)[:, None] * 10000.0 ** (-np.arange(0, size, 2) / size)
    turned = (heads[..., 0::2] + 1j * heads[..., 1::2]) * np.exp(1j * angles)[:, None, :]
    return np.stack([turned.real, turned.imag], axis=-1).reshape(heads.shape)
