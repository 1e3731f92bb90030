"""Choosing an execution provider, over stand-ins for onnxruntime: what is tried, what is kept, and
what is said, for every combination of asked, listed, creatable, whole and required."""

from __future__ import annotations

import itertools
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from homespecd.bundle.layout import CacheTensors, Layout
from homespecd.errors import ModelError
from homespecd.runtime.backend import LoadedGraph
from homespecd.runtime.concatenated import ConcatenatedCache
from homespecd.runtime.placement import DeviceMemory, PlacedNode, Placement, count, named
from homespecd.runtime.providers import (
    PROVIDERS,
    Attempt,
    ProviderRequest,
    choose,
    device_of,
    judge,
    missing_device,
)
from homespecd.runtime.session_settings import SessionSettings
from homespecd.runtime.together import open_together
from tests.unit.pretended_runtime import CPU, StandIn, placed

DEVICES = ("cuda", "openvino", "directml")
STATES = ("unlisted", "raises", "absent", "none", "part", "stray", "whole")


def state(how: str) -> str | Exception:
    return RuntimeError("the device is busy") if how == "raises" else how


SAID = {
    "unlisted": "is not in the installed onnxruntime",
    "raises": "failed: the device is busy",
    "absent": "did not start: no driver",
    "none": "took no node of this graph",
    "part": "leaves 30.0% of this graph to the CPU: Attention (30)",
    "stray": "leaves 1.0% of this graph to the CPU: Attention (1)",
}


@pytest.mark.parametrize("required", [False, True])
@pytest.mark.parametrize("how", STATES)
@pytest.mark.parametrize("asked", DEVICES)
def test_a_named_provider(tmp_path: Path, asked: str, how: str, required: bool) -> None:
    """It runs there if it can at all, on the CPU with a reason if not, and nowhere if required."""
    backend = StandIn({} if how == "unlisted" else {asked: state(how)})
    request = ProviderRequest(asked, required=required)
    if required and how != "whole":
        with pytest.raises(ModelError) as refused:
            placed(tmp_path, request, backend)
        said = f"provider {asked} is required, but {PROVIDERS[asked]} {SAID[how]}"
        assert refused.value.message == said
        assert "provider_required = false" in refused.value.hint
        return
    placement = placed(tmp_path, request, backend).placement
    assert placement.requested == asked
    if how in ("whole", "stray", "part"):
        left = {"whole": 0, "stray": 1, "part": 30}[how]
        assert (placement.provider, placement.share_elsewhere) == (asked, left / 100)
        assert placement.operators_elsewhere == ({"Attention": left} if left else {})
        assert placement.device == ("CPU" if asked == "openvino" else "GPU 0")
        assert placement.reason == (
            f"{left} of its nodes run on the CPU: Attention ({left})" if left else ""
        )
    else:
        assert placement == Placement(asked, "cpu", f"{PROVIDERS[asked]} {SAID[how]}", "CPU")


@pytest.mark.parametrize("required", [False, True])
def test_auto(tmp_path: Path, required: bool) -> None:
    """The first of CUDA, OpenVINO, DirectML that takes (nearly) all, else the CPU; a provider that
    is there and was not used is named with its reason, one that is not there is no news."""
    for states in itertools.product(STATES, repeat=len(DEVICES)):
        how_of = dict(zip(DEVICES, states, strict=True))
        backend = StandIn({one: state(how) for one, how in how_of.items() if how != "unlisted"})
        placement = placed(tmp_path, ProviderRequest(required=required), backend).placement
        good = [one for one, how in how_of.items() if how in ("whole", "stray")]
        used = good[0] if good else "cpu"
        assert (placement.requested, placement.provider) == ("auto", used), states
        before = DEVICES[: DEVICES.index(used)] if good else DEVICES
        reasons = [
            f"{PROVIDERS[one]} {SAID[how_of[one]]}" for one in before if how_of[one] != "unlisted"
        ]
        if how_of.get(used) == "stray":
            reasons.append("1 of its nodes run on the CPU: Attention (1)")
        assert placement.reason == "; ".join(reasons), states


def test_the_cpu_is_asked_for_nothing_else(tmp_path: Path) -> None:
    backend = StandIn({"cuda": "whole"})
    for required in (False, True):
        placement = placed(tmp_path, ProviderRequest("cpu", required=required), backend).placement
        assert placement == Placement("cpu", "cpu", device="CPU")
    assert {attempt.provider for attempt, _ in backend.tried} == {"cpu"}


