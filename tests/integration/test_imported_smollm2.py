"""The real model, imported: its logits, its bits and its sense, over bare onnxruntime."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pytest
from tokenizers import Tokenizer

from homespecd.bundle.manifest import PACKED_FOLDER, graph_file, read_manifest
from tests.raw_lanes import RawLanes
from tests.smollm2 import imported

pytestmark = [pytest.mark.model, pytest.mark.slow]

DATA = Path(__file__).parents[1] / "data"
VECTORS = json.loads((DATA / "smollm2_logits.json").read_text(encoding="utf-8"))
WIDTHS = {
    "int4": (2, 3, 4, 5, 6, 7, 8, 9, 12, 13, 16, 17, 32, 64, 100, 200),
    "int8": (2, 3, 8, 17, 200),
    "fp32": (2, 3, 8, 17, 200),
}
# Perplexity over that of the floats, measured 1.002 (int4) and 1.004 (int8).
ALLOWED_RATIO = 1.015

Floats = npt.NDArray[np.float32]


def text_ids(folder: Path) -> list[int]:
    text = (DATA / "perplexity.txt").read_text(encoding="utf-8")
    ids: list[int] = Tokenizer.from_file(str(folder / "tokenizer.json")).encode(text).ids
    return ids


def logsumexp(logits: Floats) -> npt.NDArray[np.float64]:
    exact = np.float64(logits)
    top = exact.max(axis=-1, keepdims=True)
    return np.log(np.exp(exact - top).sum(axis=-1)) + top[:, 0]


def perplexity(folder: Path) -> float:
    ids = text_ids(folder)
    logits = RawLanes(folder, 1, capacity=2048).logits(ids[:-1], 64)
    chosen = logits[np.arange(len(ids) - 1), ids[1:]]
    return float(np.exp((logsumexp(logits) - chosen).mean()))


@pytest.fixture(scope="module")
def fp32_perplexity(smollm2_fp32: Path) -> float:
    return perplexity(smollm2_fp32)


@pytest.mark.parametrize("case", VECTORS["positions"], ids=lambda case: f"{len(case['ids'])} ids")
def test_float_logits_are_those_of_transformers(
    smollm2_fp32: Path, case: dict[str, list[int]]
) -> None:
    logits = RawLanes(smollm2_fp32, 1).logits(case["ids"], len(case["ids"]))
    top = np.take_along_axis(logits, np.array(case["top_ids"]), axis=1)
    np.testing.assert_allclose(top, case["top_logits"], atol=1e-3)
    np.testing.assert_allclose(logsumexp(logits), case["logsumexp"], atol=1e-3)


def test_greedy_text_is_that_of_transformers(smollm2_fp32: Path) -> None:
    raw = RawLanes(smollm2_fp32, 1)
    prompt, expected = VECTORS["greedy"]["prompt_ids"], VECTORS["greedy"]["new_ids"]
    logits, actual = raw.step({0: prompt}, [len(prompt) - 1]), []
    for _ in expected:
        actual.append(int(logits[-1].argmax()))
        logits = raw.step({0: actual[-1:]})
    assert actual == expected


@pytest.mark.parametrize("precision", ["int4", "int8"])
def test_rounding_costs_little(smollm2_gguf: Path, fp32_perplexity: float, precision: str) -> None:
    ratio = perplexity(imported(smollm2_gguf, precision)) / fp32_perplexity
    assert ratio < ALLOWED_RATIO


def test_int4_keeps_every_number_of_the_file(smollm2_int4: Path) -> None:
    manifest = read_manifest(smollm2_int4)
    assert all(part.kept for part in manifest.parts)
    assert manifest.licence == "apache-2.0"


@pytest.mark.parametrize("precision", WIDTHS)
def test_logits_are_the_same_bits_at_every_width(smollm2_gguf: Path, precision: str) -> None:
    """Where the probes said so; this is what they stand for."""
    folder = imported(smollm2_gguf, precision)
    if not read_manifest(folder).width_invariant:
        pytest.fail("this CPU has no width-invariant kernels for this precision", pytrace=False)
    raw = RawLanes(folder, 1)
    ids = text_ids(folder)[:200]
    alone = raw.logits(ids, 1)
    for width in WIDTHS[precision]:
        assert np.array_equal(raw.logits(ids, width), alone), width


def test_four_lanes_are_bit_identical_to_one(smollm2_int4: Path) -> None:
    """Random interleavings of 0 … 6 rows, over packed weights and another buffer size."""
    ids, random = text_ids(smollm2_int4), np.random.default_rng(3)
    texts = [ids[lane * 110 :][: 60 + 5 * lane] for lane in range(4)]
    packed = smollm2_int4 / PACKED_FOLDER / graph_file(4)
    raw = RawLanes(smollm2_int4, 4, capacity=150, graph=packed)
    seen: list[list[Floats]] = [[] for _ in texts]
    while any(raw.lengths[lane] < len(text) for lane, text in enumerate(texts)):
        rows = {
            lane: text[raw.lengths[lane] :][: int(random.integers(0, 7))]
            for lane, text in enumerate(texts)
        }
        if not any(rows.values()):
            continue
        logits = raw.step(rows)
        for lane, new in rows.items():
            seen[lane].append(logits[: len(new)])
            logits = logits[len(new) :]
    one = RawLanes(smollm2_int4, 1)
    for lane, text in enumerate(texts):
        assert np.array_equal(np.concatenate(seen[lane]), one.logits(text, 9)), lane
