"""Probing finds kernels whose result depends on the width, whatever this machine has."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path

import numpy as np
import numpy.typing as npt
import onnx
import onnx.numpy_helper
import pytest

from homespecd.bundle.manifest import kernel_probes
from homespecd.runtime import kernels
from homespecd.runtime.cpu import cpu_type
from homespecd.runtime.importing import import_model
from homespecd.runtime.kernels import (
    attention_width_invariant,
    kernels_invariant,
    probe_kernels,
    width_invariant,
)
from homespecd.runtime.probe_graph import Port, one_node_graph
from tests.tiny_gguf import TinyLlama

Rows = npt.NDArray[np.float32]
Run = Callable[[Mapping[str, npt.NDArray[np.generic]], list[str]], list[Rows]]


def sums(*, differs: Callable[[int], bool]) -> Callable[[bytes, int], Run]:
    """Stands for onnxruntime: a product whose last bit depends on how many rows come at once."""

    def runner(_graph: bytes, _threads: int) -> Run:
        def run(feed: Mapping[str, npt.NDArray[np.generic]], _names: list[str]) -> list[Rows]:
            rows = np.float32(feed["rows"])
            product = rows.sum(axis=-1, keepdims=True)
            if differs(rows.shape[1]):
                product[0, -1] = np.nextafter(product[0, -1], np.float32(np.inf))
            return [product]

        return run

    return runner


def test_a_last_bit_at_one_width_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kernels, "_runner", sums(differs=lambda width: width == 13))
    assert not width_invariant(32, 4)
    monkeypatch.setattr(kernels, "_runner", sums(differs=lambda width: width % 2 == 1))
    assert width_invariant(32, 4) is False
    monkeypatch.setattr(kernels, "_runner", sums(differs=lambda _width: False))
    assert width_invariant(32, 4)


def test_attention_that_differs_at_one_width_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """Past 64 positions only, as the kernel for wide heads does."""
    real = kernels._runner

    def differing(graph: bytes, threads: int) -> Run:
        run = real(graph, threads)

        def changed(feed: Mapping[str, npt.NDArray[np.generic]], names: list[str]) -> list[Rows]:
            attended, key, value = run(feed, names)
            if feed["total"][0] > 64 and attended.shape[1] == 9 + 1:
                attended = np.nextafter(attended, np.float32(np.inf))
            return [attended, key, value]

        return changed

    monkeypatch.setattr(kernels, "_runner", differing)
    assert not attention_width_invariant(64)


def test_the_largest_invariant_block_is_chosen(monkeypatch: pytest.MonkeyPatch) -> None:
    def blocks(invariant: set[str]) -> Mapping[str, int]:
        monkeypatch.setattr(kernels, "_probe", lambda name, _threads: name in invariant)
        return probe_kernels(64).blocks

    assert blocks({"int4/32", "int4/16", "int8/32", "int8/16"}) == {"4": 32, "8": 32}
    assert blocks({"int4/16", "int8/32"}) == {"4": 16, "8": 32}
    assert blocks(set()) == {"4": 32, "8": 32}


def test_a_report_names_every_probe() -> None:
    report = probe_kernels(16)
    assert set(report.invariant) == {
        *("int4/16", "int4/32", "int8/16", "int8/32"),
        *("fp32", "attention/16"),
    }
    assert report.cpu == cpu_type()


def test_a_loaded_bundle_is_probed_for_what_it_uses(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    manifest = import_model(
        TinyLlama().write(tmp_path / "tiny.gguf"), name="tiny", into=tmp_path, precision="int4"
    )
    block = manifest.kernels.blocks["4"], manifest.kernels.blocks["8"]
    names = (f"int4/{block[0]}", f"int8/{block[1]}", "attention/16")
    assert kernel_probes(manifest.parts, manifest.head_dim) == names
    assert kernels_invariant(manifest) == manifest.width_invariant
    for broken in names:
        monkeypatch.setattr(kernels, "_probe", lambda name, _threads, bad=broken: name != bad)
        assert not kernels_invariant(manifest)
    monkeypatch.setattr(kernels, "_probe", lambda name, _threads: name in names)
    assert kernels_invariant(manifest)


def test_probe_graphs_are_what_the_onnx_package_reads() -> None:
    """Written without that package, for the service runs without it."""
    weights = np.arange(600, dtype=np.float32).reshape(2, 300)
    data = one_node_graph(
        "Gemm",
        domain="",
        node_inputs=["left", "right"],
        attributes={"transB": 1, "alpha": 0.5},
        inputs=[Port("left", "float32", ("n", 300))],
        outputs=[Port("result", "float32", ("n", 2))],
        weights={"right": weights},
    )
    model = onnx.load_from_string(data)
    onnx.checker.check_model(model, full_check=True)
    node = model.graph.node[0]
    assert (node.op_type, list(node.input), list(node.output)) == (
        "Gemm",
        ["left", "right"],
        ["result"],
    )
    attributes = {one.name: onnx.helper.get_attribute_value(one) for one in node.attribute}
    assert attributes == {"transB": 1, "alpha": 0.5}
    assert np.array_equal(onnx.numpy_helper.to_array(model.graph.initializer[0]), weights)


def test_a_cpu_type_is_what_selects_kernels(tmp_path: Path) -> None:
    """Frequency, core count and flags that no kernel asks for do not change it."""
    cpuinfo = tmp_path / "cpuinfo"

    def kind(text: str) -> str:
        cpuinfo.write_text(text)
        return cpu_type(cpuinfo)

    plain = kind("processor : 0\nflags : fpu sse4_1 avx2 fma\ncpu MHz : 2000\n\nprocessor : 1\n")
    assert plain == kind("flags : avx2 fma aes sse4_1 rdrand\ncpu MHz : 4000\n")
    assert plain != kind("flags : fpu sse4_1 avx2 fma avx512_vnni\n")
    arm = kind("Features : fp asimd asimddp\nCPU implementer : 0x41\nCPU part : 0xd0b\n")
    assert arm != kind("Features : fp asimd asimddp\nCPU implementer : 0x41\nCPU part : 0xd08\n")
    assert cpu_type(tmp_path / "missing")
