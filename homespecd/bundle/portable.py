"""The portable graph: one sequence, a cache that grows by concatenation, no fused attention.

For execution providers that cannot take the lanes graph, whose GroupQueryAttention over shared
buffers only few have. Here attention is spelled out in standard ONNX operators, and past and
present are ordinary inputs and outputs, as in an Optimum export (`runtime.concatenated` runs it).
It refers to the same weights file as the lanes graphs, so that it costs a bundle some 100 kB.
docs/design.md has the table of inputs and outputs.
"""

from __future__ import annotations

import numpy as np
import onnx
from onnx import TensorProto, helper

from homespecd.bundle.decoder_parts import DecoderWriter, GraphPlan
from homespecd.bundle.linear import FLOAT_BITS

_END = np.iinfo(np.int64).max


def build_portable_graph(plan: GraphPlan) -> onnx.ModelProto:
    """The graph, its weights referred to in the weights file."""
    return _Builder(plan).build()


class _Builder(DecoderWriter):
    def __init__(self, plan: GraphPlan) -> None:
        super().__init__(plan)
        self._group = plan.dimensions.heads // plan.dimensions.kv_heads

    def build(self) -> onnx.ModelProto:
        self._plan_positions()
        normed = self.layers(self._embed())
        axis = self.int64("axis.0", [0])
        flat = self.op("Squeeze", [normed, axis], "final_norm.flat")
        self.op("Unsqueeze", [self.head(flat, "logits.flat"), axis], "logits")
        return self._model()

    # --- once per step ---

    def _plan_positions(self) -> None:
        """Cosines and sines [rows, head_dim / 2], the causal mask, and the rows that are wanted."""
        axis = self.int64("axis.0", [0])
        step = self.int64("step", 1)
        rows = self.op("Shape", ["input_ids"], "rows", start=1, end=2)
        past = self.op("Shape", ["past_key_values.0.key"], "past", start=2, end=3)
        total = self.op("Add", [past, rows], "total")
        first = self.op("Squeeze", [past, axis], "past.scalar")
        end = self.op("Squeeze", [total, axis], "total.scalar")
        positions = self.op("Range", [first, end, step], "positions")
        for part in ("cos", "sin"):
            self.op("Gather", [self.weight(f"rope.{part}"), positions], f"rows.{part}", axis=0)
        columns = self.op("Range", [self.int64("zero", 0), end, step], "columns")
        line = self.op("Unsqueeze", [positions, self.int64("axis.1", [1])], "positions.column")
        hidden = self.op("Greater", [columns, line], "hidden")
        lowest = self.constant("constant.lowest", np.array(np.finfo(np.float32).min))
        seen = self.constant("constant.seen", np.array(0, dtype=np.float32))
        mask = self.op("Where", [hidden, lowest, seen], "mask")
        # The query heads that share a key head are stacked along the rows: see `attention`.
        self.op("Tile", [mask, self.int64("mask.repeats", [self._group, 1])], "mask.stacked")

        self.op("Unsqueeze", ["num_logits_to_keep", axis], "wanted")
        self.op("Neg", ["wanted"], "wanted.start")

    def wanted(self, values: str, output: str, *, attended: bool) -> str:  # noqa: ARG002
        """The last `num_logits_to_keep` rows of [1, rows, width]."""
        bounds = ["wanted.start", self.int64("end", [_END]), self.int64("axis.1", [1])]
        return self.op("Slice", [values, *bounds], output)

    # --- parts of the model ---

    def _embed(self) -> str:
        """[1, rows, hidden]: the table's codes and scales of these rows, multiplied out."""
        table = self.plan.linears["embedding"]
        if table.bits == FLOAT_BITS:
            return self._looked_up(table.name, "embedding.out")
        codes = self._looked_up(f"{table.name}.codes", "embedding.codes.rows")
        scales = self._looked_up(f"{table.name}.row_scales", "embedding.scales.rows")
        values = self.op("Cast", [codes], "embedding.codes.float", to=TensorProto.FLOAT)
        if table.has_zero_points:
            found = self._looked_up(f"{table.name}.row_zero_points", "embedding.points.rows")
            points = self.op("Cast", [found], "embedding.points.float", to=TensorProto.FLOAT)
        else:
            middle = np.array(2 ** (table.bits - 1), dtype=np.float32)
            points = self.constant("constant.embedding.point", middle)
        centred = self.op("Sub", [values, points], "embedding.centred")
        blocks = self.op("Mul", [centred, scales], "embedding.blocks")
        shape = self.int64("embedding.shape", [1, -1, self.sizes.hidden])
        return self.op("Reshape", [blocks, shape], "embedding.out")

    def _looked_up(self, table: str, output: str) -> str:
        return self.op("Gather", [self.weight(table), "input_ids"], output, axis=0)

    def attention(self, prefix: str, layer: int, normed: str, *, last: bool) -> str:  # noqa: ARG002
        """[1, rows, hidden] to [1, rows, heads · head_dim].

        The query heads that share a key head are stacked along the rows, so that keys and values
        are used as they lie in the cache, not repeated.
        """
        sizes, name = self.sizes, f"{prefix}.attention"
        qkv = self.linear(normed, f"{name}.qkv", rows="rows")
        widths = [count * sizes.head_dim for count in (sizes.heads, sizes.kv_heads, sizes.kv_heads)]
        parts = [f"{name}.{part}" for part in ("query", "key", "value")]
        self.op("Split", [qkv, self.int64("qkv.widths", widths)], parts, axis=-1)
        query, key, value = (
            self._by_head(part, count // sizes.head_dim)
            for part, count in zip(parts, widths, strict=True)
        )
        keys = self._appended(layer, "key", self._rotated(key))
        values = self._appended(layer, "value", value)
        scale = self.constant("constant.scale", np.array(sizes.head_dim**-0.5, dtype=np.float32))
        scaled = self.op("Mul", [self._rotated(query), scale], f"{name}.scaled")
        stacked = self._reshaped(scaled, f"{name}.stacked", [1, sizes.kv_heads, -1, sizes.head_dim])
        turned = self.op("Transpose", [keys], f"{name}.keys.turned", perm=[0, 1, 3, 2])
        scores = self.op("MatMul", [stacked, turned], f"{name}.scores")
        masked = self.op("Add", [scores, "mask.stacked"], f"{name}.masked")
        weights = self.op("Softmax", [masked], f"{name}.weights", axis=-1)
        attended = self.op("MatMul", [weights, values], f"{name}.attended")
        heads = self._reshaped(attended, f"{name}.heads", [1, sizes.heads, -1, sizes.head_dim])
        rows = self.op("Transpose", [heads], f"{name}.rows", perm=[0, 2, 1, 3])
        return self._reshaped(rows, f"{name}.joined", [1, -1, sizes.heads * sizes.head_dim])

    def _by_head(self, values: str, heads: int) -> str:
        """[1, rows, heads · head_dim] to [1, heads, rows, head_dim]."""
        split = self._reshaped(values, f"{values}.split", [1, -1, heads, self.sizes.head_dim])
        return self.op("Transpose", [split], f"{values}.by_head", perm=[0, 2, 1, 3])

    def _rotated(self, values: str) -> str:
        """Rotary positions on [1, heads, rows, head_dim], halves against halves."""
        low, high = f"{values}.low", f"{values}.high"
        self.op("Split", [values], [low, high], axis=-1, num_outputs=2)
        turned = []
        for first, second, sign in ((low, high, "Sub"), (high, low, "Add")):
            along = self.op("Mul", [first, "rows.cos"], f"{first}.cos")
            across = self.op("Mul", [second, "rows.sin"], f"{second}.sin")
            turned.append(self.op(sign, [along, across], f"{first}.rotated"))
        return self.op("Concat", turned, f"{values}.rotated", axis=-1)

    def _appended(self, layer: int, part: str, new: str) -> str:
        past, present = f"past_key_values.{layer}.{part}", f"present.{layer}.{part}"
        return self.op("Concat", [past, new], present, axis=2)

    def _reshaped(self, values: str, output: str, shape: list[int]) -> str:
        name = "shape." + ".".join(map(str, shape))
        return self.op("Reshape", [values, self.int64(name, shape)], output)

    # --- the whole ---

    def _model(self) -> onnx.ModelProto:
        sizes, info = self.sizes, helper.make_tensor_value_info
        inputs = [
            info("input_ids", TensorProto.INT64, [1, "rows"]),
            info("num_logits_to_keep", TensorProto.INT64, []),
        ]
        outputs = [info("logits", TensorProto.FLOAT, [1, "wanted", sizes.vocab])]
        for layer in range(sizes.layers):
            for part in ("key", "value"):
                cache = f"{layer}.{part}"
                past, present = (
                    [1, sizes.kv_heads, length, sizes.head_dim] for length in ("past", "total")
                )
                inputs.append(info(f"past_key_values.{cache}", TensorProto.FLOAT, past))
                outputs.append(info(f"present.{cache}", TensorProto.FLOAT, present))
        return self.model("portable", inputs, outputs)
