"""The lanes graph against an independent Llama, and its bits however rows are split and mixed."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import numpy.typing as npt
import onnx
import pytest

from homespecd.bundle.gguf_file import GgufFile
from homespecd.bundle.manifest import graph_file
from homespecd.bundle.precision import Precision
from homespecd.bundle.quantise import rounded_codes
from tests import numpy_llama
from tests.raw_lanes import RawLanes
from tests.tiny_bundle import bundle
from tests.tiny_gguf import TinyLlama, vocabulary

WIDTHS = (2, 3, 4, 5, 6, 7, 8, 9, 12, 13, 16, 17, 32, 64, 90)
TOKENS = [int(token) for token in np.random.default_rng(5).integers(0, len(vocabulary()), 90)]
# Larger models differ in shape, not in kind: untied head, three query heads to a key head.
WIDE = TinyLlama(tied=False, heads=6, kv_heads=2, feed_forward=160, seed=3)

Floats = npt.NDArray[np.float32]


def dequantised(folder: Path) -> dict[str, Floats]:
    file = GgufFile(folder / "tiny.gguf")
    return {name: tensor.float32() for name, tensor in file.tensors.items()}


@pytest.fixture(scope="module")
def int4(tmp_path_factory: pytest.TempPathFactory) -> Path:
    # Blocks of 16 at 4 bits: invariant on every CPU type seen, so the tests' bits are too.
    return bundle(tmp_path_factory.mktemp("int4"), TinyLlama(), "int4", four_bits=16)


@pytest.fixture(scope="module")
def one_lane(int4: Path) -> RawLanes:
    return RawLanes(int4, 1)


@pytest.fixture(scope="module")
def alone(one_lane: RawLanes) -> Floats:
    """Logits of TOKENS, row by row."""
    return one_lane.logits(TOKENS, 1)


@pytest.mark.parametrize("model", [TinyLlama(), TinyLlama(matrix_type="F16"), WIDE])
def test_floats_agree_with_the_equations(tmp_path: Path, model: TinyLlama) -> None:
    """Rotary order, norms, grouped heads, gate and up, tied or separate head."""
    raw = RawLanes(bundle(tmp_path, model, "fp32"), 1)
    expected = numpy_llama.logits(model, dequantised(tmp_path), TOKENS)
    np.testing.assert_allclose(raw.logits(TOKENS, 30), expected, atol=2e-3)


@pytest.mark.parametrize("block", [16, 32])
@pytest.mark.parametrize("kind", ["Q4_0", "Q4_1", "Q8_0", "F16"])
@pytest.mark.parametrize("precision", ["int8", "int4"])
def test_quantised_graphs_compute_the_same_model(
    tmp_path: Path, kind: str, precision: Precision, block: int
) -> None:
    """Activations are rounded to int8, so agreement is close, not exact; a wrong nibble order, zero
    point or mean column leaves none. Where an import rounds weights, the equations get the same."""
    model = TinyLlama(matrix_type=kind)
    raw = RawLanes(bundle(tmp_path, model, precision, block=block), 1)
    weights = dequantised(tmp_path)
    if precision == "int4" and kind in ("Q8_0", "F16"):
        for name, array in weights.items():
            if name.startswith("blk.") and array.ndim == 2:
                weights[name] = rounded_codes(array, 4).float32()
    expected = numpy_llama.logits(model, weights, TOKENS)
    actual = raw.logits(TOKENS, 90)
    assert np.corrcoef(actual.ravel(), expected.ravel())[0, 1] > 0.99


@pytest.mark.parametrize("tied", [True, False])
@pytest.mark.parametrize("kind", ["Q4_0", "Q4_1"])
def test_a_table_of_four_bits_in_the_file_is_looked_up_right(
    tmp_path: Path, kind: str, tied: bool
) -> None:
    """Rows of a table are used as they are, so no mean columns may stand in them."""
    model = TinyLlama(embedding_type=kind, tied=tied)
    raw = RawLanes(bundle(tmp_path, model, "int4"), 1)
    expected = numpy_llama.logits(model, dequantised(tmp_path), TOKENS)
    assert np.corrcoef(raw.logits(TOKENS, 90).ravel(), expected.ravel())[0, 1] > 0.99


@pytest.mark.parametrize("width", WIDTHS)
def test_logits_are_the_same_bits_at_every_width(
    one_lane: RawLanes, alone: Floats, width: int
) -> None:
    assert np.array_equal(one_lane.logits(TOKENS, width), alone)


@pytest.mark.parametrize("capacity", [91, 128, 250])
def test_the_buffers_size_does_not_show(int4: Path, alone: Floats, capacity: int) -> None:
    """One position past the tokens is enough: the pad row's."""
    assert np.array_equal(RawLanes(int4, 1, capacity=capacity).logits(TOKENS, 7), alone)


