"""The onnxruntime-genai layout: one buffer for past and present gives what concatenation gives."""

from __future__ import annotations

import random
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from homespecd.runtime.open import open_model
from homespecd.runtime.shared_buffer import SharedBufferModel
from homespecd.runtime.step import Model, Rows
from tests import tiny_lanes


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_lanes.make_shared_buffer(tmp_path_factory.mktemp("genai"))


@pytest.fixture(scope="module")
def model(folder: Path) -> Iterator[Model]:
    model = open_model(folder, threads=1, context=None, lanes=4)
    yield model
    model.close()


def test_it_is_recognised_by_its_folder(model: Model) -> None:
    assert isinstance(model, SharedBufferModel)
    assert model.spec.context == tiny_lanes.POSITIONS
    assert (model.spec.lanes, model.spec.vocab_size) == (1, tiny_lanes.VOCAB)
    assert not model.spec.width_invariant  # the attention is not padded here
    assert not model.spec.logits_last_only


def test_same_bits_as_the_same_graph_with_its_cache_copied(folder: Path, model: Model) -> None:
    """The graph file alone says nothing of a shared buffer, so there its cache is concatenated."""
    copied = open_model(folder / "model.onnx", threads=1, context=200, lanes=1)
    assert not isinstance(copied, SharedBufferModel)
    rng = random.Random(3)
    tokens = rng.choices(range(tiny_lanes.VOCAB), k=200)
    mine, theirs = model.new_cache(), copied.new_cache()
    for _ in range(60):
        if mine.length > 190 or rng.random() < 0.3:
            back = rng.randint(0, mine.length)
            mine.rewind_to(back)
            theirs.rewind_to(back)
        part = tokens[mine.length : mine.length + rng.randint(1, 9)]
        asked = rng.randint(0, len(part))
        (one,) = model.step([Rows(mine, part, asked)])
        (other,) = copied.step([Rows(theirs, part, asked)])
        assert np.array_equal(one, other)
        assert one.shape == (len(part) - asked, tiny_lanes.VOCAB)
    copied.close()


def test_growth_and_rewind_keep_the_bits(model: Model) -> None:
    tokens = random.Random(4).choices(range(tiny_lanes.VOCAB), k=400)
    cache = model.new_cache()
    model.step([Rows(cache, tokens[:250], 250)])
    before = cache.nbytes
    (first,) = model.step([Rows(cache, tokens[250:], 0)])
    assert cache.nbytes > before
    cache.rewind_to(250)
    (second,) = model.step([Rows(cache, tokens[250:], 0)])
    assert np.array_equal(first, second)


def test_context_limit(model: Model) -> None:
    cache = model.new_cache()
    model.step([Rows(cache, [1] * tiny_lanes.POSITIONS, tiny_lanes.POSITIONS)])
    with pytest.raises(ValueError, match="do not fit into a context of 512"):
        model.step([Rows(cache, [1], 0)])
    assert cache.length == tiny_lanes.POSITIONS
