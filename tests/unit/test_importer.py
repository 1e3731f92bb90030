"""Imports end whole or not at all, and write down what they did."""

from __future__ import annotations

import dataclasses
import errno
import json
from pathlib import Path

import gguf
import numpy as np
import pytest

from homespecd.bundle.digest import file_digest, model_digest
from homespecd.bundle.gguf_file import GgufFile
from homespecd.bundle.manifest import MANIFEST_FILE, Manifest, is_bundle, read_manifest
from homespecd.bundle.weights import WeightsWriter
from homespecd.errors import BundleError
from homespecd.runtime.importing import import_model
from tests.tiny_gguf import LICENCE, TinyLlama, vocabulary


@pytest.fixture
def source(tmp_path: Path) -> Path:
    return TinyLlama().write(tmp_path / "tiny.gguf")


@pytest.fixture
def into(tmp_path: Path) -> Path:
    folder = tmp_path / "models"
    folder.mkdir()
    return folder


def refused(source: Path, into: Path, *, precision: str = "int4", name: str = "tiny") -> str:
    """The sentence of a refused import, which must leave the folder as it was."""
    before = contents(into)
    with pytest.raises(BundleError) as caught:
        import_model(source, name=name, into=into, precision=precision)
    assert contents(into) == before
    return str(caught.value)


def contents(folder: Path) -> dict[str, bytes]:
    """Every file below, hidden ones too, and what is in it; b"" for folders."""
    return {
        str(path.relative_to(folder)): path.read_bytes() if path.is_file() else b""
        for path in folder.rglob("*")
    }


def test_a_bundle_says_what_it_is(source: Path, into: Path) -> None:
    steps: list[tuple[int, int, str]] = []
    manifest = import_model(
        source,
        name="tiny",
        into=into,
        precision="int4",
        progress=lambda *step: steps.append(step),
    )
    folder = into / "tiny"
    assert is_bundle(folder)
    assert read_manifest(folder) == manifest
    tokens = vocabulary()
    assert (manifest.architecture, manifest.precision) == ("llama", "int4")
    assert (manifest.layers, manifest.heads, manifest.kv_heads, manifest.head_dim) == (2, 4, 2, 16)
    assert (manifest.hidden, manifest.feed_forward, manifest.context) == (64, 96, 256)
    assert manifest.vocab == manifest.tokenizer_vocab == len(tokens)
    assert manifest.lanes == (1, 2, 4)
    assert (manifest.bos_id, manifest.add_bos) == (tokens.index("<|im_start|>"), False)
    assert manifest.eos_ids == (tokens.index("<|endoftext|>"), tokens.index("<|im_end|>"))
    assert manifest.kv_bytes_per_token == 2 * 2 * 2 * 16 * 4
    assert manifest.licence == LICENCE
    assert (manifest.source_file, manifest.source_sha256) == ("tiny.gguf", file_digest(source))
    assert manifest.kernels.blocks["4"] in (16, 32)
    assert manifest.width_invariant == all(
        manifest.kernels.invariant[name] for name in manifest.kernel_probes()
    )
    assert manifest.files == {
        path.name: file_digest(path)
        for path in folder.iterdir()
        if path.is_file() and path.name != MANIFEST_FILE
    }
    assert {"model.lanes1.onnx", "weights.bin", "tokenizer.json"} <= manifest.files.keys()
    assert manifest.digest == model_digest(manifest.files)
    done = [done for done, _, _ in steps]
    assert done == sorted(done)
    assert done[-1] == steps[-1][1] > 0
    assert {path.name for path in into.iterdir()} == {"tiny"}


@pytest.mark.parametrize(
    ("kind", "precision", "held"),
    [
        ("Q4_1", "int4", ("int4", True)),
        ("Q4_0", "int4", ("int4", True)),
        ("Q8_0", "int4", ("int4", False)),
        ("F16", "int4", ("int4", False)),
        ("Q4_1", "int8", ("int8", False)),
        ("Q4_0", "int8", ("int8", True)),
        ("Q8_0", "int8", ("int8", True)),
        ("Q4_1", "fp32", ("fp32", True)),
    ],
)
def test_the_precision_of_each_part_is_written_down(
    tmp_path: Path, into: Path, kind: str, precision: str, held: tuple[str, bool]
) -> None:
    source = TinyLlama(matrix_type=kind).write(tmp_path / "tiny.gguf")
    manifest = import_model(source, name="tiny", into=into, precision=precision)
    parts = {part.part: part for part in manifest.parts}
    for name in ("attention.qkv", "attention.output", "mlp.gate_up", "mlp.down"):
        part = parts[name]
        assert (part.precision, part.kept) == held
        assert (part.source, part.layers) == (kind, 2)
    table = parts["embedding"]
    assert table.precision == ("fp32" if precision == "fp32" else "int8")
    assert (table.source, table.kept) == ("Q8_0", True)
    assert "head" not in parts


