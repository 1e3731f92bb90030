"""Which of a bundle's graphs a provider gets, over stand-ins for the provider."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import pytest

from homespecd.bundle.layout import Layout
from homespecd.bundle.manifest import PORTABLE_FILE, graph_file, read_manifest
from homespecd.errors import BundleError, ModelError
from homespecd.runtime import layouts, session
from homespecd.runtime.backend import LoadedGraph, OnnxRuntime
from homespecd.runtime.layouts import LayoutChoice, layout_elsewhere
from homespecd.runtime.open import open_model
from homespecd.runtime.placement import PlacedNode
from homespecd.runtime.providers import PROVIDERS, Attempt, ProviderRequest
from homespecd.runtime.session import load_onnxruntime
from homespecd.runtime.session_settings import SessionSettings
from homespecd.runtime.step import Rows
from tests.tiny_bundle import bundle
from tests.tiny_gguf import TinyLlama

OPENVINO, CPU = PROVIDERS["openvino"], PROVIDERS["cpu"]
REASON = "openvino cannot run GroupQueryAttention, which lanes need"


@dataclass
class OnCpu(OnnxRuntime):
    """onnxruntime with a provider that is the CPU under another name.

    attention: it has GroupQueryAttention. whole: it takes what else there is, else nothing.
    """

    attention: bool = False
    whole: bool = True

    def listed(self) -> Sequence[str]:
        return (OPENVINO, CPU)

    def openvino_devices(self) -> Sequence[str] | None:
        return ("CPU",)

    def load(self, graph: Path, attempt: Attempt, settings: SessionSettings) -> LoadedGraph:
        loaded = super().load(graph, Attempt("cpu"), settings)
        if attempt.provider == "cpu":
            return loaded
        fused = b"GroupQueryAttention" in graph.read_bytes()
        taken = self.whole and (self.attention or not fused)
        nodes = [PlacedNode(OPENVINO if taken else CPU, "GroupQueryAttention" if fused else "Mul")]
        return LoadedGraph(loaded.raw, [OPENVINO, CPU], nodes)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return bundle(tmp_path, TinyLlama(), "int4")


def stand_in(monkeypatch: pytest.MonkeyPatch, **how: bool) -> OnCpu:
    backend = OnCpu(load_onnxruntime(), **how)
    for module in (layouts, session):
        monkeypatch.setattr(module, "OnnxRuntime", lambda _: backend)
    return backend


@pytest.mark.parametrize("attention", [True, False])
@pytest.mark.parametrize("required", [True, False])
@pytest.mark.parametrize("asked", ["auto", "openvino"])
def test_the_layout_follows_the_attention(attention: bool, required: bool, asked: str) -> None:
    request = ProviderRequest(asked, required=required)
    backend = OnCpu(load_onnxruntime(), attention=attention)
    found = layout_elsewhere(request, head_dim=16, backend=backend)
    expected = (
        LayoutChoice(Layout.LANES) if attention else LayoutChoice(Layout.CONCATENATED, REASON)
    )
    assert found == expected


@pytest.mark.parametrize("asked", ["cpu", "cuda", "auto"])
def test_without_another_provider_nothing_is_tried(asked: str) -> None:
    request = ProviderRequest(asked)
    backend = OnCpu(load_onnxruntime()) if asked != "auto" else OnnxRuntime(load_onnxruntime())
    assert layout_elsewhere(request, head_dim=16, backend=backend) is None


@pytest.mark.parametrize(
    ("attention", "whole", "provider", "layout", "lanes", "reason"),
    [
        (True, True, "openvino", "lanes", 2, ""),
        (False, True, "openvino", "concatenated", 1, REASON),
        (False, False, "cpu", "lanes", 2, ""),
    ],
)
def test_a_bundle_is_opened_in_the_layout_that_fits(
    folder: Path,
    monkeypatch: pytest.MonkeyPatch,
    attention: bool,
    whole: bool,
    provider: str,
    layout: str,
    lanes: int,
    reason: str,
) -> None:
    stand_in(monkeypatch, attention=attention, whole=whole)
    model = open_model(folder, threads=1, context=64, lanes=2)
    spec = model.spec
    assert (spec.provider, spec.layout, spec.lanes) == (provider, layout, lanes)
    assert spec.layout_reason == reason
    assert (spec.provider_reason == "") == (provider == "openvino")
    assert model.step([Rows(model.new_cache(), [5, 6], 0)])[0].shape == (2, spec.vocab_size)
    model.close()


def test_a_bundle_of_before_portable_graphs_is_served_on_the_cpu_or_refused(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    stand_in(monkeypatch)
    (folder / PORTABLE_FILE).unlink()
    manifest = read_manifest(folder)
    files = {name: sum_ for name, sum_ in manifest.files.items() if name != PORTABLE_FILE}
    replace(manifest, files=files).write(folder)
    model = open_model(folder, threads=1, context=64, lanes=2)
    assert (model.spec.provider, model.spec.layout) == ("cpu", "lanes")
    assert "has no graph without it: import the model again" in model.spec.provider_reason
    model.close()
    required = ProviderRequest("openvino", required=True)
    with pytest.raises(ModelError, match="import the model again"):
        open_model(folder, provider=required, threads=1, context=64, lanes=2)


def test_damaged_weights_are_refused_there_too(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    stand_in(monkeypatch)
    graph = folder / graph_file(1)
    graph.write_bytes(graph.read_bytes()[:-1] + b"\0")
    with pytest.raises(BundleError, match="damaged or was changed"):
        open_model(folder, threads=1, context=64, lanes=1)
