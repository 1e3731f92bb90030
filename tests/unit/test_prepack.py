"""Packed weights: the same bits, made for one CPU type, shared, and never in the way."""

from __future__ import annotations

import shutil
import tempfile
from pathlib import Path

import numpy as np
import pytest

from homespecd.bundle.external_data import stored_bytes
from homespecd.bundle.manifest import PACKED_FOLDER, Manifest, graph_file
from homespecd.config.units import format_size
from homespecd.errors import BundleError
from homespecd.runtime import prepack
from homespecd.runtime.importing import import_model
from homespecd.runtime.prepack import best_graphs, is_packed, pack_bundle
from tests.raw_lanes import RawLanes
from tests.tiny_gguf import TinyLlama

TOKENS = list(range(40, 70))


@pytest.fixture
def bundle(tmp_path: Path) -> tuple[Path, Manifest]:
    source = TinyLlama().write(tmp_path / "tiny.gguf")
    manifest = import_model(source, name="tiny", into=tmp_path, precision="int4")
    return tmp_path / "tiny", manifest


def test_packed_graphs_give_the_same_bits(bundle: tuple[Path, Manifest]) -> None:
    folder, manifest = bundle
    graphs = best_graphs(folder, manifest)
    assert graphs.packed
    assert graphs.reason == ""
    for lanes, path in graphs.files.items():
        assert path == folder / PACKED_FOLDER / graph_file(lanes)
        packed = RawLanes(folder, lanes, graph=path).logits(TOKENS, 7)
        assert np.array_equal(packed, RawLanes(folder, lanes).logits(TOKENS, 7))


def test_one_file_of_weights_serves_every_lane_count(bundle: tuple[Path, Manifest]) -> None:
    folder, manifest = bundle
    files = [folder / PACKED_FOLDER / f"weights.lanes{lanes}.bin" for lanes in manifest.lanes]
    assert len({path.stat().st_ino for path in files}) == 1


def test_weights_are_packed_again_for_another_cpu(
    bundle: tuple[Path, Manifest], monkeypatch: pytest.MonkeyPatch
) -> None:
    folder, manifest = bundle
    assert is_packed(folder, manifest)
    monkeypatch.setattr(prepack, "cpu_type", lambda: "another")
    assert not is_packed(folder, manifest)
    assert best_graphs(folder, manifest).packed
    assert is_packed(folder, manifest)


def test_a_damaged_or_missing_folder_is_made_again(bundle: tuple[Path, Manifest]) -> None:
    folder, manifest = bundle
    packed = folder / PACKED_FOLDER
    (packed / "weights.lanes1.bin").write_bytes(b"")
    assert not is_packed(folder, manifest)
    assert best_graphs(folder, manifest).packed
    shutil.rmtree(packed)
    assert best_graphs(folder, manifest).packed
    (packed / "packed.json").write_text("[]")
    assert not is_packed(folder, manifest)
    pack_bundle(folder, manifest)
    assert is_packed(folder, manifest)
    # Nothing else is left beside it.
    names = {path.name for path in folder.iterdir() if path.name not in manifest.files}
    assert names == {"homespec.json", PACKED_FOLDER}


def test_a_bundle_that_cannot_be_written_to_is_served_unpacked(
    bundle: tuple[Path, Manifest], monkeypatch: pytest.MonkeyPatch
) -> None:
    folder, manifest = bundle
    shutil.rmtree(folder / PACKED_FOLDER)

    def refuse(**_arguments: object) -> str:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(tempfile, "mkdtemp", refuse)
    graphs = best_graphs(folder, manifest)
    assert not graphs.packed
    assert "Permission denied" in graphs.reason
    assert graphs.files == {lanes: folder / graph_file(lanes) for lanes in manifest.lanes}
    assert all(path.is_file() for path in graphs.files.values())


def test_a_full_disk_is_said_in_one_sentence_and_nothing_is_written(
    bundle: tuple[Path, Manifest], monkeypatch: pytest.MonkeyPatch
) -> None:
    folder, manifest = bundle
    shutil.rmtree(folder / PACKED_FOLDER)
    before = sorted(folder.iterdir())
    usage = shutil.disk_usage(folder)._replace(free=1000)
    monkeypatch.setattr(shutil, "disk_usage", lambda _path: usage)
    graphs = best_graphs(folder, manifest)
    assert not graphs.packed
    needed = format_size(stored_bytes(folder / graph_file(manifest.lanes[0])))
    assert graphs.reason == (
        f"{folder}: no room to prepack the weights: it takes {needed}, and the disk has 0.98 KiB "
        "(free some space, or move the model)"
    )
    assert sorted(folder.iterdir()) == before


@pytest.mark.parametrize("name", ["weights.bin", "model.lanes2.onnx"])
def test_a_bundle_that_is_damaged_is_refused(bundle: tuple[Path, Manifest], name: str) -> None:
    """Its own files are what everything is made from again: wrong bytes would be wrong text."""
    folder, manifest = bundle
    shutil.rmtree(folder / PACKED_FOLDER)
    flip_a_byte(folder / name)
    with pytest.raises(BundleError, match=rf"{name}: is not what was imported"):
        best_graphs(folder, manifest)
    flip_a_byte(folder / name)
    assert best_graphs(folder, manifest).packed


def test_packed_weights_that_changed_in_place_are_made_again(
    bundle: tuple[Path, Manifest], caplog: pytest.LogCaptureFixture
) -> None:
    """Same size, other bytes: nothing but reading them tells."""
    folder, manifest = bundle
    weights = folder / PACKED_FOLDER / "weights.lanes1.bin"
    before = weights.read_bytes()
    flip_a_byte(weights)
    assert best_graphs(folder, manifest).packed
    assert weights.read_bytes() == before
    assert "are damaged" in caplog.text


def flip_a_byte(path: Path) -> None:
    with path.open("r+b") as file:
        file.seek(path.stat().st_size // 2)
        byte = file.read(1)[0]
        file.seek(-1, 1)
        file.write(bytes([byte ^ 0xFF]))
