"""An onnxruntime session made the way this program wants it, and its errors as sentences.

Telemetry is off before the library is even imported, threads are always explicit, an idle model
uses no CPU, and what the session really runs on is read from the session, not from the request.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import numpy.typing as npt

from homespecd.bundle.external_data import external_files
from homespecd.bundle.layout import TensorSpec
from homespecd.errors import ModelError

PROVIDERS: Mapping[str, str] = {
    "cpu": "CPUExecutionProvider",
    "cuda": "CUDAExecutionProvider",
    "openvino": "OpenVINOExecutionProvider",
    "directml": "DmlExecutionProvider",
}
SPIN_US = "100"
# onnxruntime's severity: every error is raised as well, and what it would print has colour codes.
_FATAL_ONLY = 4

_DTYPES: Mapping[str, str] = {
    "tensor(float)": "float32",
    "tensor(float16)": "float16",
    "tensor(bfloat16)": "bfloat16",
    "tensor(double)": "float64",
    "tensor(int64)": "int64",
    "tensor(int32)": "int32",
    "tensor(bool)": "bool",
}
_NO_MEMORY = re.compile(
    r"bad_alloc|bad allocation|out of memory|Failed to allocate memory|CUDA_ERROR_OUT_OF_MEMORY"
    r"|Cannot allocate memory|errcode ?= ?12\b",
    re.IGNORECASE,
)


@dataclass(frozen=True)
class ProviderRequest:
    """Where a model is asked to run. `required`: fail rather than run elsewhere."""

    name: str = "auto"
    options: Mapping[str, Any] = field(default_factory=dict)
    required: bool = False


@dataclass(frozen=True)
class Placement:
    """What was asked for, where it really runs, and why these differ ("" when they do not)."""

    requested: str
    provider: str
    reason: str = ""


def load_onnxruntime() -> ModuleType:
    """Import onnxruntime with its telemetry off.

    The environment variable is read when the library is loaded; the call afterwards covers a
    library that somebody else has imported before.
    """
    os.environ["ORT_DISABLE_TELEMETRY"] = "1"
    import onnxruntime

    onnxruntime.disable_telemetry_events()
    onnxruntime.set_default_logger_severity(_FATAL_ONLY)
    return onnxruntime  # type: ignore[no-any-return]


class Session:
    """One graph, loaded. `inputs` and `outputs` are plain data."""

    def __init__(self, raw: Any, *, graph: Path, placement: Placement, threads: int) -> None:
        self.raw = raw
        self.graph = graph
        self.placement = placement
        self.threads = threads
        self.inputs = _specs(raw.get_inputs())
        self.outputs = _specs(raw.get_outputs())
        # The binding's own run: the Python wrapper around it costs more than the call.
        self._run = raw._sess.run_with_iobinding

    def binding(self) -> Any:
        """A fresh onnxruntime IOBinding for this session."""
        return self.raw.io_binding()

    def run(self, binding: Any) -> None:
        """Run once over what is bound. Raises ModelError when the graph fails."""
        try:
            self._run(binding._iobinding, None)
        except Exception as error:
            # onnxruntime's exceptions share no base but Exception.
            raise run_error(error, self.graph) from error

    def close(self) -> None:
        """Give the session's memory back as soon as nothing else refers to it."""
        del self.raw, self._run


def open_session(
    graph: Path, *, provider: ProviderRequest, threads: int, optimised: bool = False
) -> Session:
    """Load a graph.

    Args:
        threads: of the pool inside operators, at least 1. There is one pool per session.
        optimised: the file was written by onnxruntime's optimizer for this machine, so optimizing
            it again is time for nothing.

    Raises:
        ModelError: the file or its external data is missing or broken, memory did not suffice, or
            the required provider is not to be had.
    """
    _check_files(graph)
    ort = load_onnxruntime()
    placement, providers = place(provider, ort.get_available_providers())
    options = ort.SessionOptions()
    options.log_severity_level = _FATAL_ONLY
    # An explicit number also keeps onnxruntime from pinning threads to cores of the host, which
    # fails loudly in a cpuset.
    options.intra_op_num_threads = threads
    options.inter_op_num_threads = 1
    # Rows and cache capacity differ from step to step: a plan of memory per shape never pays.
    options.enable_mem_pattern = False
    # A step is hundreds of small operators. A thread that has nothing to do for a moment should
    # wait awake for the next one, but not for long, since others on the machine want the cores too.
    # SmolLM2-135M int4, 2 threads, 2 quiet cores, ms per step in one interleaved run: no spinning
    # 22.2, 10 µs 16.3, 100 µs 15.9, onnxruntime's default 16.1. On busy cores the default is the
    # slowest by far, for it takes them from the very threads it waits for.
    options.add_session_config_entry("session.intra_op.spin_duration_us", SPIN_US)
    if optimised:
        options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL
    try:
        raw = ort.InferenceSession(str(graph), options, providers=providers)
    except Exception as error:
        raise load_error(error, graph) from error
    placement = confirm(placement, raw.get_providers(), required=provider.required)
    return Session(raw, graph=graph, placement=placement, threads=threads)


