"""An onnxruntime session made the way this program wants it, and its errors as sentences.

Telemetry is off before the library is even imported, threads are always explicit, an idle model
uses no CPU, and what the session really runs on is read from the session, not from the request.
"""

from __future__ import annotations

import os
import re
import threading
from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import numpy.typing as npt

from homespecd.bundle.external_data import external_files
from homespecd.bundle.layout import TensorSpec
from homespecd.errors import ModelError
from homespecd.runtime.backend import FATAL_ONLY, Backend, OnnxRuntime
from homespecd.runtime.installed import installed_builds, trouble_with
from homespecd.runtime.placement import Placement, count
from homespecd.runtime.providers import (
    PROVIDERS,
    Attempt,
    Passed,
    ProviderRequest,
    choose,
    judge,
    memory_of,
    refusal,
    settle,
)
from homespecd.runtime.session_settings import SessionSettings, settings_for

_DTYPES: Mapping[str, str] = {
    "tensor(float)": "float32",
    "tensor(float16)": "float16",
    "tensor(bfloat16)": "bfloat16",
    "tensor(double)": "float64",
    "tensor(int64)": "int64",
    "tensor(int32)": "int32",
    "tensor(bool)": "bool",
}
# Characters of a long message that are kept at either end.
_END = 160
# A file and line of onnxruntime's own and the signature of the function.
_RAISED_AT = re.compile(r"^\S+\.(?:cc|cpp|h):\d+ .*?\) ")
_NO_MEMORY = re.compile(
    r"bad_alloc|bad allocation|out of memory|Failed to allocate memory|CUDA_ERROR_OUT_OF_MEMORY"
    r"|Cannot allocate memory|errcode ?= ?12\b",
    re.IGNORECASE,
)

# A device that was unplugged, reset or suspended, or whose context an error has spoilt: after any
# CUDA error but want of memory (2), every later call fails too. The numbers are Windows' names for
# removed, hung, reset and driver error.
_LOST = re.compile(
    r"CUDA failure (?!2:)\d+|CUDA_ERROR_(?!OUT_OF_MEMORY)|GPU is lost|887A00(?:05|06|07|20)"
    r"|DXGI_ERROR_DEVICE_|device (?:was |has been |is )?(?:lost|removed|reset)"
    r"|CL_DEVICE_NOT_AVAILABLE|ZE_RESULT_ERROR_DEVICE_LOST",
    re.IGNORECASE,
)


@cache
def device_turns(provider: str, device: str) -> threading.Lock:
    """The lock of one device, the same for every session of this process."""
    del provider, device
    return threading.Lock()


def load_onnxruntime() -> ModuleType:
    """Import onnxruntime with its telemetry off.

    The environment variable is read when the library is loaded; the call afterwards covers a
    library that somebody else has imported before.

    Raises:
        ModelError: it is not installed, or what is left of it cannot be used.
    """
    os.environ["ORT_DISABLE_TELEMETRY"] = "1"
    try:
        import onnxruntime

        onnxruntime.disable_telemetry_events()
        onnxruntime.set_default_logger_severity(FATAL_ONLY)
    # A folder that another build's removal has emptied is imported, and has nothing.
    except (ImportError, AttributeError) as error:
        trouble = trouble_with(installed_builds())
        if trouble is not None:
            raise ModelError(trouble.what, hint=trouble.fix) from error
        raise ModelError(
            f"onnxruntime is damaged: {error}", hint="install it again, or run install.sh"
        ) from error
    return onnxruntime  # type: ignore[no-any-return]


