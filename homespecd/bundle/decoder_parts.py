"""What the graphs of one model have in common: its sizes, its matrices, and how each is applied.

A graph decides which rows there are and how they attend to each other (`graph`: lanes over shared
buffers; `portable`: one sequence, plain operators). Norms, products and the rest work row by row
and are written here once.

Nothing here reads a model file: the weights are initializers already, the matrices are `Linear`s.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass

from onnx import TensorProto, helper

from homespecd.bundle.families import Dimensions
from homespecd.bundle.gguf_blocks import SOURCE_BLOCK
from homespecd.bundle.graph_writer import MICROSOFT, GraphWriter
from homespecd.bundle.linear import FLOAT_BITS, Linear

# MatMulNBits: activations rounded to int8 by block, the product in integers (the fast path).
_INT8_ACTIVATIONS = 4


@dataclass(frozen=True)
class GraphPlan:
    """All that the graphs of one model have in common.

    linears: by name: `layers.N.attention.qkv`, `….attention.output`, `….mlp.gate_up`,
        `….mlp.down`, `embedding` and `head` (the same `Linear` twice where they are tied).
    initializers: every array by name, external; norms are `layers.N.attention_norm`,
        `layers.N.mlp_norm` and `final_norm` [hidden], the rotary tables `rope.cos` and `rope.sin`.
    """

    dimensions: Dimensions
    linears: Mapping[str, Linear]
    initializers: Mapping[str, TensorProto]


class DecoderWriter(GraphWriter, ABC):
    """A `GraphWriter` that knows a decoder's parts.

    Rows are counted as "rows" (all of the step's) or as "wanted" (those with logits), whose numbers
    are values of these names in the graph.
    """

    def __init__(self, plan: GraphPlan) -> None:
        super().__init__(plan.initializers)
        self.plan = plan
        self.sizes = plan.dimensions
        self._fills: dict[tuple[str, int], str] = {}

    @abstractmethod
    def attention(self, prefix: str, layer: int, normed: str, *, last: bool) -> str:
        """[1, rows, hidden] to [1, rows, heads · head_dim], in an order of the graph's own."""

    @abstractmethod
    def wanted(self, values: str, output: str, *, attended: bool) -> str:
        """The rows whose logits are wanted. `attended`: they are in the order of `attention`."""

    def layers(self, hidden: str) -> str:
        """All layers and the last norm: from the embedded rows to those that are wanted."""
        normed, residual = self.first_norm(hidden), hidden
        for layer in range(self.sizes.layers):
            prefix = f"layers.{layer}"
            last = layer == self.sizes.layers - 1
            attended = self.attention(prefix, layer, normed, last=last)
            if last:
                # From here on only the rows whose logits are wanted are of any use.
                residual = self.wanted(residual, "wanted.residual", attended=False)
                attended = self.wanted(attended, "wanted.attended", attended=True)
            rows = "wanted" if last else "rows"
            output = self.linear(attended, f"{prefix}.attention.output", rows=rows)
            normed, residual = self.skip_norm(output, residual, f"{prefix}.mlp_norm")
            output = self.mlp(prefix, normed, rows=rows)
            following = "final_norm" if last else f"layers.{layer + 1}.attention_norm"
            normed, residual = self.skip_norm(output, residual, following, keep=not last)
        return normed

    def leading(self, rows: str) -> list[str]:
        """The values that make up the first two axes of activations with so many rows."""
        return [self.int64("one", [1]), rows]

    def first_norm(self, hidden: str) -> str:
        return self.op(
            "SimplifiedLayerNormalization",
            [hidden, self.weight("layers.0.attention_norm")],
            "layers.0.attention_norm.out",
            axis=-1,
            epsilon=self.sizes.norm_epsilon,
        )

    def skip_norm(
        self, values: str, residual: str, norm: str, *, keep: bool = True
    ) -> tuple[str, str]:
        """Add the residual, and normalise: (normed, sum)."""
        outputs = [f"{norm}.out"] + (["", "", f"{norm}.residual"] if keep else [])
        self.op(
            "SkipSimplifiedLayerNormalization",
            [values, residual, self.weight(norm)],
            outputs,
            domain=MICROSOFT,
            epsilon=self.sizes.norm_epsilon,
        )
        return outputs[0], outputs[-1]

    def mlp(self, prefix: str, normed: str, *, rows: str) -> str:
        gate_up = self.linear(normed, f"{prefix}.mlp.gate_up", rows=rows)
        gate, up = f"{prefix}.mlp.gate", f"{prefix}.mlp.up"
        self.op("Split", [gate_up], [gate, up], axis=-1, num_outputs=2)
        # x · sigmoid(1 · x): SiLU in one operator.
        active = self.op("QuickGelu", [gate], f"{prefix}.mlp.active", domain=MICROSOFT, alpha=1.0)
        product = self.op("Mul", [active, up], f"{prefix}.mlp.product")
        return self.linear(product, f"{prefix}.mlp.down", rows=rows)

    def head(self, flat: str, output: str) -> str:
        """Logits [n, vocab] from [n, hidden]."""
        head = self.plan.linears["head"]
        if head.bits == FLOAT_BITS and head.rows_first:
            return self.op("Gemm", [flat, self.weight(head.name)], output, transB=1)
        if head.bits == FLOAT_BITS:
            return self.op("MatMul", [flat, self.weight(head.name)], output)
        return self._product(head, flat, output)

    def linear(self, values: str, name: str, *, rows: str) -> str:
        """values [.., in] times a matrix. `rows`: what counts the rows."""
        linear = self.plan.linears[name]
        output = f"{name}.out"
        if linear.bits == FLOAT_BITS:
            return self.op("MatMul", [values, self.weight(linear.name)], output)
        if linear.mean_columns:
            values = self._with_means(values, linear, rows)
        return self._product(linear, values, output)

    def _with_means(self, values: str, linear: Linear, rows: str) -> str:
        """Append each block's mean, and zeros up to a whole block: two operators in all."""
        means = self.op(
            "AveragePool",
            [values],
            f"{linear.name}.means",
            kernel_shape=[SOURCE_BLOCK],
            strides=[SOURCE_BLOCK],
        )
        parts = [values, means]
        fill = linear.width - linear.in_features - linear.mean_columns
        if fill:
            parts.append(self._fill(rows, fill))
        return self.op("Concat", parts, f"{linear.name}.in", axis=-1)

    def _fill(self, rows: str, count: int) -> str:
        """Zeros, [.., .., count]: made once per step."""
        key = (rows, count)
        if key not in self._fills:
            width = self.int64(f"width.{count}", [count])
            parts = [*self.leading(rows), width]
            shape = self.op("Concat", parts, f"fill.{rows}.{count}.shape", axis=0)
            zero = helper.make_tensor("value", TensorProto.FLOAT, [1], [0.0])
            self._fills[key] = self.op(
                "ConstantOfShape", [shape], f"fill.{rows}.{count}", value=zero
            )
        return self._fills[key]

    def _product(self, linear: Linear, values: str, output: str) -> str:
        inputs = [
            values,
            self.weight(f"{linear.name}.codes"),
            self.weight(f"{linear.name}.scales"),
        ]
        if linear.has_zero_points:
            inputs.append(self.weight(f"{linear.name}.zero_points"))
        return self.op(
            "MatMulNBits",
            inputs,
            output,
            domain=MICROSOFT,
            K=linear.width,
            N=linear.out_features,
            bits=linear.bits,
            block_size=linear.block_size,
            accuracy_level=_INT8_ACTIVATIONS,
        )