def test_a_mixture_keeps_its_wider_tensors_wide(tmp_path: Path, into: Path) -> None:
    """A file of 4-bit matrices holds some in more bits on purpose; fused parts share the wider."""

    class Mixture(TinyLlama):
        def _type(self, name: str, array: np.ndarray) -> gguf.GGMLQuantizationType:  # type: ignore[type-arg]
            if name in ("blk.0.attn_v.weight", "blk.0.ffn_down.weight"):
                return gguf.GGMLQuantizationType.Q5_1
            return super()._type(name, array)

    source = Mixture().write(tmp_path / "tiny.gguf")
    manifest = import_model(source, name="tiny", into=into, precision="int4")
    found = {(one.part, one.precision, one.source, one.layers) for one in manifest.parts}
    assert {
        ("attention.qkv", "int8", "Q4_1+Q5_1", 1),
        ("attention.qkv", "int4", "Q4_1", 1),
        ("mlp.down", "int8", "Q5_1", 1),
        ("mlp.down", "int4", "Q4_1", 1),
        ("mlp.gate_up", "int4", "Q4_1", 2),
    } <= found


def test_two_imports_of_a_file_are_the_same_model(source: Path, into: Path) -> None:
    first = import_model(source, name="one", into=into, precision="int4")
    second = import_model(source, name="two", into=into, precision="int4")
    assert first.digest == second.digest
    assert dataclasses.replace(first, name="two") == second


def test_a_name_that_is_taken_needs_force(source: Path, into: Path) -> None:
    first = import_model(source, name="tiny", into=into, precision="int8")
    assert "exists already" in refused(source, into)
    second = import_model(source, name="tiny", into=into, precision="int4", force=True)
    assert read_manifest(into / "tiny") == second != first
    assert {path.name for path in into.iterdir()} == {"tiny"}


def test_a_failed_replacement_leaves_the_old_bundle(source: Path, into: Path) -> None:
    import_model(source, name="tiny", into=into, precision="int8")
    before = contents(into)
    broken = source.with_name("broken.gguf")
    broken.write_bytes(source.read_bytes()[:-1000])
    with pytest.raises(BundleError, match="cut short"):
        import_model(broken, name="tiny", into=into, precision="int4", force=True)
    assert contents(into) == before


@pytest.mark.parametrize("kept", [0.001, 0.02, 0.1, 0.5, 0.9, 0.9999])
def test_a_truncated_file_is_one_sentence(source: Path, into: Path, kept: float) -> None:
    data = source.read_bytes()
    source.write_bytes(data[: max(5, int(len(data) * kept))])
    sentence = refused(source, into)
    assert str(source) in sentence
    assert "cut short or damaged" in sentence


def test_other_files_are_refused_by_what_they_are(tmp_path: Path, into: Path) -> None:
    missing = tmp_path / "missing.gguf"
    assert refused(missing, into) == f"{missing}: cannot be read: No such file or directory"
    text = tmp_path / "text.gguf"
    text.write_text("not a model")
    assert refused(text, into) == f"{text}: is not a GGUF file"
    checkpoint = tmp_path / "checkpoint"
    checkpoint.mkdir()
    (checkpoint / "config.json").write_text("{}")
    (checkpoint / "model.safetensors").write_bytes(b"")
    assert "a Hugging Face checkpoint cannot be imported" in refused(checkpoint, into)
    export = tmp_path / "export" / "onnx"
    export.mkdir(parents=True)
    (export / "model.onnx").write_bytes(b"")
    assert "an ONNX folder cannot be imported" in refused(export.parent, into)