def test_an_onnxruntime_that_cannot_say_is_believed() -> None:
    """There is nothing else to go by; the share is shown as unknown."""
    cuda = Attempt("cuda")
    for request in (ProviderRequest("cuda", required=True), ProviderRequest()):
        assert judge(request, cuda, [PROVIDERS["cuda"], CPU], None) is None


def test_what_is_wrong_with_the_file_is_not_the_providers_fault(tmp_path: Path) -> None:
    broken = RuntimeError("No graph was found in the protobuf.")
    backend = StandIn({"cuda": broken})
    with pytest.raises(ModelError, match="not an ONNX model") as refused:
        placed(tmp_path, ProviderRequest("cuda", required=True), backend)
    assert "provider" not in refused.value.message
    assert len(backend.tried) == 1


def test_a_full_device_is_passed_over_and_may_be_tried_again(tmp_path: Path) -> None:
    full = RuntimeError("CUDA failure 2: out of memory ; GPU=0")
    placement = placed(tmp_path, ProviderRequest("cuda"), StandIn({"cuda": full})).placement
    assert (placement.provider, "out of memory" in placement.reason) == ("cpu", True)
    with pytest.raises(ModelError) as refused:
        placed(tmp_path, ProviderRequest("cuda", required=True), StandIn({"cuda": full}))
    assert refused.value.out_of_memory


@pytest.mark.parametrize("required", [False, True])
@pytest.mark.parametrize("fits", [0, 1, 2, 3])
def test_the_graphs_of_a_model_run_in_one_place(tmp_path: Path, fits: int, required: bool) -> None:
    """A device with room for so many of three graphs; what was opened on it is closed again."""
    graphs = [tmp_path / f"{count}.onnx" for count in (1, 2, 4)]
    for graph in graphs:
        graph.touch()
    backend = StandIn({"cuda": "whole"})
    opened: list[str] = []
    loaded = backend.load

    def load(graph: Path, attempt: Attempt, settings: SessionSettings) -> LoadedGraph:
        if attempt.provider == "cuda" and len(opened) == fits:
            raise RuntimeError("CUDA failure 2: out of memory")
        opened.append(graph.name)
        return loaded(graph, attempt, settings)

    backend.load = load  # type: ignore[method-assign]
    request = ProviderRequest("cuda", required=required)
    if required and fits < 3:
        with pytest.raises(ModelError, match=r"cuda is required, but .* out of memory"):
            open_together(graphs, provider=request, threads=1, backend=backend)
        return
    sessions = open_together(graphs, provider=request, threads=1, backend=backend)
    assert [session.graph for session in sessions] == graphs
    placements = [session.placement for session in sessions]
    assert {one.provider for one in placements} == {"cuda" if fits == 3 else "cpu"}
    assert {one.requested for one in placements} == {"cuda"}
    assert all(("out of memory" in one.reason) == (fits < 3) for one in placements)
    if 0 < fits < 3:
        assert opened[-3:] == [graph.name for graph in graphs]
        assert "its graphs cannot all run in one place" in placements[0].reason


# --- counting ---


def test_host_arithmetic_is_not_held_against_a_provider() -> None:
    name = PROVIDERS["cuda"]
    share = count([PlacedNode(name, "MatMul"), PlacedNode(CPU, "Gather")], name)
    assert (share.taken, share.elsewhere, share.share_elsewhere) == (1, 0, 0.0)
    # But nothing taken is nothing taken, whatever the graph is made of.
    idle = count([PlacedNode(CPU, "Gather"), PlacedNode(CPU, "MatMul")], name)
    assert (idle.taken, idle.elsewhere, idle.share_elsewhere) == (0, 2, 1.0)
    assert count([], name).share_elsewhere == 0.0


def test_operators_are_named_most_frequent_first() -> None:
    name = PROVIDERS["cuda"]
    left = [PlacedNode(CPU, one) for one in ("Softmax", "Attention", "Attention", "Erf")]
    share = count([PlacedNode(name, "MatMul"), *left], name)
    assert named(share.operators) == "Attention (2), Softmax (1), Erf (1)"
    assert named(share.operators, most=1) == "Attention (2) and 2 others"


# --- devices and options ---


