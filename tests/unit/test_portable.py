"""The portable graph against an independent Llama and the lanes graph of the same bundle."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import numpy.typing as npt
import onnx
import pytest

from homespecd.bundle.gguf_file import GgufFile
from homespecd.bundle.manifest import PORTABLE_FILE, graph_file
from homespecd.bundle.precision import Precision
from homespecd.runtime.open import open_model
from homespecd.runtime.step import Model, Rows
from tests import numpy_llama
from tests.raw_lanes import RawLanes
from tests.tiny_bundle import bundle
from tests.tiny_gguf import TinyLlama, vocabulary

TOKENS = [int(token) for token in np.random.default_rng(5).integers(0, len(vocabulary()), 90)]
WIDE = TinyLlama(tied=False, heads=6, kv_heads=2, feed_forward=160, seed=3)

Floats = npt.NDArray[np.float32]


def opened(folder: Path) -> Model:
    return open_model(folder / PORTABLE_FILE, threads=1, context=256, lanes=1)


def logits(model: Model, tokens: list[int], width: int) -> Floats:
    cache = model.new_cache()
    starts = range(0, len(tokens), width)
    steps = [model.step([Rows(cache, tokens[i : i + width], 0)])[0].copy() for i in starts]
    return np.concatenate(steps)


@pytest.mark.parametrize("model", [TinyLlama(), TinyLlama(kv_heads=4, tied=False), WIDE])
def test_floats_agree_with_the_equations(tmp_path: Path, model: TinyLlama) -> None:
    """Positions, mask, grouped heads and the cache, in one step and in several."""
    folder = bundle(tmp_path, model, "fp32")
    file = GgufFile(tmp_path / "tiny.gguf")
    weights = {name: tensor.float32() for name, tensor in file.tensors.items()}
    expected = numpy_llama.logits(model, weights, TOKENS)
    portable = opened(folder)
    for width in (90, 7, 1):
        np.testing.assert_allclose(logits(portable, TOKENS, width), expected, atol=2e-3)
    portable.close()


@pytest.mark.parametrize("kind", ["Q4_1", "Q8_0"])
@pytest.mark.parametrize("precision", ["int8", "int4"])
@pytest.mark.parametrize("embedding", ["Q8_0", "F16"])
def test_it_is_the_same_model_as_the_lanes_graph(
    tmp_path: Path, kind: str, precision: Precision, embedding: str
) -> None:
    """The same codes, zero points and mean columns. Activations are rounded to int8, so last bits
    of the attention grow; a wrong operand leaves no likeness."""
    model = TinyLlama(matrix_type=kind, embedding_type=embedding, tied=embedding == "Q8_0")
    folder = bundle(tmp_path, model, precision)
    lanes = RawLanes(folder, 1).logits(TOKENS, 30)
    portable = opened(folder)
    found = logits(portable, TOKENS, 30)
    portable.close()
    assert np.corrcoef(found.ravel(), lanes.ravel())[0, 1] > 0.999
    gap = np.sort(lanes, axis=1)[:, -1] - np.sort(lanes, axis=1)[:, -2]
    clear = gap > 2 * np.abs(found - lanes).max()
    assert clear.sum() > len(TOKENS) // 2
    assert np.array_equal(found.argmax(axis=1)[clear], lanes.argmax(axis=1)[clear])


def test_a_later_token_never_moves_an_earlier_one(tmp_path: Path) -> None:
    portable = opened(bundle(tmp_path, TinyLlama(), "fp32"))
    one = logits(portable, TOKENS[:20], 20)
    other = logits(portable, [*TOKENS[:10], *TOKENS[50:60]], 20)
    portable.close()
    assert np.array_equal(one[:10], other[:10])
    assert not np.array_equal(one[10:], other[10:])


def test_logits_come_for_the_last_rows_that_are_asked_for(tmp_path: Path) -> None:
    """And a rewound cache goes on as if nothing had been there."""
    portable = opened(bundle(tmp_path, TinyLlama(), "fp32"))
    assert not portable.spec.logits_last_only
    whole = logits(portable, TOKENS[:12], 12)
    cache = portable.new_cache()
    assert portable.step([Rows(cache, TOKENS[:8], 8)])[0].shape == (0, len(vocabulary()))
    portable.step([Rows(cache, TOKENS[40:44], 4)])
    cache.rewind_to(8)
    (last,) = portable.step([Rows(cache, TOKENS[8:12], 3)])
    np.testing.assert_allclose(last, whole[11:], atol=1e-4)
    portable.close()


def test_it_uses_the_weights_of_the_lanes_graphs(tmp_path: Path) -> None:
    """Nothing of any size is held a second time, and no operator needs a shared buffer."""
    folder = bundle(tmp_path, TinyLlama(), "int4")
    portable, lanes = (
        onnx.load(folder / name, load_external_data=False).graph
        for name in (PORTABLE_FILE, graph_file(1))
    )
    shared = {one.name for one in lanes.initializer if one.external_data}
    assert {one.name for one in portable.initializer if one.external_data} == shared
    inside = [one for one in portable.initializer if not one.external_data]
    assert sum(one.ByteSize() for one in inside) < 4096
    microsoft = {node.op_type for node in portable.node if node.domain}
    assert microsoft == {"MatMulNBits", "QuickGelu", "SkipSimplifiedLayerNormalization"}
