"""A stand-in for onnxruntime: which providers it lists, and what becomes of a session on each."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from homespecd.runtime.backend import LoadedGraph
from homespecd.runtime.placement import PlacedNode
from homespecd.runtime.providers import PROVIDERS, Attempt, ProviderRequest
from homespecd.runtime.session import Session, open_session
from homespecd.runtime.session_settings import SessionSettings

CPU = PROVIDERS["cpu"]


class Raw:
    """What onnxruntime would return, as far as a session that is not run needs it."""

    def __init__(self, run: Any = None) -> None:
        self._sess = self
        self.run_with_iobinding = run

    def get_inputs(self) -> list[Any]:
        return []

    get_outputs = get_inputs


@dataclass
class StandIn:
    """An onnxruntime with providers of our making.

    starts: provider → "whole", "part" (attention stays on the CPU), "stray" (one node in a
    hundred does), "none" (it is there and takes nothing), "absent" (the session comes up without
    it), or what is raised.
    """

    starts: Mapping[str, str | Exception]
    devices: Sequence[str] | None = None
    tried: list[tuple[Attempt, SessionSettings]] = field(default_factory=list)

    def listed(self) -> Sequence[str]:
        return (*(PROVIDERS[one] for one in self.starts), CPU)

    def openvino_devices(self) -> Sequence[str] | None:
        return self.devices

    def load(self, graph: Path, attempt: Attempt, settings: SessionSettings) -> LoadedGraph:
        del graph
        self.tried.append((attempt, settings))
        if attempt.provider == "cpu":
            return LoadedGraph(Raw(), [CPU])
        how, name = self.starts[attempt.provider], PROVIDERS[attempt.provider]
        if isinstance(how, Exception):
            raise how
        if how == "absent":
            return LoadedGraph(Raw(), [CPU], nodes(0, 100), "no driver")
        left = {"whole": 0, "stray": 1, "part": 30, "none": 100}[how]
        return LoadedGraph(Raw(), [name, CPU], nodes(100 - left, left, name))


def nodes(taken: int, left: int, name: str = "") -> list[PlacedNode]:
    mine = [PlacedNode(name, "MatMulNBits")] * taken
    return [*mine, *[PlacedNode(CPU, "Shape")] * 9, *[PlacedNode(CPU, "Attention")] * left]


def placed(tmp_path: Path, request: ProviderRequest, backend: StandIn) -> Session:
    graph = tmp_path / "model.onnx"
    graph.touch()
    return open_session(graph, provider=request, threads=2, backend=backend)
