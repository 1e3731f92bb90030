"""The lanes graph: one step over the rows of several sequences, bit-identical to each alone.

The rows of all lanes lie one after the other along the sequence axis of a batch of one, and every
operator but attention works row by row. Attention runs once per lane, on that lane's rows and its
own cache buffers. The CPU kernel takes another path for one query row than for several, which
changes last bits, so every lane's attention gets one row more than it has (a copy of its last one)
and the result's last row is dropped; the entry it writes past the end of the cache is overwritten
by the next step. docs/design.md has the table of inputs and outputs.

Nothing here reads a model file: the weights are initializers already, the matrices are `Linear`s.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import onnx
from onnx import TensorProto, helper

from homespecd.bundle.families import Dimensions
from homespecd.bundle.gguf_blocks import SOURCE_BLOCK
from homespecd.bundle.graph_writer import MICROSOFT, GraphWriter
from homespecd.bundle.linear import FLOAT_BITS, Linear

LANE_COUNTS = (1, 2, 4)
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


def build_lanes_graph(plan: GraphPlan, lanes: int) -> onnx.ModelProto:
    """The graph for `lanes` sequences, its weights referred to in the weights file."""
    return _Builder(plan, lanes).build()


class _Builder(GraphWriter):
    def __init__(self, plan: GraphPlan, lanes: int) -> None:
        super().__init__(plan.initializers)
        self._plan = plan
        self._sizes = plan.dimensions
        self._lanes = lanes
        self._fills: dict[tuple[str, int], str] = {}

    def build(self) -> onnx.ModelProto:
        sizes = self._sizes
        self._plan_rows()
        hidden = self._embed()
        normed = self.op(
            "SimplifiedLayerNormalization",
            [hidden, self.weight("layers.0.attention_norm")],
            "layers.0.attention_norm.out",
            axis=-1,
            epsilon=sizes.norm_epsilon,
        )
        residual = hidden
        for layer in range(sizes.layers):
            prefix = f"layers.{layer}"
            last = layer == sizes.layers - 1
            attended = self._attention(prefix, layer, normed, last=last)
            if last:
                # From here on only the rows whose logits are wanted are of any use.
                residual = self._wanted(residual, "wanted.residual")
                attended = self._wanted(attended, "wanted.attended", "wanted_padded")
            output = self._linear(attended, f"{prefix}.attention.output", rows=_rows(last))
            normed, residual = self._skip_norm(output, residual, f"{prefix}.mlp_norm")
            output = self._mlp(prefix, normed, rows=_rows(last))
            following = "final_norm" if last else f"layers.{layer + 1}.attention_norm"
            normed, residual = self._skip_norm(output, residual, following, keep=not last)
        flat = self.op("Squeeze", [normed, self.int64("axis.1", [1])], "final_norm.flat")
        self._head(flat)
        return self._model()

    # --- once per step: which rows go where ---

    def _plan_rows(self) -> None:
        """Row indices of the padded order and back, and each lane's lengths.

        With lane i's rows ending before row e[i], the padded order has one row more per lane; its
        position p holds row p - #{i: p >= e[i] + i}, which repeats the lane's last row at its end
        (for an idle lane any row will do), and row r lies at position r + #{i: r >= e[i]}.

        No constant here depends on the number of lanes: onnxruntime orders the prepacked weights
        by a hash of all constants, and one file of them is to serve every lane count.
        """
        axis, one = self.int64("zero", 0), self.int64("one", [1])
        ends = self.op("CumSum", ["lane_rows", axis], "lane_ends")
        padded_rows = self.op("Add", ["lane_rows", one], "padded.lane_rows")
        padded_ends = self.op("CumSum", [padded_rows, axis], "padded.lane_ends")
        places = self.op("Sub", [padded_ends, one], "padded.places")
        count = self.op("ReduceSum", [padded_rows], "padded.count")
        self._shifted("padded", count, places, "Sub", "padded_rows")
        rows = self.op("Shape", ["input_ids"], "rows", start=1, end=2)
        self._shifted("kept", rows, ends, "Add", "kept_rows")
        self.op("Gather", ["kept_rows", "logit_rows"], "wanted_padded", axis=0)
        self.op("Shape", ["logit_rows"], "wanted")
        row_counts = self.op("Cast", ["lane_rows"], "lane_rows.int32", to=TensorProto.INT32)
        one32 = self.constant("constant.one.int32", np.array([1], dtype=np.int32))
        # GroupQueryAttention wants the total length minus one, and the total has the pad row.
        lengths = self.op("Add", ["past_lengths", row_counts], self._per_lane("lane_length"))
        totals = self.op("Add", [lengths, one32], self._per_lane("lane_total"))
        if self._lanes > 1:
            for source in (lengths, totals):
                name = source.removesuffix("s")
                parts = [f"{name}.{lane}" for lane in range(self._lanes)]
                self.op("Split", [source], parts, num_outputs=self._lanes)

    def _per_lane(self, name: str) -> str:
        """Where a length of every lane goes: with one lane, that is the lane's own."""
        return f"{name}s" if self._lanes > 1 else f"{name}.0"

    def _shifted(self, name: str, count: str, places: str, operator: str, output: str) -> None:
        """`output[p]` = p ∓ #{i: p >= places[i]} for p below `count`."""
        zero = self.int64("zero", 0)
        scalar = self.op("Squeeze", [count], f"{name}.scalar")
        positions = self.op("Range", [zero, scalar, self.int64("step", 1)], f"{name}.positions")
        column = self.op(
            "Unsqueeze", [positions, self.int64("axis.1", [1])], f"{name}.positions.column"
        )
        past = self.op("GreaterOrEqual", [column, places], f"{name}.past")
        number = self.op("Cast", [past], f"{name}.past.int64", to=TensorProto.INT64)
        shift = self.op(
            "ReduceSum", [number, self.int64("axis.1", [1])], f"{name}.shift", keepdims=0
        )
        self.op(operator, [positions, shift], output)

    def _wanted(self, values: str, output: str, rows: str = "logit_rows") -> str:
        """[1, n, width] to [wanted, 1, width]: pooling takes an empty first axis, no other."""
        flat = self.op("Squeeze", [values, self.int64("axis.0", [0])], f"{output}.flat")
        column = self.op("Unsqueeze", [rows, self.int64("axis.1", [1])], f"{output}.rows")
        return self.op("Gather", [flat, column], output, axis=0)

    # --- parts of the model ---

    def _embed(self) -> str:
        table = self._plan.linears["embedding"]
        output = "embedding.out"
        if table.bits == FLOAT_BITS:
            return self.op("Gather", [self.weight(table.name), "input_ids"], output, axis=0)
        inputs = [
            self.weight(f"{table.name}.codes"),
            "input_ids",
            self.weight(f"{table.name}.row_scales"),
        ]
        if table.has_zero_points:
            inputs.append(self.weight(f"{table.name}.row_zero_points"))
        blocks = self.op(  # [1, rows, blocks, block_size]
            "GatherBlockQuantized",
            inputs,
            "embedding.blocks",
            domain=MICROSOFT,
            bits=table.bits,
            block_size=table.block_size,
            gather_axis=0,
            quantize_axis=2,
        )
        shape = self.int64("embedding.shape", [1, -1, self._sizes.hidden])
        return self.op("Reshape", [blocks, shape], output)

    def _attention(self, prefix: str, layer: int, normed: str, *, last: bool) -> str:
        """[1, rows, hidden] to [1, rows, heads · head_dim], in the padded order when `last`."""
        sizes, lanes = self._sizes, self._lanes
        qkv = self._linear(normed, f"{prefix}.attention.qkv", rows="rows")
        padded = self.op("Gather", [qkv, "padded_rows"], f"{prefix}.attention.padded", axis=1)
        parts = [padded]
        if lanes > 1:
            parts = [f"{prefix}.attention.lane.{lane}" for lane in range(lanes)]
            self.op("Split", [padded, "padded.lane_rows"], parts, axis=1)
        outputs = []
        for lane, part in enumerate(parts):
            output = f"{prefix}.attention.out.{lane}"
            self.op(
                "GroupQueryAttention",
                [
                    part,
                    "",
                    "",
                    f"past_key_values.{layer}.key.{lane}",
                    f"past_key_values.{layer}.value.{lane}",
                    f"lane_length.{lane}",
                    f"lane_total.{lane}",
                    self.weight("rope.cos"),
                    self.weight("rope.sin"),
                ],
                [output, f"present.{layer}.key.{lane}", f"present.{layer}.value.{lane}"],
                domain=MICROSOFT,
                num_heads=sizes.heads,
                kv_num_heads=sizes.kv_heads,
                do_rotary=1,
                rotary_interleaved=0,
                scale=float(sizes.head_dim) ** -0.5,
            )
            outputs.append(output)
        joined = outputs[0]
        if lanes > 1:
            joined = self.op("Concat", outputs, f"{prefix}.attention.joined", axis=1)
        if last:
            return joined
        return self.op("Gather", [joined, "kept_rows"], f"{prefix}.attention.kept", axis=1)

    def _mlp(self, prefix: str, normed: str, *, rows: str) -> str:
        gate_up = self._linear(normed, f"{prefix}.mlp.gate_up", rows=rows)
        gate, up = f"{prefix}.mlp.gate", f"{prefix}.mlp.up"
        self.op("Split", [gate_up], [gate, up], axis=-1, num_outputs=2)
        # x · sigmoid(1 · x): SiLU in one operator.
        active = self.op("QuickGelu", [gate], f"{prefix}.mlp.active", domain=MICROSOFT, alpha=1.0)
        product = self.op("Mul", [active, up], f"{prefix}.mlp.product")
        return self._linear(product, f"{prefix}.mlp.down", rows=rows)

    def _skip_norm(
        self, values: str, residual: str, norm: str, *, keep: bool = True
    ) -> tuple[str, str]:
        """Add the residual, and normalise: (normed, sum)."""
        outputs = [f"{norm}.out"] + (["", "", f"{norm}.residual"] if keep else [])
        self.op(
            "SkipSimplifiedLayerNormalization",
            [values, residual, self.weight(norm)],
            outputs,
            domain=MICROSOFT,
            epsilon=self._sizes.norm_epsilon,
        )
        return outputs[0], outputs[-1]

    def _head(self, flat: str) -> None:
        head = self._plan.linears["head"]
        if head.bits == FLOAT_BITS and head.rows_first:
            self.op("Gemm", [flat, self.weight(head.name)], "logits", transB=1)
        elif head.bits == FLOAT_BITS:
            self.op("MatMul", [flat, self.weight(head.name)], "logits")
        else:
            self._product(head, flat, "logits")

    # --- matrices ---

    def _linear(self, values: str, name: str, *, rows: str) -> str:
        """values [.., in] times a matrix. `rows`: what counts the rows ("rows" or "wanted")."""
        linear = self._plan.linears[name]
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
        """Zeros, [1, rows, count] or [wanted, 1, count]: made once per step."""
        key = (rows, count)
        if key not in self._fills:
            one, width = self.int64("one", [1]), self.int64(f"width.{count}", [count])
            parts = ["wanted", one, width] if rows == "wanted" else [one, "rows", width]
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

    # --- the whole ---

    def _model(self) -> onnx.ModelProto:
        sizes, lanes = self._sizes, self._lanes
        info = helper.make_tensor_value_info
        inputs = [
            info("input_ids", TensorProto.INT64, [1, "rows"]),
            info("lane_rows", TensorProto.INT64, [lanes]),
            info("past_lengths", TensorProto.INT32, [lanes]),
            info("logit_rows", TensorProto.INT64, ["wanted"]),
        ]
        outputs = [info("logits", TensorProto.FLOAT, ["wanted", sizes.vocab])]
        for layer in range(sizes.layers):
            for lane in range(lanes):
                shape = [1, sizes.kv_heads, f"capacity.{lane}", sizes.head_dim]
                for part in ("key", "value"):
                    past = f"past_key_values.{layer}.{part}.{lane}"
                    inputs.append(info(past, TensorProto.FLOAT, shape))
                    present = f"present.{layer}.{part}.{lane}"
                    outputs.append(info(present, TensorProto.FLOAT, shape))
        return self.model(f"lanes{lanes}", inputs, outputs)


def _rows(last: bool) -> str:
    return "wanted" if last else "rows"
