"""Nodes and constants on their way into an ONNX graph."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import numpy.typing as npt
import onnx
from onnx import TensorProto, helper, numpy_helper

OPSET = 21
MICROSOFT = "com.microsoft"
_IR_VERSION = 10


class GraphWriter:
    """Collects nodes in order, and the initializers that they use.

    Every value is named by its producer; a node has the name of its first output.
    """

    def __init__(self, initializers: Mapping[str, TensorProto]) -> None:
        self._initializers = initializers
        self._nodes: list[onnx.NodeProto] = []
        self._used: dict[str, TensorProto] = {}

    def op(
        self,
        operator: str,
        inputs: Sequence[str],
        outputs: str | Sequence[str],
        *,
        domain: str = "",
        **attributes: object,
    ) -> str:
        """Add a node; returns its first output. "" stands for an input or output left out."""
        names = [outputs] if isinstance(outputs, str) else list(outputs)
        self._nodes.append(
            helper.make_node(
                operator, list(inputs), names, name=names[0], domain=domain, **attributes
            )
        )
        return names[0]

    def weight(self, name: str) -> str:
        """Use an initializer of the weights file."""
        self._used[name] = self._initializers[name]
        return name

    def constant(self, name: str, value: npt.NDArray[np.generic]) -> str:
        """Use a small constant, held in the graph; the same name means the same value."""
        self._used.setdefault(name, numpy_helper.from_array(value, name))
        return name

    def int64(self, name: str, value: int | Sequence[int]) -> str:
        return self.constant(f"constant.{name}", np.array(value, dtype=np.int64))

    def model(
        self,
        name: str,
        inputs: Sequence[onnx.ValueInfoProto],
        outputs: Sequence[onnx.ValueInfoProto],
    ) -> onnx.ModelProto:
        """All of it as a model."""
        graph = helper.make_graph(
            self._nodes, name, list(inputs), list(outputs), list(self._used.values())
        )
        return helper.make_model(
            graph,
            producer_name="homespecd",
            ir_version=_IR_VERSION,
            opset_imports=[helper.make_opsetid("", OPSET), helper.make_opsetid(MICROSOFT, 1)],
        )
