"""A tiny decoder with real attention, as lanes graphs (docs/design.md), random int4 weights.

Unlike the toys of `tests.tiny_onnx` it runs the kernels that imported models run:
GroupQueryAttention over buffers shared by past and present, padded by one row, and MatMulNBits. Its
logits have no oracle; what counts is that a sequence's logits are the same bits however its rows
are split and whoever shares the step.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

VOCAB = 96
POSITIONS = 512
LAYERS = 2
HEADS, KV_HEADS, HEAD_DIM = 4, 2, 16
HIDDEN = HEADS * HEAD_DIM
PACKED_QKV = (HEADS + 2 * KV_HEADS) * HEAD_DIM
BLOCK = 16  # the block size whose int4 kernel is width-invariant on every CPU type seen


def make_lanes(folder: Path, counts: tuple[int, ...] = (1, 2, 4)) -> Path:
    """Write model.lanesN.onnx for each count; all have the same weights."""
    folder.mkdir(parents=True, exist_ok=True)
    for lanes in counts:
        onnx.save(_Builder(lanes).model(), folder / f"model.lanes{lanes}.onnx")
    return folder


class _Builder:
    def __init__(self, lanes: int) -> None:
        self.lanes = lanes
        self.random = np.random.default_rng(7)
        self.nodes: list[onnx.NodeProto] = []
        self.weights: list[onnx.TensorProto] = []
        self.inputs = [
            helper.make_tensor_value_info("input_ids", TensorProto.INT64, [1, "rows"]),
            helper.make_tensor_value_info("lane_rows", TensorProto.INT64, [lanes]),
            helper.make_tensor_value_info("past_lengths", TensorProto.INT32, [lanes]),
            helper.make_tensor_value_info("logit_rows", TensorProto.INT64, ["wanted"]),
        ]
        self.outputs = [
            helper.make_tensor_value_info("logits", TensorProto.FLOAT, ["wanted", VOCAB])
        ]

    def model(self) -> onnx.ModelProto:
        embedding = self.random.standard_normal((VOCAB, HIDDEN)).astype(np.float32)
        hidden = self.op("Gather", self.weight(embedding), "input_ids")
        lane_rows = ["lane_rows"]
        if self.lanes > 1:
            lane_rows = self.ops("Split", "lane_rows", count=self.lanes, num_outputs=self.lanes)
        lengths = self.op("Cast", "past_lengths", to=TensorProto.INT64)
        one = self.weight(np.array([1], np.int64))
        # Total length minus one, the pad row counted: past + rows.
        counts = self.op("Add", lengths, "lane_rows")
        totals = self.op("Add", counts, one)
        attention = []
        for lane in range(self.lanes):
            at = self.weight(np.array([lane], np.int64))
            pair = [self.op("Gather", x, at) for x in (counts, totals)]
            attention.append([self.op("Cast", x, to=TensorProto.INT32) for x in pair])
        for layer in range(LAYERS):
            normed = self.norm(hidden)
            rows = self.attend(layer, self.linear(normed, PACKED_QKV), attention, lane_rows)
            hidden = self.op("Add", hidden, self.linear(rows, HIDDEN))
            up = self.linear(self.norm(hidden), HIDDEN)
            acted = self.op("Mul", up, self.op("Sigmoid", up))
            hidden = self.op("Add", hidden, self.linear(acted, HIDDEN))
        wanted = self.op("Gather", self.norm(hidden), "logit_rows", axis=1)
        logits = self.linear(wanted, VOCAB)
        zero = self.weight(np.array([0], np.int64))
        self.nodes.append(helper.make_node("Squeeze", [logits, zero], ["logits"]))
        graph = helper.make_graph(self.nodes, "tiny", self.inputs, self.outputs, self.weights)
        opsets = [helper.make_opsetid("", 18), helper.make_opsetid("com.microsoft", 1)]
        return helper.make_model(graph, opset_imports=opsets, ir_version=9)

    def attend(self, layer: int, qkv: str, attention: list[list[str]], lane_rows: list[str]) -> str:
        parts = [qkv]
        if self.lanes > 1:
            parts = self.ops("Split", qkv, "lane_rows", count=self.lanes, axis=1)
        pads = self.weight(np.array([0, 0, 0, 0, 1, 0], np.int64))
        start, axis = (self.weight(np.array([n], np.int64)) for n in (0, 1))
        outputs = []
        for lane, part in enumerate(parts):
            shape = [1, KV_HEADS, f"capacity{lane}", HEAD_DIM]
            names = [f"{layer}.key.{lane}", f"{layer}.value.{lane}"]
            pasts = [f"past_key_values.{name}" for name in names]
            presents = [f"present.{name}" for name in names]
            for infos, tensors in ((self.inputs, pasts), (self.outputs, presents)):
                for name in tensors:
                    infos.append(helper.make_tensor_value_info(name, TensorProto.FLOAT, shape))
            padded = self.op("Pad", part, pads)
            total = self.op("Squeeze", attention[lane][1])
            inputs = [padded, "", "", *pasts, attention[lane][0], total, *self.rotary()]
            out = self.ops(
                "GroupQueryAttention",
                *inputs,
                outputs=presents,
                domain="com.microsoft",
                num_heads=HEADS,
                kv_num_heads=KV_HEADS,
                do_rotary=1,
            )[0]
            outputs.append(self.op("Slice", out, start, lane_rows[lane], axis))
        return self.op("Concat", *outputs, axis=1) if self.lanes > 1 else outputs[0]

    def rotary(self) -> tuple[str, str]:
        if not any(w.name == "cos" for w in self.weights):
            frequency = 100.0 ** (-np.arange(HEAD_DIM // 2) / (HEAD_DIM // 2))
            angles = np.outer(np.arange(POSITIONS + 1), frequency).astype(np.float32)
            self.weights += [
                numpy_helper.from_array(np.cos(angles), "cos"),
                numpy_helper.from_array(np.sin(angles), "sin"),
            ]
        return "cos", "sin"

    def norm(self, hidden: str) -> str:
        scale = self.weight(np.ones(HIDDEN, np.float32))
        return self.op("SimplifiedLayerNormalization", hidden, scale, axis=-1, epsilon=1e-5)

    def linear(self, x: str, out: int) -> str:
        packed = self.random.integers(0, 256, (out, HIDDEN // BLOCK, BLOCK // 2), np.uint8)
        scales = self.random.uniform(0.02, 0.04, out * (HIDDEN // BLOCK)).astype(np.float32)
        return self.op(
            "MatMulNBits",
            x,
            self.weight(packed),
            self.weight(scales),
            domain="com.microsoft",
            K=HIDDEN,
            N=out,
            bits=4,
            block_size=BLOCK,
            accuracy_level=4,
        )

    def weight(self, array: np.ndarray) -> str:
        name = f"w{len(self.weights)}"
        self.weights.append(numpy_helper.from_array(array, name))
        return name

    def op(self, kind: str, *inputs: str, **attributes: object) -> str:
        return self.ops(kind, *inputs, **attributes)[0]

    def ops(
        self,
        kind: str,
        *inputs: str,
        count: int = 1,
        outputs: list[str] | None = None,
        **attributes: object,
    ) -> list[str]:
        made = [f"t{len(self.nodes)}.{i}" for i in range(count)]
        self.nodes.append(
            helper.make_node(kind, list(inputs), made + (outputs or []), **attributes)
        )
        return made
