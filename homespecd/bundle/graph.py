"""The lanes graph: one step over the rows of several sequences, bit-identical to each alone.

The rows of all lanes lie one after the other along the sequence axis of a batch of one, and every
operator but attention works row by row. Attention runs once per lane, on that lane's rows and its
own cache buffers. The CPU kernel takes another path for one query row than for several, which
changes last bits, so every lane's attention gets one row more than it has (a copy of its last one)
and the result's last row is dropped; the entry it writes past the end of the cache is overwritten
by the next step. docs/design.md has the table of inputs and outputs.
"""

from __future__ import annotations

import numpy as np
import onnx
from onnx import TensorProto, helper

from homespecd.bundle.decoder_parts import DecoderWriter, GraphPlan
from homespecd.bundle.graph_writer import MICROSOFT
from homespecd.bundle.linear import FLOAT_BITS

LANE_COUNTS = (1, 2, 4)


def build_lanes_graph(plan: GraphPlan, lanes: int) -> onnx.ModelProto:
    """The graph for `lanes` sequences, its weights referred to in the weights file."""
    return _Builder(plan, lanes).build()


class _Builder(DecoderWriter):
    def __init__(self, plan: GraphPlan, lanes: int) -> None:
        super().__init__(plan)
        self._lanes = lanes

    def leading(self, rows: str) -> list[str]:
        # The rows that are wanted lie along the first axis: see `wanted`.
        one = self.int64("one", [1])
        return ["wanted", one] if rows == "wanted" else [one, rows]

    def build(self) -> onnx.ModelProto:
        self._plan_rows()
        normed = self.layers(self._embed())
        flat = self.op("Squeeze", [normed, self.int64("axis.1", [1])], "final_norm.flat")
        self.head(flat, "logits")
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

    def wanted(self, values: str, output: str, *, attended: bool) -> str:
        """[1, n, width] to [wanted, 1, width]: pooling takes an empty first axis, no other."""
        rows = "wanted_padded" if attended else "logit_rows"
        flat = self.op("Squeeze", [values, self.int64("axis.0", [0])], f"{output}.flat")
        column = self.op("Unsqueeze", [rows, self.int64("axis.1", [1])], f"{output}.rows")
        return self.op("Gather", [flat, column], output, axis=0)

    # --- parts of the model ---

    def _embed(self) -> str:
        table = self.plan.linears["embedding"]
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
        shape = self.int64("embedding.shape", [1, -1, self.sizes.hidden])
        return self.op("Reshape", [blocks, shape], output)

    def attention(self, prefix: str, layer: int, normed: str, *, last: bool) -> str:
        """[1, rows, hidden] to [1, rows, heads · head_dim], in the padded order when `last`."""
        sizes, lanes = self.sizes, self._lanes
        qkv = self.linear(normed, f"{prefix}.attention.qkv", rows="rows")
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

    # --- the whole ---

    def _model(self) -> onnx.ModelProto:
        sizes, lanes = self.sizes, self._lanes
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
