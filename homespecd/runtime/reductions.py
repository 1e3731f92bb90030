"""Graphs that answer a question about logits where these lie, as bytes.

All take `logits` [..., vocab] of a step, and `first`, int64 [2]: from which row on, and 0. Those
that find the highest ids give `found`, float32 [rows, 2 · count + 1]: the values, the ids, and 1
where the row has a NaN anywhere. An id is exact as a float below 2**24, and one output is one copy.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import numpy.typing as npt

from homespecd.runtime.probe_graph import ELEMENT_TYPES, Node, Port, small_graph

# Past it a float does not hold every id.
MOST_IDS = 1 << 24

# Old enough that every provider has kernels for all of it.
_OPSET = 17
_END = np.iinfo(np.int64).max
_ROWS: Mapping[str, int | Sequence[int]] = {"axes": [1], "keepdims": 1}

Weights = Mapping[str, npt.NDArray[np.generic]]


def highest_graph(dtype: str, vocab: int, width: int) -> bytes:
    """`found` for the highest of the first `width` ids, the lowest id among equals.

    ArgMax does not do: that the lowest of equals wins is not so on every device.
    """
    nodes = [
        *_begin(dtype),
        Node("ReduceMax", ["x"], ["highest"], _ROWS),
        Node("Equal", ["x", "highest"], ["is_highest"]),
        Node("Where", ["is_highest", "ids", "none"], ["candidates"]),
        Node("ReduceMin", ["candidates"], ["id"], _ROWS),
        *_nan_and_end(["highest", "id"]),
    ]
    weights = {
        "ids": np.arange(width, dtype=np.float32)[np.newaxis],
        "none": np.array(MOST_IDS, dtype=np.float32),
    }
    return _graph(nodes, dtype, vocab, width, weights, count=1)


def top_graph(dtype: str, vocab: int, width: int) -> bytes:
    """`found` for the `count` highest of the first `width` ids (input int64 [1]), highest first; of
    equals any may come first, or at all."""
    nodes = [
        *_begin(dtype),
        Node("TopK", ["x", "count"], ["values", "indices"], {"axis": 1}),
        Node("Cast", ["indices"], ["as_floats"], {"to": ELEMENT_TYPES["float32"]}),
        *_nan_and_end(["values", "as_floats"]),
    ]
    return _graph(nodes, dtype, vocab, width, {}, count=None)


def rows_graph(dtype: str, vocab: int) -> bytes:
    """`found`: the rows themselves, [rows, vocab] in their own type."""
    slicing = Node("Slice", ["flat", "first", "last"], ["found"])
    return small_graph(
        [Node("Reshape", ["logits", "shape"], ["flat"]), slicing],
        inputs=[_logits(dtype), Port("first", "int64", (2,))],
        outputs=[Port("found", dtype, ("rows", vocab))],
        weights=_bounds(vocab, vocab),
        opset=_OPSET,
    )


def _begin(dtype: str) -> list[Node]:
    """x: float32 [rows, width]."""
    sliced = "x" if dtype == "float32" else "sliced"
    nodes = [
        Node("Reshape", ["logits", "shape"], ["flat"]),
        Node("Slice", ["flat", "first", "last"], [sliced]),
    ]
    if sliced != "x":
        nodes.append(Node("Cast", [sliced], ["x"], {"to": ELEMENT_TYPES["float32"]}))
    return nodes


def _nan_and_end(parts: list[str]) -> list[Node]:
    """A NaN is looked for apart: where a maximum or a sort puts one is each device's own affair."""
    return [
        Node("IsNaN", ["x"], ["are_nan"]),
        Node("Cast", ["are_nan"], ["nans"], {"to": ELEMENT_TYPES["float32"]}),
        Node("ReduceMax", ["nans"], ["nan"], _ROWS),
        Node("Concat", [*parts, "nan"], ["found"], {"axis": 1}),
    ]


def _graph(
    nodes: list[Node], dtype: str, vocab: int, width: int, weights: Weights, *, count: int | None
) -> bytes:
    inputs = [_logits(dtype), Port("first", "int64", (2,))]
    if count is None:
        inputs.append(Port("count", "int64", (1,)))
    columns = "columns" if count is None else 2 * count + 1
    return small_graph(
        nodes,
        inputs=inputs,
        outputs=[Port("found", "float32", ("rows", columns))],
        weights={**_bounds(vocab, width), **weights},
        opset=_OPSET,
    )


def _logits(dtype: str) -> Port:
    return Port("logits", dtype, None)


def _bounds(vocab: int, width: int) -> dict[str, npt.NDArray[np.int64]]:
    return {"shape": np.array([-1, vocab]), "last": np.array([_END, width])}