@pytest.mark.parametrize(
    ("device_type", "shown", "missing"),
    [
        ("CPU", "CPU", ""),
        ("GPU", "GPU", "OpenVINO has no GPU here, only CPU"),
        ("GPU.1", "GPU.1", "OpenVINO has no GPU.1 here, only CPU"),
        ("NPU", "NPU", "OpenVINO has no NPU here, only CPU"),
        ("AUTO:GPU,CPU", "GPU or CPU", "OpenVINO has no GPU here, only CPU"),
    ],
)
@pytest.mark.parametrize("asks", [True, False])
def test_openvino_never_claims_a_device_that_is_not_there(
    tmp_path: Path, device_type: str, shown: str, missing: str, asks: bool
) -> None:
    """Whether this build says which devices it has, or just comes up without the provider."""
    options = {"device_type": device_type}
    assert device_of(Attempt("openvino", options)) == shown
    assert missing_device(options, ["CPU"]) == missing
    assert missing_device(options, None) == ""
    assert missing_device(options, ["CPU", "GPU.0", "GPU.1", "NPU"]) == ""
    how = "whole" if device_type == "CPU" else "absent"
    backend = StandIn({"openvino": how}, devices=["CPU"] if asks else None)
    placement = placed(tmp_path, ProviderRequest("openvino", options), backend).placement
    assert placement.device == "CPU"
    if missing:
        assert placement.provider == "cpu"
        assert placement.reason == (
            missing if asks else "OpenVINOExecutionProvider did not start: no driver"
        )
    else:
        assert placement == Placement("openvino", "openvino", device="CPU")


def test_options_go_to_their_provider_and_win_over_ours(tmp_path: Path) -> None:
    backend = StandIn({"cuda": "absent", "openvino": "whole"})
    options = {"cuda": {"device_id": 1, "use_tf32": "1"}, "openvino": {"precision": "FP32"}}
    session = placed(tmp_path, ProviderRequest("auto", options), backend)
    (cuda, _), (openvino, _) = backend.tried
    assert (cuda.options["device_id"], cuda.options["use_tf32"]) == ("1", "1")
    assert cuda.options["arena_extend_strategy"] == "kSameAsRequested"
    assert openvino.options == {"device_type": "CPU", "precision": "FP32", "num_of_threads": "2"}
    assert session.placement.provider == "openvino"
    named_one = placed(
        tmp_path, ProviderRequest("cuda", {"device_id": 3}), StandIn({"cuda": "whole"})
    )
    assert named_one.placement.device == "GPU 3"


@pytest.mark.parametrize(
    ("request_", "message"),
    [
        (ProviderRequest("tpu"), "unknown provider 'tpu'.*auto, cuda"),
        (ProviderRequest("cpu", {"speed": "9"}), "the cpu provider has no options.*'speed'"),
    ],
)
def test_wrong_requests_are_named(request_: ProviderRequest, message: str) -> None:
    with pytest.raises(ModelError, match=message):
        choose(request_, [CPU])


def test_keys_and_values_stay_where_they_are_made(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A step on a card binds their new place there; only a rewind takes them through the host."""
    for provider, options, kind, index in (
        ("cuda", {"device_id": 1}, "cuda", 1),
        ("directml", {}, "dml", 0),
        ("openvino", {"device_type": "GPU.1"}, "cpu", 0),
        ("cpu", {}, "cpu", 0),
    ):
        backend = StandIn({provider: "whole"} if provider != "cpu" else {})
        session = placed(tmp_path, ProviderRequest(provider, options), backend)
        assert session.memory == DeviceMemory(kind, index)

    class Value:
        def __init__(self, array: Any, kind: str = "cpu", index: int = 0) -> None:
            self.array, self.place = array, (kind, index)

        def numpy(self) -> Any:
            return self.array

    class Library:
        class OrtValue:
            ortvalue_from_numpy = Value

    monkeypatch.setattr("homespecd.runtime.concatenated.load_onnxruntime", lambda: Library)
    tensors = CacheTensors(Layout.CONCATENATED, ("k", "v"), ("pk", "pv"), "float32", 2, 4)
    cache = ConcatenatedCache(tensors, DeviceMemory("cuda", 1))
    places: dict[str, tuple[str, int]] = {}

    class Binding:
        def bind_ortvalue_input(self, name: str, value: Value) -> None:
            places[name] = value.place

        def bind_output(self, name: str, kind: str, index: int) -> None:
            places[name] = (kind, index)

    cache.bind(Binding(), 3, with_past=True)
    assert places == {"k": ("cpu", 0), "v": ("cpu", 0), "pk": ("cuda", 1), "pv": ("cuda", 1)}
    made = np.arange(24, dtype=np.float32).reshape(1, 2, 3, 4)
    cache.advance(3, [Value(made, "cuda", 1), Value(-made, "cuda", 1)])
    assert [value is kept for value, kept in zip(cache.past(), cache.values, strict=True)] == [1, 1]
    cache.rewind_to(2)
    cache.bind(Binding(), 1, with_past=True)
    assert set(places.values()) == {("cuda", 1)}
    assert [one.numpy().tolist() for one in cache.past()] == [
        made[:, :, :2].tolist(),
        (-made[:, :, :2]).tolist(),
    ]