@pytest.mark.parametrize("lanes", [2, 4])
@pytest.mark.parametrize("seed", [0, 1])
def test_sequences_in_lanes_are_bit_identical_to_each_alone(
    int4: Path, one_lane: RawLanes, lanes: int, seed: int
) -> None:
    """Random interleavings of 0 … 6 rows, idle lanes first, last and in between."""
    random = np.random.default_rng(seed)
    texts = [TOKENS[lane * 5 :][: 40 + 3 * lane] for lane in range(lanes)]
    raw = RawLanes(int4, lanes, capacity=64)
    seen: list[list[Floats]] = [[] for _ in texts]
    for rows in interleaved(texts, random):
        logits = raw.step(rows)
        for lane in sorted(rows):
            seen[lane].append(logits[: len(rows[lane])])
            logits = logits[len(rows[lane]) :]
    for lane, text in enumerate(texts):
        assert np.array_equal(np.concatenate(seen[lane]), one_lane.logits(text, 1)), lane


def interleaved(
    texts: list[list[int]], random: np.random.Generator
) -> Iterator[dict[int, list[int]]]:
    places = [0] * len(texts)
    while any(place < len(text) for place, text in zip(places, texts, strict=True)):
        rows = {}
        for lane, text in enumerate(texts):
            new = text[places[lane] :][: int(random.integers(0, 7))]
            places[lane] += len(new)
            if new:
                rows[lane] = new
        if rows:
            yield rows


@pytest.mark.parametrize("lanes", [1, 4])
def test_logits_come_for_the_rows_that_are_asked_for(int4: Path, alone: Floats, lanes: int) -> None:
    """None of them, or some in any order."""
    raw = RawLanes(int4, lanes)
    assert raw.step({0: TOKENS[:20]}, []).shape == (0, len(vocabulary()))
    assert np.array_equal(raw.step({0: TOKENS[20:30]}, [9, 2]), alone[[29, 22]])


def test_a_rewound_cache_gives_the_same_bits(one_lane: RawLanes, alone: Floats) -> None:
    """Rewinding is a number: what lies past the length is never read."""
    one_lane.logits(TOKENS, 90)
    one_lane.lengths[0] = 10
    assert np.array_equal(one_lane.step({0: TOKENS[10:25]}), alone[10:25])


def test_every_graph_follows_the_contract(int4: Path) -> None:
    for lanes in (1, 2, 4):
        graph = onnx.load(int4 / graph_file(lanes), load_external_data=False).graph
        caches = [
            f"{layer}.{part}.{lane}"
            for layer in range(2)
            for lane in range(lanes)
            for part in ("key", "value")
        ]
        inputs = ["input_ids", "lane_rows", "past_lengths", "logit_rows"]
        inputs += [f"past_key_values.{cache}" for cache in caches]
        assert sorted(one.name for one in graph.input) == sorted(inputs)
        outputs = ["logits", *(f"present.{cache}" for cache in caches)]
        assert sorted(one.name for one in graph.output) == sorted(outputs)


def test_the_tied_table_is_held_once(int4: Path) -> None:
    """Lookup and head name the same bytes of the weights file."""
    graph = onnx.load(int4 / graph_file(1), load_external_data=False).graph
    tables = {
        name
        for node in graph.node
        for name in node.input
        if name.startswith("embedding.codes")
        if node.op_type in ("GatherBlockQuantized", "MatMulNBits")
    }
    assert tables == {"embedding.codes"}
    places = {
        one.name: {entry.key: entry.value for entry in one.external_data}
        for one in graph.initializer
    }
    assert places["embedding.row_scales"] == places["embedding.scales"]
