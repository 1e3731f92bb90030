"""onnxruntime as the decisions above it see it: what it lists, what it loads, what it says.

A stand-in with the same three methods drives the tests of providers that are not installed.
"""

from __future__ import annotations

import io
import os
import re
import sys
import tempfile
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, redirect_stdout
from dataclasses import dataclass, field
from pathlib import Path
from types import ModuleType
from typing import Any, ClassVar, Protocol

from homespecd.runtime.placement import PlacedNode
from homespecd.runtime.providers import PROVIDERS, Attempt
from homespecd.runtime.session_settings import SessionSettings

# onnxruntime's severities. Every error is raised as well, and what it prints has colour codes.
FATAL_ONLY = 4
_WARNINGS = 2

_COLOUR = re.compile(r"\x1b\[[0-9;]*m")
# When, how bad, and where in onnxruntime; then what, in which a library may have been quoted.
_LINE = re.compile(r"^.*?\[[EW]:onnxruntime:[^\]]*\] ")
_QUOTED = re.compile(r".*(?:with error: |\[OpenVINO\] |: FAIL : )")


@dataclass(frozen=True)
class LoadedGraph:
    """A session as onnxruntime made it.

    active: its providers. nodes: which provider runs each, None = this onnxruntime cannot say.
    complaint: why a provider did not start, as far as it was said.
    """

    raw: Any
    active: Sequence[str]
    nodes: Sequence[PlacedNode] | None = None
    complaint: str = ""


class Backend(Protocol):
    """Where sessions come from."""

    def listed(self) -> Sequence[str]:
        """Providers that this build has, by onnxruntime's names."""

    def openvino_devices(self) -> Sequence[str] | None:
        """Devices that OpenVINO has here; None = it cannot be asked."""

    def load(self, graph: Path, attempt: Attempt, settings: SessionSettings) -> LoadedGraph:
        """Load a graph. Raises whatever onnxruntime raises."""


@dataclass
class OnnxRuntime:
    """The real one, over the imported library."""

    ort: ModuleType
    _state: ModuleType = field(init=False)
    # Standard error is one for the whole process, and drafts are opened on a thread of their own.
    _listening: ClassVar[threading.Lock] = threading.Lock()

    def __post_init__(self) -> None:
        self._state = sys.modules["onnxruntime.capi._pybind_state"]

    def listed(self) -> Sequence[str]:
        return tuple(self.ort.get_available_providers())

    def openvino_devices(self) -> Sequence[str] | None:
        ask = getattr(self._state, "get_available_openvino_device_ids", None)
        return None if ask is None else tuple(ask())

    def load(self, graph: Path | bytes, attempt: Attempt, settings: SessionSettings) -> LoadedGraph:
        """See `Backend.load`; a graph may be its file's bytes as well."""
        cpu = PROVIDERS["cpu"]
        source = graph if isinstance(graph, bytes) else str(graph)
        options = self._options(settings)
        if attempt.provider == "cpu":
            raw = self.ort.InferenceSession(source, options, providers=[cpu])
            return LoadedGraph(raw, raw.get_providers())
        name = PROVIDERS[attempt.provider]
        if attempt.provider == "cuda":
            self._preload()
        # Without fallback an error is raised; with it, it is printed and the CPU used.
        with self._overheard() as heard:
            raw = self.ort.InferenceSession(
                source,
                options,
                providers=[(name, dict(settings.options)), cpu],
                enable_fallback=0,
            )
        return LoadedGraph(raw, raw.get_providers(), _nodes(raw), complaint_in(heard))

    def _preload(self) -> None:
        """Load CUDA's libraries where they are packages of this environment.

        onnxruntime does not look for them there by itself. What this prints about the ones that are
        missing is in the error that follows.
        """
        preload = getattr(self.ort, "preload_dlls", None)
        if preload is not None:
            with redirect_stdout(io.StringIO()):
                preload()

    def _options(self, settings: SessionSettings) -> Any:
        ort = self.ort
        options = ort.SessionOptions()
        options.log_severity_level = FATAL_ONLY
        options.intra_op_num_threads = settings.threads
        options.inter_op_num_threads = 1
        options.enable_mem_pattern = settings.memory_pattern
        options.execution_mode = (
            ort.ExecutionMode.ORT_SEQUENTIAL
            if settings.sequential
            else ort.ExecutionMode.ORT_PARALLEL
        )
        for name, value in settings.entries.items():
            options.add_session_config_entry(name, value)
        if not settings.optimise:
            options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL
        return options

    @contextmanager
    def _overheard(self) -> Iterator[list[str]]:
        """What onnxruntime prints meanwhile, by line.

        A provider whose library or driver is missing is no error to onnxruntime: it says why on
        standard error, and nowhere else. Lines that are not its own are passed on.
        """
        heard: list[str] = []
        sys.stderr.flush()
        with self._listening, tempfile.TemporaryFile() as file:
            real = os.dup(2)
            os.dup2(file.fileno(), 2)
            self.ort.set_default_logger_severity(_WARNINGS)
            try:
                yield heard
            finally:
                self.ort.set_default_logger_severity(FATAL_ONLY)
                sys.stderr.flush()
                os.dup2(real, 2)
                os.close(real)
                file.seek(0)
                heard += _COLOUR.sub("", file.read().decode(errors="replace")).splitlines()
        for line in heard:
            if line.strip() and not _LINE.search(line):
                sys.stderr.write(line + "\n")


def complaint_in(lines: Sequence[str]) -> str:
    """The reason among what onnxruntime printed while a provider did not start, "" without one.

    An error says what is missing, the warning after it what is needed.
    """
    own = [_LINE.sub("", line) for line in lines if _LINE.search(line)]
    said = [_QUOTED.sub("", line).strip(" .") for line in own]
    # Advice to read a web page ends the part that says anything.
    said = [re.split(r"\. (?:Please|For) ", one)[0] for one in said if one]
    return "; ".join(dict.fromkeys(said))


def _nodes(raw: Any) -> Sequence[PlacedNode] | None:
    ask = getattr(raw, "get_provider_graph_assignment_info", None)
    if ask is None:  # older than 1.24
        return None
    return [
        PlacedNode(group.ep_name, node.op_type) for group in ask() for node in group.get_nodes()
    ]
