"""Lanes: a sequence's logits are the same bits alone, split, rewound and in company."""

from __future__ import annotations

import gc
import random
import weakref
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from homespecd.errors import ModelError
from homespecd.runtime.buffers import BufferCache, next_capacity
from homespecd.runtime.lanes import LanesModel
from homespecd.runtime.open import open_model
from homespecd.runtime.step import KVCache, Logits, Model, Rows
from tests import tiny_lanes
from tests.oracle import Oracle, Toy, encode
from tests.tiny_onnx import make_toy


def sequence(seed: int, length: int) -> list[int]:
    return random.Random(seed).choices(range(tiny_lanes.VOCAB), k=length)


def alone(model: Model, tokens: list[int]) -> Logits:
    """Logits of a sequence fed token by token, with nobody else in the step."""
    cache = model.new_cache()
    return np.concatenate([model.step([Rows(cache, [t], 0)])[0].copy() for t in tokens])


@pytest.fixture(scope="module")
def attention(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Model]:
    folder = tiny_lanes.make_lanes(tmp_path_factory.mktemp("attention"))
    model = open_model(folder, threads=1, context=tiny_lanes.POSITIONS, lanes=4)
    yield model
    model.close()


@pytest.fixture(scope="module")
def toy(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Model]:
    folder = make_toy(tmp_path_factory.mktemp("toy") / "toy", Toy(layout="lanes"))
    model = open_model(folder, threads=1, context=64, lanes=3)
    yield model
    model.close()


def test_logits_are_bit_identical_at_every_width(attention: Model) -> None:
    tokens = sequence(1, 40)
    expected = alone(attention, tokens)
    assert np.ptp(expected) > 1.0
    assert attention.spec.width_invariant
    for width in (2, 3, 4, 5, 9, 16, 17, 40):
        cache = attention.new_cache()
        for start in range(0, len(tokens), width):
            (logits,) = attention.step([Rows(cache, tokens[start : start + width], 0)])
            assert np.array_equal(logits, expected[start : start + width]), width


@pytest.mark.parametrize("seed", range(4))
def test_random_interleavings_are_bit_identical_to_alone(attention: Model, seed: int) -> None:
    rng = random.Random(seed)
    sequences = [sequence(100 * seed + i, rng.randint(20, 60)) for i in range(4)]
    expected = [alone(attention, tokens) for tokens in sequences]
    caches = [attention.new_cache() for _ in sequences]
    company = set()
    while True:
        entries: dict[int, Rows] = {}
        for i in rng.sample(range(4), 4):
            start = caches[i].length
            count = min(rng.randint(0, 6), len(sequences[i]) - start)
            if count:
                part = sequences[i][start : start + count]
                entries[i] = Rows(caches[i], part, rng.randint(0, count))
        if all(c.length == len(s) for c, s in zip(caches, sequences, strict=True)):
            break
        if not entries:
            continue
        company.add(len(entries))
        starts = {i: caches[i].length for i in entries}
        results = attention.step(list(entries.values()))
        for (i, entry), logits in zip(entries.items(), results, strict=True):
            first = starts[i] + entry.logits_from
            assert np.array_equal(logits, expected[i][first : starts[i] + len(entry.tokens)])
        if rng.random() < 0.2:
            back = rng.randrange(4)
            caches[back].rewind_to(rng.randint(0, caches[back].length))
    assert company == {1, 2, 3, 4}