def place(
    request: ProviderRequest, available: Sequence[str]
) -> tuple[Placement, list[str | tuple[str, dict[str, str]]]]:
    """Which providers to ask onnxruntime for.

    "auto" is the CPU until other providers have been measured to be faster.

    Raises:
        ModelError: an unknown provider, one that is required and missing, or options that the
            chosen provider does not have.
    """
    cpu = PROVIDERS["cpu"]
    if request.name not in ("auto", *PROVIDERS):
        known = ", ".join(("auto", *PROVIDERS))
        raise ModelError(f"unknown provider {request.name!r}", hint=f"known are {known}")
    if request.name in ("auto", "cpu"):
        if request.options:  # the CPU provider would ignore them in silence
            names = ", ".join(map(repr, request.options))
            raise ModelError(f"the cpu provider has no options, but was given {names}")
        return Placement(request.name, "cpu"), [cpu]
    wanted = PROVIDERS[request.name]
    if wanted not in available:
        reason = f"{wanted} is not in the installed onnxruntime"
        if request.required:
            raise ModelError(
                f"provider {request.name} is required, but {reason}",
                hint="install the onnxruntime package for it, or set provider_required = false",
            )
        return Placement(request.name, "cpu", reason), [cpu]
    given = {name: str(value) for name, value in request.options.items()}
    return Placement(request.name, request.name), [(wanted, given), cpu]


def confirm(placement: Placement, active: Sequence[str], *, required: bool) -> Placement:
    """Correct a placement by the providers that the session really has.

    Raises:
        ModelError: the required provider did not come up.
    """
    if PROVIDERS[placement.provider] in active:
        return placement
    reason = f"{PROVIDERS[placement.provider]} did not start; onnxruntime fell back to the CPU"
    if required:
        raise ModelError(f"provider {placement.requested} is required, but {reason}")
    return Placement(placement.requested, "cpu", reason)


def _check_files(graph: Path) -> None:
    if not graph.is_file():
        raise ModelError("there is no such file", where=str(graph))
    for file in external_files(graph):
        if not file.is_file():
            raise ModelError(
                f"the external data file {file.name} is missing",
                where=str(graph),
                hint=f"it belongs beside the graph, in {file.parent}",
            )


def load_error(error: Exception, graph: Path) -> ModelError:
    """What onnxruntime said about a graph it could not load, as one sentence."""
    text = _plain(error)
    kind = type(error).__name__
    where = str(graph)
    if isinstance(error, MemoryError) or _NO_MEMORY.search(text):
        return ModelError("not enough memory to load the model", where=where, out_of_memory=True)
    if "External initializer" in text or "out of bounds" in text:
        return ModelError(
            "the external data file is too short for this graph",
            where=where,
            hint="a copy or download that was cut off? Fetch the model again",
        )
    if kind == "InvalidProtobuf" or "No graph was found" in text:
        return ModelError(
            "not an ONNX model, or one that was cut off or damaged",
            where=where,
            hint="fetch or import the model again",
        )
    return ModelError(f"onnxruntime cannot load it: {text}", where=where)


def run_error(error: Exception, graph: Path) -> ModelError:
    """What onnxruntime said about a step that failed, as one sentence."""
    text = _plain(error)
    if isinstance(error, MemoryError) or _NO_MEMORY.search(text):
        return ModelError("not enough memory for this step", where=str(graph), out_of_memory=True)
    return ModelError(f"the graph failed while it ran: {text}", where=str(graph))


def _plain(error: Exception) -> str:
    """The first line of an onnxruntime message without its prefix."""
    text = re.sub(r"\[ONNXRuntimeError\] : \d+ : \w+ : ", "", str(error)).strip()
    return text.splitlines()[0].rstrip(".") if text else type(error).__name__


def _specs(nodes: Sequence[Any]) -> tuple[TensorSpec, ...]:
    return tuple(
        TensorSpec(
            node.name,
            _DTYPES.get(node.type, node.type),
            tuple(size if isinstance(size, int) else size or "" for size in node.shape),
        )
        for node in nodes
    )


def numpy_dtype(name: str) -> npt.DTypeLike:
    """The numpy type of a cache or logits. Raises ModelError for one numpy does not have."""
    if name not in ("float32", "float16", "float64"):
        raise ModelError(f"a cache or logits of type {name} cannot be served")
    return np.dtype(name)
