"""Small ONNX graphs as bytes, without the onnx package.

Kernels are probed again whenever a model is loaded, and the service runs without the import extra.
An ONNX file is a Protocol Buffers message; a graph of a few nodes needs a dozen of its fields,
whose numbers are fixed by onnx.proto (ONNX IR version 10).
"""

from __future__ import annotations

import struct
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

_IR_VERSION = 10
_OPSET = 21
_MICROSOFT = "com.microsoft"
ELEMENT_TYPES: Mapping[str, int] = {
    "float32": 1,
    "uint8": 2,
    "int32": 6,
    "int64": 7,
    "float16": 10,
}
_VARINT, _BYTES, _FIXED32 = 0, 2, 5
_ATTRIBUTE_FLOAT, _ATTRIBUTE_INT, _ATTRIBUTE_INTS = 1, 2, 7


@dataclass(frozen=True)
class Port:
    """An input or output: element type as numpy names it, and the shape (text = any size, None =
    any shape)."""

    name: str
    dtype: str
    shape: tuple[int | str, ...] | None


@dataclass(frozen=True)
class Node:
    """One operator. `inputs` and `outputs` are names, "" for an input that is left out."""

    operator: str
    inputs: Sequence[str]
    outputs: Sequence[str]
    attributes: Mapping[str, int | float | Sequence[int]] = field(default_factory=dict)
    domain: str = ""


def one_node_graph(
    operator: str,
    *,
    domain: str,
    node_inputs: Sequence[str],
    attributes: Mapping[str, int | float],
    inputs: Sequence[Port],
    outputs: Sequence[Port],
    weights: Mapping[str, npt.NDArray[np.generic]],
) -> bytes:
    """The file of a graph with one node. `node_inputs` are names, "" for one that is left out."""
    node = Node(operator, node_inputs, [port.name for port in outputs], attributes, domain)
    return small_graph([node], inputs=inputs, outputs=outputs, weights=weights)


def small_graph(
    nodes: Sequence[Node],
    *,
    inputs: Sequence[Port],
    outputs: Sequence[Port],
    weights: Mapping[str, npt.NDArray[np.generic]],
    opset: int = _OPSET,
) -> bytes:
    """The file of a graph. `nodes` are in an order in which they can run."""
    graph = b"".join(
        [
            *(_message(1, _node(node)) for node in nodes),
            _text(2, "probe"),
            *(_message(5, _tensor(name, array)) for name, array in weights.items()),
            *(_message(11, _port(port)) for port in inputs),
            *(_message(12, _port(port)) for port in outputs),
        ]
    )
    opsets = [("", opset), (_MICROSOFT, 1)]
    return b"".join(
        [
            _integer(1, _IR_VERSION),
            _message(7, graph),
            *(_message(8, _text(1, name) + _integer(2, version)) for name, version in opsets),
        ]
    )


def _node(node: Node) -> bytes:
    return b"".join(
        [
            *(_text(1, name) for name in node.inputs),
            *(_text(2, name) for name in node.outputs),
            _text(4, node.operator),
            *(_message(5, _attribute(name, value)) for name, value in node.attributes.items()),
            _text(7, node.domain),
        ]
    )


def _attribute(name: str, value: int | float | Sequence[int]) -> bytes:
    if isinstance(value, int):
        return _text(1, name) + _integer(3, value) + _integer(20, _ATTRIBUTE_INT)
    if isinstance(value, Sequence):
        numbers = b"".join(_integer(8, one) for one in value)
        return _text(1, name) + numbers + _integer(20, _ATTRIBUTE_INTS)
    number = _key(2, _FIXED32) + struct.pack("<f", value)
    return _text(1, name) + number + _integer(20, _ATTRIBUTE_FLOAT)


def _tensor(name: str, array: npt.NDArray[np.generic]) -> bytes:
    data = np.ascontiguousarray(array)
    dims = b"".join(_integer(1, size) for size in data.shape)
    kind = _integer(2, ELEMENT_TYPES[data.dtype.name])
    return dims + kind + _text(8, name) + _message(9, data.tobytes())


def _port(port: Port) -> bytes:
    tensor = _integer(1, ELEMENT_TYPES[port.dtype])
    if port.shape is not None:
        dims = b"".join(
            _message(1, _text(2, size) if isinstance(size, str) else _integer(1, size))
            for size in port.shape
        )
        tensor += _message(2, dims)
    return _text(1, port.name) + _message(2, _message(1, tensor))


def _message(field: int, body: bytes) -> bytes:
    return _key(field, _BYTES) + _varint(len(body)) + body


def _text(field: int, value: str) -> bytes:
    return _message(field, value.encode())


def _integer(field: int, value: int) -> bytes:
    return _key(field, _VARINT) + _varint(value)


def _key(field: int, wire_type: int) -> bytes:
    return _varint(field << 3 | wire_type)


def _varint(value: int) -> bytes:
    assert value >= 0
    groups = bytearray()
    while value > 0x7F:
        groups.append(value & 0x7F | 0x80)
        value >>= 7
    groups.append(value)
    return bytes(groups)