def test_toy_in_company_says_what_the_oracle_says(toy: Model) -> None:
    """Every entry's logits against an independent oracle, lanes changing hands all the time."""
    rng = random.Random(5)
    oracle = Oracle(Toy(layout="lanes"))
    sequences = [encode("the end of it")[: 9 + i] * 3 for i in range(5)]
    caches = [toy.new_cache() for _ in sequences]
    for _ in range(60):
        chosen = rng.sample(range(5), rng.randint(1, 3))
        entries, expected = [], []
        for i in chosen:
            if caches[i].length > len(sequences[i]) - 6 or rng.random() < 0.2:
                caches[i].rewind_to(rng.randint(0, caches[i].length // 2))
            start, count = caches[i].length, rng.randint(1, 6)
            entries.append(Rows(caches[i], sequences[i][start : start + count], 0))
            expected.append([oracle.logits(sequences[i][: start + n + 1]) for n in range(count)])
        for logits, right in zip(toy.step(entries), expected, strict=True):
            assert logits.tolist() == right


def test_growth_keeps_the_bits(attention: Model) -> None:
    tokens = sequence(3, 300)
    cache = attention.new_cache()
    assert cache.nbytes == 0
    attention.step([Rows(cache, tokens[:250], 250)])
    before = cache.nbytes
    (grown,) = attention.step([Rows(cache, tokens[250:], 0)])
    assert cache.nbytes > before
    whole = attention.new_cache()
    (expected,) = attention.step([Rows(whole, tokens, 250)])
    assert np.array_equal(grown, expected)


def test_a_cache_that_begins_as_another_has_its_bits(attention: Model) -> None:
    """Whatever it held before, and while the other goes on."""
    tokens = sequence(4, 300)  # past the first capacity
    donor, fresh, used = (attention.new_cache() for _ in range(3))
    attention.step([Rows(donor, tokens, len(tokens))])
    attention.step([Rows(used, tokens[::-1][:20], 20)])
    for cache in (fresh, used):
        assert isinstance(cache, BufferCache)
        cache.take_from(donor, 290)
        assert cache.length == 290
    rest = tokens[290:]
    own = attention.step([Rows(fresh, rest, 0), Rows(used, rest, 0)])
    first, second = (one.copy() for one in own)
    donor.rewind_to(290)
    [expected] = attention.step([Rows(donor, rest, 0)])
    assert first.tobytes() == second.tobytes() == expected.tobytes()


@pytest.mark.parametrize(
    ("held", "needed", "limit", "expected"),
    [
        (0, 2, 4097, 256),
        (256, 256, 4097, 256),
        (256, 257, 4097, 384),
        (384, 1000, 4097, 1000),
        (4000, 4001, 4097, 4097),
        (0, 2, 65, 65),
    ],
)
def test_capacity_grows_in_steps_up_to_the_limit(
    held: int, needed: int, limit: int, expected: int
) -> None:
    assert next_capacity(held, needed, limit) == expected


def test_context_is_a_limit_to_the_last_position(toy: Model) -> None:
    cache = toy.new_cache()
    toy.step([Rows(cache, [65] * 63, 63)])
    (logits,) = toy.step([Rows(cache, [66], 0)])
    assert logits.tolist() == [Oracle(Toy()).logits([65] * 63 + [66])]
    with pytest.raises(ValueError, match="64 tokens and 1 more do not fit into a context of 64"):
        toy.step([Rows(cache, [67], 0)])
    assert cache.length == 64


def test_no_entry_is_run_when_one_does_not_fit(toy: Model) -> None:
    full, other = toy.new_cache(), toy.new_cache()
    toy.step([Rows(full, [65] * 64, 64)])
    with pytest.raises(ValueError, match="do not fit"):
        toy.step([Rows(other, [65], 0), Rows(full, [65], 0)])
    assert (other.length, full.length) == (0, 64)


def test_rewinding_is_by_absolute_length(toy: Model) -> None:
    cache = toy.new_cache()
    toy.step([Rows(cache, [1, 2, 3], 3)])
    for wrong in (4, -1):
        with pytest.raises(ValueError, match=f"3 tokens to {wrong}"):
            cache.rewind_to(wrong)
    cache.rewind_to(3)
    assert cache.length == 3


def test_a_failing_step_leaves_every_cache_as_it_was(tmp_path: Path) -> None:
    toy = Toy(layout="lanes", fail_at=5)
    model = open_model(make_toy(tmp_path / "toy", toy), threads=1, context=64, lanes=2)
    oracle = Oracle(toy)
    bad, good = model.new_cache(), model.new_cache()
    model.step([Rows(bad, [65] * 4, 4), Rows(good, [66] * 2, 2)])
    with pytest.raises(ModelError, match=r"failed while it ran.*out of data bounds"):
        model.step([Rows(bad, [65] * 4, 0), Rows(good, [70] * 2, 0)])
    assert (bad.length, good.length) == (4, 2)
    (logits,) = model.step([Rows(good, [71], 0)])
    assert logits.tolist() == [oracle.logits([66, 66, 71])]
    (logits,) = model.step([Rows(bad, [72], 0)])
    assert logits.tolist() == [oracle.logits([65, 65, 65, 65, 72])]


def test_a_step_without_wanted_logits_returns_none(toy: Model) -> None:
    cache = toy.new_cache()
    (logits,) = toy.step([Rows(cache, [1, 2], 2)])
    assert logits.shape == (0, toy.spec.vocab_size)
    assert cache.length == 2


def test_misuse_is_an_assertion(toy: Model) -> None:
    caches = [toy.new_cache() for _ in range(4)]
    with pytest.raises(AssertionError, match="more entries than lanes"):
        toy.step([Rows(cache, [1], 0) for cache in caches])
    with pytest.raises(AssertionError, match="one cache in two entries"):
        toy.step([Rows(caches[0], [1], 0)] * 2)
    assert caches[0].length == 0


def test_a_dropped_cache_gives_its_memory_back(toy: Model) -> None:
    """The binding must not keep the buffers of a conversation that is gone."""
    kept: KVCache = toy.new_cache()
    gone = toy.new_cache()
    toy.step([Rows(kept, [1], 0), Rows(gone, [2], 0)])
    assert isinstance(gone, BufferCache)
    buffer = weakref.ref(gone._buffer)
    del gone
    gc.collect()
    assert buffer() is None
    (logits,) = toy.step([Rows(kept, [3], 0)])
    assert logits.tolist() == [Oracle(Toy()).logits([1, 3])]


def test_graphs_larger_than_the_slots_are_not_loaded(tmp_path: Path) -> None:
    folder = make_toy(tmp_path / "toy", Toy(layout="lanes"))
    for slots, loaded in ((1, [1]), (2, [1, 2]), (3, [1, 2, 4]), (9, [1, 2, 4])):
        model = open_model(folder, threads=1, context=64, lanes=slots)
        assert isinstance(model, LanesModel)
        assert [graph.lanes for graph in model._graphs] == loaded
        assert model.spec.lanes == min(slots, 4)
        model.close()
