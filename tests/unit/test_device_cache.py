"""Caches in a device's own memory: the bits of those in the host's. The device is pretended."""

from __future__ import annotations

import tracemalloc
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from homespecd.errors import ModelError
from homespecd.runtime.buffers import BufferCache
from homespecd.runtime.device_cache import DeviceCache
from homespecd.runtime.open import open_model
from homespecd.runtime.session import load_onnxruntime
from homespecd.runtime.shared_buffer import DeviceSharedBufferCache
from homespecd.runtime.step import Logits, Model, Rows
from tests import tiny_lanes
from tests.pretended import DEVICE, pretend


@pytest.fixture
def made(monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, int]]:
    """Sessions opened from now on have memory of their own; this is where buffers were made."""
    return pretend(monkeypatch)


def texts(model: Model) -> list[Logits]:
    """Two conversations in company that grow past their first buffers, one of them rewound."""
    caches = [model.new_cache() for _ in range(model.spec.lanes)]
    tokens = [(7 + 31 * i) % tiny_lanes.VOCAB for i in range(400)]
    found: list[Logits] = []
    for start, end in ((0, 200), (200, 203), (203, 204), (150, 300), (300, 320)):
        for cache in caches:
            cache.rewind_to(start)
        rows = [Rows(cache, tokens[start:end], end - start - 1) for cache in caches]
        found += [logits.copy() for logits in model.step(rows)]
    return found


def opened(folder: Path, lanes: int) -> Model:
    return open_model(folder, threads=1, context=tiny_lanes.POSITIONS, lanes=lanes)


@pytest.mark.parametrize(
    ("make", "lanes", "kind"),
    [
        (tiny_lanes.make_lanes, 2, DeviceCache),
        (tiny_lanes.make_shared_buffer, 1, DeviceSharedBufferCache),
    ],
)
def test_the_same_bits_as_in_host_memory(
    tmp_path: Path,
    request: pytest.FixtureRequest,
    make: Callable[[Path], Path],
    lanes: int,
    kind: type[DeviceCache],
) -> None:
    folder = make(tmp_path)
    model = opened(folder, lanes)
    assert isinstance(model.new_cache(), BufferCache)
    expected = texts(model)
    model.close()
    made = request.getfixturevalue("made")
    model = opened(folder, lanes)
    cache = model.new_cache()
    assert type(cache) is kind
    found = texts(model)
    assert all(np.array_equal(one, other) for one, other in zip(found, expected, strict=True))
    assert set(made) == {(DEVICE.kind, DEVICE.index)}
    assert cache.nbytes == 0
    model.step([Rows(cache, [1, 2, 3], 3)])
    assert cache.nbytes >= 3 * model.spec.kv_bytes_per_token
    model.close()


def test_a_full_device_leaves_the_cache_as_it_was(
    tmp_path: Path, made: list[tuple[str, int]], monkeypatch: pytest.MonkeyPatch
) -> None:
    model = opened(tiny_lanes.make_lanes(tmp_path), 1)
    cache = model.new_cache()
    model.step([Rows(cache, [1] * 200, 200)])
    held, count = cache.nbytes, len(made)

    def full(*_: object) -> None:
        raise RuntimeError("CUDA failure 2: out of memory")

    with monkeypatch.context() as patched:
        patched.setattr(load_onnxruntime().OrtValue, "ortvalue_from_numpy", full)
        with pytest.raises(ModelError, match=r"no memory for a cache of \d+ tokens") as refused:
            model.step([Rows(cache, [1] * 100, 100)])
    assert refused.value.out_of_memory
    assert (cache.length, cache.nbytes) == (200, held)
    model.step([Rows(cache, [1] * 100, 100)])
    assert (cache.length, len(made) > count) == (300, True)
    model.close()


@pytest.mark.parametrize("where", ["host", "device"])
@pytest.mark.parametrize("make", [tiny_lanes.make_lanes, tiny_lanes.make_shared_buffer])
def test_a_step_copies_nothing_of_the_past(
    tmp_path: Path, request: pytest.FixtureRequest, make: Callable[[Path], Path], where: str
) -> None:
    """I8: from a prompt of one token on, a step makes as little for a long past as for none."""
    made = request.getfixturevalue("made") if where == "device" else []
    model = opened(make(tmp_path), 1)
    cache = model.new_cache()
    assert isinstance(cache, BufferCache if where == "host" else DeviceCache)
    (logits,) = model.step([Rows(cache, [1], 0)])
    assert np.isfinite(logits[0]).all()

    def bytes_made() -> int:
        tracemalloc.start()
        model.step([Rows(cache, [1], 0)])
        _, most = tracemalloc.get_traced_memory()
        tracemalloc.stop()
        return most

    bytes_made()
    little = bytes_made()
    model.step([Rows(cache, [1] * 300, 300)])
    values, count = cache.values, len(made)
    much = bytes_made()

    assert much - little < 300 * model.spec.kv_bytes_per_token / 4
    assert cache.values is values
    assert len(made) == count
    model.close()
