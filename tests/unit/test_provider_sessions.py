"""What each execution provider needs of a session, and what the real onnxruntime says of one."""

from __future__ import annotations

import os
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from homespecd.runtime.backend import OnnxRuntime, complaint_in
from homespecd.runtime.providers import Attempt, Passed, ProviderRequest, judge
from homespecd.runtime.session import load_onnxruntime, open_session, plain_reason
from homespecd.runtime.session_settings import SessionSettings, settings_for
from tests.oracle import Toy
from tests.tiny_onnx import make_toy
from tests.unit.pretended_runtime import CPU, StandIn, placed


def settings(provider: str, *, optimised: bool = False, **request: Any) -> SessionSettings:
    asked = ProviderRequest(provider, **request)
    attempt = Attempt(provider, {name: str(value) for name, value in asked.options.items()})
    return settings_for(asked, attempt, threads=3, optimised=optimised)


def test_directml_runs_alone_in_sequence_and_without_a_memory_pattern() -> None:
    made = settings("directml")
    assert (made.sequential, made.memory_pattern, made.exclusive) == (True, False, True)
    assert not any(settings(one).exclusive for one in ("cpu", "cuda", "openvino"))


def test_cuda_takes_what_it_needs_and_no_more_than_the_cap() -> None:
    made = settings("cuda", memory_limit_bytes=1 << 30)
    assert made.options == {
        "arena_extend_strategy": "kSameAsRequested",
        "tunable_op_enable": "0",
        "use_tf32": "0",
        "gpu_mem_limit": str(1 << 30),
    }
    assert "gpu_mem_limit" not in settings("cuda").options


def test_openvino_has_a_device_a_cache_and_optimizes_by_itself() -> None:
    made = settings("openvino", cache_dir="/state/openvino")
    assert made.options == {
        "device_type": "CPU",
        "precision": "ACCURACY",
        "num_of_threads": "3",
        "cache_dir": "/state/openvino",
    }
    assert (made.optimise, settings("cuda").optimise) == (False, True)
    assert not settings("cuda", optimised=True).optimise
    # An NPU that cannot compile the graph must not become OpenVINO's CPU in silence.
    key = "session.disable_cpu_ep_fallback"
    assert settings("openvino", options={"device_type": "NPU"}).entries[key] == "1"
    assert key not in made.entries


def test_the_settings_reach_onnxruntime(tmp_path: Path) -> None:
    graph = make_toy(tmp_path / "toy", Toy()) / "model.onnx"
    for threads, optimised in ((1, False), (2, True)):
        session = open_session(
            graph, provider=ProviderRequest(), threads=threads, optimised=optimised
        )
        ort = load_onnxruntime()
        options = session.raw.get_session_options()
        assert options.intra_op_num_threads == threads
        assert options.inter_op_num_threads == 1
        assert not options.enable_mem_pattern
        assert options.execution_mode == ort.ExecutionMode.ORT_SEQUENTIAL
        level = ort.GraphOptimizationLevel
        wanted = level.ORT_DISABLE_ALL if optimised else level.ORT_ENABLE_ALL
        assert options.graph_optimization_level == wanted
        assert options.get_session_config_entry("session.intra_op.spin_duration_us") == "100"
        session.close()


def test_one_run_at_a_time_on_an_exclusive_device(tmp_path: Path) -> None:
    """Across sessions: a target and its draft on one DirectML device."""
    running, most, entered = [0], [0], threading.Event()
    guard = threading.Lock()

    def run(*_: object) -> None:
        with guard:
            running[0] += 1
            most[0] = max(most[0], running[0])
        entered.wait(0.02)
        with guard:
            running[0] -= 1

    class Binding:
        _iobinding = None

    sessions = []
    for _ in range(3):
        session = placed(tmp_path, ProviderRequest("directml"), StandIn({"directml": "whole"}))
        session._run = run
        sessions.append(session)
    threads = [threading.Thread(target=one.run, args=(Binding(),)) for one in sessions]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert most == [1]


# --- the real onnxruntime ---


def test_the_real_one_says_which_provider_runs_each_node(tmp_path: Path) -> None:
    graph = make_toy(tmp_path / "toy") / "model.onnx"
    backend = OnnxRuntime(load_onnxruntime())
    assert CPU in backend.listed()
    entries = {"session.record_ep_graph_assignment_info": "1"}
    # A provider that is not built in: onnxruntime warns, and comes up on the CPU.
    with pytest.warns(UserWarning, match="is not in available provider names"):
        loaded = backend.load(graph, Attempt("cuda"), SessionSettings(1, entries=entries))
    assert list(loaded.active) == [CPU]
    assert loaded.nodes is not None
    assert {node.provider for node in loaded.nodes} == {CPU}
    assert {"Mul", "Add"} <= {node.operator for node in loaded.nodes}
    asked = judge(
        ProviderRequest("cuda"), Attempt("cuda"), loaded.active, None, complaint=loaded.complaint
    )
    assert asked == Passed("cuda", "CUDAExecutionProvider did not start")


def test_what_is_printed_meanwhile_is_heard_and_the_rest_passed_on(
    capfd: pytest.CaptureFixture[str],
) -> None:
    said = "\x1b[1;31m2026-11-30 15:46 [E:onnxruntime:Default, x.cc:1 f()] no driver\x1b[m"
    with OnnxRuntime(load_onnxruntime())._overheard() as heard:
        os.write(2, f"{said}\nsomebody else's line\n".encode())
    assert complaint_in(heard) == "no driver"
    os.write(2, b"afterwards\n")
    assert capfd.readouterr().err == "somebody else's line\nafterwards\n"


@pytest.mark.parametrize(
    ("printed", "reason"),
    [
        (
            [
                "2026-11-30 15:46:48.92 [E:onnxruntime:Default, provider_bridge_ort.cc:2458 "
                "operator()] /src/provider_bridge_ort.cc:2043 Get() [ONNXRuntimeError] : 1 : FAIL "
                ": Failed to load library /x/libonnxruntime_providers_cuda.so with error: "
                "libcublasLt.so.13: cannot open shared object file: No such file or directory",
                "",
                "2026-11-30 15:46:48.94 [W:onnxruntime:Default, onnxruntime_pybind_state.cc:1295 "
                "CreateExecutionProviderFactoryInstance] Failed to create CUDAExecutionProvider. "
                "Require cuDNN 9.* and CUDA 13.*. Please install all dependencies as mentioned in "
                "the GPU requirements page.",
            ],
            "libcublasLt.so.13: cannot open shared object file: No such file or directory; "
            "Failed to create CUDAExecutionProvider. Require cuDNN 9.* and CUDA 13.*",
        ),
        (
            [
                "2026-11-30 15:43:26.43 [E:onnxruntime:Default, provider_bridge_ort.cc:2310 "
                "Create] /src/openvino_provider_factory.cc:141 ParseDeviceType(x) [ERROR] "
                "[OpenVINO] Device GPU is not available"
            ],
            "Device GPU is not available",
        ),
        (["something else"], ""),
        ([], ""),
    ],
)
def test_what_onnxruntime_only_prints_becomes_the_reason(
    printed: Sequence[str], reason: str
) -> None:
    assert complaint_in(printed) == reason


def test_a_reason_is_no_screenful() -> None:
    """Signatures of C++ functions come with some; what went wrong is at either end."""
    error = RuntimeError(f"Exception: {'std::vector<' * 200}: cannot allocate executable memory")
    reason = plain_reason(error)
    assert len(reason) < 330
    assert reason.startswith("Exception: ")
    assert reason.endswith(": cannot allocate executable memory")