def test_an_unknown_architecture_is_refused_by_name(tmp_path: Path, into: Path) -> None:
    source = TinyLlama(architecture="mamba").write(tmp_path / "tiny.gguf")
    sentence = refused(source, into)
    assert "'mamba' is not supported" in sentence
    assert "llama" in sentence


def test_an_unknown_pre_tokenizer_is_refused_by_name(tmp_path: Path, into: Path) -> None:
    source = TinyLlama(pre="zebra").write(tmp_path / "tiny.gguf")
    assert "zebra" in refused(source, into)


def test_a_precision_without_a_graph_is_refused(source: Path, into: Path) -> None:
    assert "use int4, int8, fp32" in refused(source, into, precision="fp16")


@pytest.mark.parametrize("name", ["../outside", "a/b", "..", ""])
def test_a_name_stays_inside_the_folder(source: Path, into: Path, name: str) -> None:
    assert "is not a name" in refused(source, into, name=name)


def test_a_missing_or_misshapen_tensor_is_named(
    source: Path, into: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    original = GgufFile.__init__

    def without(self: GgufFile, path: Path) -> None:
        original(self, path)
        self.tensors = {
            name: tensor for name, tensor in self.tensors.items() if name != "blk.1.ffn_up.weight"
        }

    def misshapen(self: GgufFile, path: Path) -> None:
        original(self, path)
        name = "blk.0.attn_k.weight"
        self.tensors = {**self.tensors, name: self.tensors["blk.0.attn_q.weight"]}

    monkeypatch.setattr(GgufFile, "__init__", without)
    assert "the tensor blk.1.ffn_up.weight is missing" in refused(source, into)
    monkeypatch.setattr(GgufFile, "__init__", misshapen)
    assert "blk.0.attn_k.weight is [64, 64], expected [32, 64]" in refused(source, into)


def test_values_that_are_not_numbers_are_refused(tmp_path: Path, into: Path) -> None:
    class Broken(TinyLlama):
        def tensors(self) -> dict[str, np.ndarray]:  # type: ignore[type-arg]
            tensors = super().tensors()
            tensors["blk.1.ffn_norm.weight"][3] = np.nan
            return tensors

    source = Broken().write(tmp_path / "tiny.gguf")
    assert "blk.1.ffn_norm.weight holds values that are not finite" in refused(source, into)


def test_a_full_disk_leaves_nothing(
    source: Path, into: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    original = WeightsWriter.add

    def add(self: WeightsWriter, name: str, array: np.ndarray) -> None:  # type: ignore[type-arg]
        if name == "final_norm":
            raise OSError(errno.ENOSPC, "No space left on device")
        original(self, name, array)

    monkeypatch.setattr(WeightsWriter, "add", add)
    sentence = refused(source, into)
    assert "cannot be written: No space left on device" in sentence
    assert "room on the disk" in sentence


@pytest.mark.parametrize("at", ["kernels", "layers.1.mlp.down", "packed"])
def test_an_interrupt_leaves_nothing(source: Path, into: Path, at: str) -> None:
    def interrupt(_done: int, _total: int, what: str) -> None:
        if what == at:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        import_model(source, name="tiny", into=into, precision="int4", progress=interrupt)
    assert contents(into) == {}


def test_a_manifest_that_cannot_be_used_says_why(source: Path, into: Path) -> None:
    with pytest.raises(BundleError, match="manifest cannot be read"):
        read_manifest(into)
    import_model(source, name="tiny", into=into, precision="fp32")
    path = into / "tiny" / MANIFEST_FILE
    stated = json.loads(path.read_text())
    for text, message in (
        ("{", "not JSON"),
        ("[]", "format is None"),
        (json.dumps({**stated, "format": 99}), "format is 99"),
        (json.dumps({key: stated[key] for key in stated if key != "eos_ids"}), "incomplete"),
    ):
        path.write_text(text)
        with pytest.raises(BundleError, match=message):
            read_manifest(path.parent)


def test_a_manifest_survives_its_file(source: Path, into: Path) -> None:
    manifest = import_model(source, name="tiny", into=into, precision="int4")
    changed = dataclasses.replace(manifest, bos_id=None, licence="Ünïcode", eos_ids=(7,))
    changed.write(into)
    assert read_manifest(into) == changed
    assert isinstance(read_manifest(into), Manifest)