class Session:
    """One graph, loaded. `inputs` and `outputs` are plain data; `settings` say how it was made;
    `memory` is where what should stay on the device lies."""

    def __init__(
        self,
        raw: Any,
        *,
        graph: Path,
        placement: Placement,
        threads: int,
        settings: SessionSettings,
    ) -> None:
        self.raw = raw
        self.graph = graph
        self.placement = placement
        self.threads = threads
        self.settings = settings
        self.memory = memory_of(Attempt(placement.provider, settings.options))
        self.inputs = _specs(raw.get_inputs())
        self.outputs = _specs(raw.get_outputs())
        # The binding's own run: the Python wrapper around it costs more than the call.
        self._run = raw._sess.run_with_iobinding
        turns = device_turns(placement.provider, placement.device) if settings.exclusive else None
        self._turns = turns

    def binding(self) -> Any:
        """A fresh onnxruntime IOBinding for this session."""
        return self.raw.io_binding()

    def run(self, binding: Any) -> None:
        """Run once over what is bound. Raises ModelError when the graph fails."""
        try:
            if self._turns is None:
                self._run(binding._iobinding, None)
            else:
                with self._turns:
                    self._run(binding._iobinding, None)
        except Exception as error:
            # onnxruntime's exceptions share no base but Exception.
            raise run_error(error, self.graph) from error

    def close(self) -> None:
        """Give the session's memory back as soon as nothing else refers to it."""
        del self.raw, self._run


def open_session(
    graph: Path,
    *,
    provider: ProviderRequest,
    threads: int,
    optimised: bool = False,
    backend: Backend | None = None,
) -> Session:
    """Load a graph where it is asked to run, or where it can.

    Every provider of the request is tried in turn (`providers.choose`) and kept if it is what was
    meant (`providers.judge`); why others were not is in the session's placement.

    Args:
        threads: of the pool inside operators, at least 1. There is one pool per session.
        optimised: the file was written by onnxruntime's optimizer for this machine.
        backend: where sessions come from; None = onnxruntime.

    Raises:
        ModelError: the file or its external data is missing or broken, memory did not suffice, or
            the required provider is not to be had.
    """
    _check_files(graph)
    if backend is None:
        backend = OnnxRuntime(load_onnxruntime())
    choice = choose(provider, backend.listed(), openvino_devices=backend.openvino_devices())
    passed = list(choice.passed)
    for attempt in choice.attempts:
        settings = settings_for(provider, attempt, threads=threads, optimised=optimised)
        made = Attempt(attempt.provider, settings.options)
        try:
            loaded = backend.load(graph, made, settings)
        except Exception as error:
            # onnxruntime's exceptions share no base but Exception.
            failed = load_error(error, graph)
            if attempt.provider == "cpu" or failed.hint:  # the file's fault, wherever it runs
                raise failed from error
            reason = f"{PROVIDERS[attempt.provider]} failed: {plain_reason(error)}"
            passed.append(Passed(attempt.provider, reason, out_of_memory=failed.out_of_memory))
            continue
        name = PROVIDERS[attempt.provider]
        share = None if loaded.nodes is None else count(loaded.nodes, name)
        problem = judge(provider, made, loaded.active, share, complaint=loaded.complaint)
        if problem is None:
            placement = settle(provider, made, passed, share)
            return Session(
                loaded.raw, graph=graph, placement=placement, threads=threads, settings=settings
            )
        passed.append(problem)
        del loaded  # its memory goes before the next attempt takes as much again
    raise refusal(provider, passed)


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
    text = plain_reason(error)
    kind = type(error).__name__
    where = str(graph)
    if isinstance(error, MemoryError) or _NO_MEMORY.search(str(error)):
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
    text = plain_reason(error)
    if isinstance(error, MemoryError) or _NO_MEMORY.search(str(error)):
        return ModelError("not enough memory for this step", where=str(graph), out_of_memory=True)
    if _LOST.search(str(error)):
        return ModelError(f"the device is lost: {text}", where=str(graph), device_lost=True)
    return ModelError(f"the graph failed while it ran: {text}", where=str(graph))


def plain_reason(error: Exception) -> str:
    """The first line of an onnxruntime message without its prefix, or the place it came from."""
    text = re.sub(r"\[ONNXRuntimeError\] : \d+ : \w+ : ", "", str(error)).strip()
    text = _RAISED_AT.sub("", text)
    if not text:
        return type(error).__name__
    line = text.splitlines()[0].rstrip(".")
    # Signatures of C++ functions fill screens; what went wrong stands before or after them.
    return line if len(line) <= 2 * _END else f"{line[:_END]} … {line[-_END:]}"


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
