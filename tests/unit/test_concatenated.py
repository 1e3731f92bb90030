"""Exported decoders of every shape agree with the oracle, however rows are split and rewound."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import onnx
import pytest

from homespecd.errors import ModelError
from homespecd.runtime.open import open_model
from homespecd.runtime.step import Model, Rows
from tests.oracle import ASSISTANT, END, USER, VOCAB, Oracle, Toy, encode, say
from tests.tiny_onnx import make_toy

CONTEXT = 96
EXPORTS = {
    "single": Toy(),
    "no position_ids": Toy(position_ids=False),
    "no attention_mask": Toy(attention_mask=False),
    "neither": Toy(position_ids=False, attention_mask=False),
    "merged": Toy(layout="merged"),
    "merged, neither": Toy(layout="merged", position_ids=False, attention_mask=False),
    "two files": Toy(layout="two_file"),
    "two files, fp16, no position_ids": Toy(layout="two_file", dtype="float16", position_ids=False),
    "fp16, one thin layer": Toy(dtype="float16", layers=1, heads=1, head_dim=1),
    "deeper": Toy(layers=5, heads=3, head_dim=2),
    "padded": Toy(pad_vocab=64, pad_wins=True),
    "external data": Toy(external_data=True),
    "last row only": Toy(last_only=True),
    "last row only, two files": Toy(last_only=True, layout="two_file"),
    "draft, wrong": Toy(behaviour="wrong"),
    "draft, every third": Toy(behaviour="every_third", layout="merged"),
}

Opener = Callable[[Toy], Model]


@pytest.fixture
def open_toy(tmp_path: Path) -> Iterator[Opener]:
    models = []

    def opened(toy: Toy) -> Model:
        folder = make_toy(tmp_path / str(len(models)), toy)
        models.append(open_model(folder, threads=1, context=CONTEXT, lanes=2))
        return models[-1]

    yield opened
    for model in models:
        model.close()


@pytest.mark.parametrize("export", EXPORTS)
def test_single_steps_blocks_and_rewinds_equal_the_oracle(export: str, open_toy: Opener) -> None:
    toy = EXPORTS[export]
    model, oracle, rng = open_toy(toy), Oracle(toy), random.Random(export)
    prompt = encode("the cat in")
    tokens = prompt + oracle.greedy(prompt, 40)
    right = [oracle.logits(tokens[: i + 1]) for i in range(len(tokens))]
    for most in (1, 4, 17, len(tokens)):
        cache = model.new_cache()
        for _ in range(3 * len(tokens) // most + 2):
            if cache.length == len(tokens) or rng.random() < 0.25:
                cache.rewind_to(rng.randint(0, max(0, cache.length - 1)))
            start = cache.length
            count = min(rng.randint(1, most), len(tokens) - start)
            asked = rng.randint(0, count)
            (logits,) = model.step([Rows(cache, tokens[start : start + count], asked)])
            assert logits.tolist() == right[start + asked : start + count]
            assert cache.length == start + count
            assert cache.nbytes == cache.length * model.spec.kv_bytes_per_token


@pytest.mark.parametrize("export", EXPORTS)
def test_what_is_reported(export: str, open_toy: Opener) -> None:
    toy = EXPORTS[export]
    spec = open_toy(toy).spec
    item_bytes = 2 if toy.dtype == "float16" else 4
    assert spec.vocab_size == VOCAB + toy.pad_vocab
    assert spec.lanes == 1
    assert spec.context == CONTEXT
    assert spec.logits_last_only == toy.last_only
    assert spec.width_invariant == (not toy.last_only)
    assert spec.kv_bytes_per_token == 2 * toy.layers * toy.heads * toy.head_dim * item_bytes
    assert (spec.requested_provider, spec.provider, spec.provider_reason) == ("auto", "cpu", "")
    assert spec.threads == 1


def test_a_rejected_block_leaves_no_trace(open_toy: Opener) -> None:
    """A block of wrong tokens, rewound, then the right ones: as if it had never been there."""
    toy = Toy()
    model, oracle = open_toy(toy), Oracle(toy)
    cache = model.new_cache()
    prompt = encode("abcdef")
    model.step([Rows(cache, prompt, len(prompt))])
    model.step([Rows(cache, encode("WRONG!"), 0)])
    cache.rewind_to(len(prompt))
    (logits,) = model.step([Rows(cache, encode("right"), 0)])
    expected = [oracle.logits(prompt + encode("right")[: i + 1]) for i in range(5)]
    assert logits.tolist() == expected
    # The oracle can tell: with one token of the history changed it says something else.
    assert oracle.logits(encode("abcdeF") + encode("right")) != expected[-1]


def test_a_script_is_spoken_only_while_the_history_is_intact(open_toy: Opener) -> None:
    toy = Toy(script=say("Hi 😀"), script_after=ASSISTANT, dtype="float16")
    model, oracle = open_toy(toy), Oracle(toy)
    cache = model.new_cache()
    prompt = [USER, *encode("a"), END, ASSISTANT]
    said: list[int] = []
    feed = prompt
    while not said or said[-1] != END:
        (logits,) = model.step([Rows(cache, feed, len(feed) - 1)])
        said.append(int(logits[0].argmax()))
        feed = said[-1:]
    assert oracle.text(said) == "Hi 😀"
    assert said == oracle.greedy(prompt, 20)
    cache.rewind_to(len(prompt))
    (logits,) = model.step([Rows(cache, encode("Ho"), 0)])
    assert logits.tolist() == [oracle.logits(prompt + encode("Ho")[:n]) for n in (1, 2)]
    assert int(logits[1].argmax()) != said[2]


def test_a_graph_that_is_not_causal_in_blocks_is_noticed(open_toy: Opener) -> None:
    assert not open_toy(Toy(not_causal=True)).spec.width_invariant


def test_context_limit(open_toy: Opener) -> None:
    model = open_toy(Toy())
    cache = model.new_cache()
    model.step([Rows(cache, [65] * CONTEXT, CONTEXT)])
    with pytest.raises(ValueError, match=f"do not fit into a context of {CONTEXT}"):
        model.step([Rows(cache, [65], 0)])
    assert cache.length == CONTEXT


@pytest.mark.parametrize("last_only", [False, True])
def test_a_failing_step_leaves_the_cache_as_it_was(open_toy: Opener, last_only: bool) -> None:
    """With logits for the last row only, a step is several passes, and a late one fails."""
    toy = Toy(fail_at=8, last_only=last_only)
    model, oracle = open_toy(toy), Oracle(toy)
    cache = model.new_cache()
    tokens = encode("abcde")
    model.step([Rows(cache, tokens, 5)])
    with pytest.raises(ModelError, match="the graph failed while it ran") as caught:
        model.step([Rows(cache, [70] * 5, 0)])
    assert not caught.value.out_of_memory
    assert cache.length == 5
    (logits,) = model.step([Rows(cache, [71], 0)])
    assert logits.tolist() == [oracle.logits([*tokens, 71])]


def test_nan_comes_through(open_toy: Opener) -> None:
    """The runtime does not judge numbers; whoever samples from them does."""
    model = open_toy(Toy(nan_at=30))
    cache = model.new_cache()
    (logits,) = model.step([Rows(cache, [65] * 31, 29)])
    assert [bool(row[0] == row[0]) for row in logits] == [True, False]


def test_second_graph_that_takes_single_rows_only(tmp_path: Path) -> None:
    """Older two-file exports fix the rows of the second graph at one."""
    toy = Toy(layout="two_file")
    folder = make_toy(tmp_path / "toy", toy)
    path = folder / "decoder_with_past_model.onnx"
    graph = onnx.load(path)
    for one in graph.graph.input:
        if one.name in ("input_ids", "position_ids"):
            one.type.tensor_type.shape.dim[1].dim_value = 1
    onnx.save(graph, path)
    model = open_model(folder, threads=1, context=CONTEXT, lanes=1)
    oracle = Oracle(toy)
    cache = model.new_cache()
    tokens = encode("hello world")
    (first,) = model.step([Rows(cache, tokens[:4], 0)])
    (second,) = model.step([Rows(cache, tokens[4:], 1)])
    right = [oracle.logits(tokens[: i + 1]) for i in range(len(tokens))]
    assert first.tolist() == right[:4]
    assert second.tolist() == right[5:]


def test_an_input_nobody_can_make_is_named(tmp_path: Path) -> None:
    folder = make_toy(tmp_path / "toy", Toy())
    graph = onnx.load(folder / "model.onnx")
    graph.graph.input.append(
        onnx.helper.make_tensor_value_info("pixel_values", onnx.TensorProto.FLOAT, [1, 3])
    )
    onnx.save(graph, folder / "model.onnx")
    with pytest.raises(ModelError, match="inputs that are not known here: pixel_values"):
        open_model(folder, threads=1, context=CONTEXT, lanes=1)


def test_a_draft_of_another_shape_agrees_with_its_target(open_toy: Opener) -> None:
    """What a draft looks like inside has no influence on what it says."""
    target = Toy()
    thin = replace(target, layers=1, heads=1, head_dim=2, dtype="float16", position_ids=False)
    tokens = encode("same words, other shape")
    results = []
    for toy in (target, thin):
        model = open_toy(toy)
        (logits,) = model.step([Rows(model.new_cache(), tokens, 0)])
        results.append(logits.tolist())
    assert results[0] == results[1]
