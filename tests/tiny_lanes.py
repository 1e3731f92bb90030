"""A tiny decoder with real attention, as lanes graphs (docs/design.md), random int4 weights.

Unlike the toys of `tests.tiny_onnx` it runs the kernels that imported models run:
GroupQueryAttention over buffers shared by past and present, padded by one row, and MatMulNBits. Its
logits have no oracle; what counts is that a sequence's logits are the same bits however its rows
are split and whoever shares the step.
"""

from __future__ import annotations

import json
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


def make_shared_buffer(folder: Path) -> Path:
    """The same weights the way the onnxruntime-genai builder lays them out: one sequence,
    attention_mask in, logits for every row, past and present to be bound to one buffer."""
    folder.mkdir(parents=True, exist_ok=True)
    onnx.save(_Builder(1, exported=True).model(), folder / "model.onnx")
    config = {
        "model": {"context_length": POSITIONS, "decoder": {"filename": "model.onnx"}},
        "search": {"past_present_share_buffer": True},
    }
    (folder / "genai_config.json").write_text(json.dumps(config))
    return folder


class _Builder:
    def __init__(self, lanes: int, *, exported: bool = False) -> None:
        self.lanes = lanes
        self.exported = exported
        self.random = np.random.default_rng(7)
        self.nodes: list[onnx.NodeProto] = []
        self.weights: list[onnx.TensorProto] = []
        info = helper.make_tensor_value_info
        if exported:
            self.inputs = [
                info("input_ids", TensorProto.INT64, ["batch", "rows"]),
                info("attention_mask", TensorProto.INT64, ["batch", "total"]),
            ]
            self.outputs = [info("logits", TensorProto.FLOAT, ["batch", "rows", VOCAB])]
        else:
            self.inputs = [
                info("input_ids", TensorProto.INT64, [1, "rows"]),
                info("lane_rows", TensorProto.INT64, [lanes]),
                info("past_lengths", TensorProto.INT32, [lanes]),
                info("logit_rows", TensorProto.INT64, ["wanted"]),
            ]
            self.outputs = [info("logits", TensorProto.FLOAT, ["wanted", VOCAB])]

    def model(self) -> onnx.ModelProto:
        embedding = self.random.standard_normal((VOCAB, HIDDEN)).astype(np.float32)
        hidden = self.op("Gather", self.weight(embedding), "input_ids")
        lane_rows = ["lane_rows"]
        if self.lanes > 1:
            lane_rows = self.ops("Split", "lane_rows", count=self.lanes, num_outputs=self.lanes)
        attention = self.lengths()
        for layer in range(LAYERS):
            normed = self.norm(hidden)
            rows = self.attend(layer, self.linear(normed, PACKED_QKV), attention, lane_rows)
            hidden = self.op("Add", hidden, self.linear(rows, HIDDEN))
            up = self.linear(self.norm(hidden), HIDDEN)
            acted = self.op("Mul", up, self.op("Sigmoid", up))
            hidden = self.op("Add", hidden, self.linear(acted, HIDDEN))
        normed = self.norm(hidden)
        if self.exported:
            self.nodes.append(
                helper.make_node("Identity", [self.linear(normed, VOCAB)], ["logits"])
            )
        else:
            logits = self.linear(self.op("Gather", normed, "logit_rows", axis=1), VOCAB)
            zero = self.weight(np.array([0], np.int64))
            self.nodes.append(helper.make_node("Squeeze", [logits, zero], ["logits"]))
        graph = helper.make_graph(self.nodes, "tiny", self.inputs, self.outputs, self.weights)
        opsets = [helper.make_opsetid("", 18), helper.make_opsetid("com.microsoft", 1)]
        return helper.make_model(graph, opset_imports=opsets, ir_version=9)

    def lengths(self) -> list[list[str]]:
        """Per lane, GroupQueryAttention's total length minus one and total length, int32 [1]."""
        one = self.weight(np.array([1], np.int64))
        if self.exported:
            total = self.op("Shape", "attention_mask", start=1, end=2)
            pairs = [[self.op("Sub", total, one), total]]
        else:
            # The pad row counts: total minus one is past + rows.
            lengths = self.op("Cast", "past_lengths", to=TensorProto.INT64)
            counts = self.op("Add", lengths, "lane_rows")
            totals = self.op("Add", counts, one)
            pairs = []
            for lane in range(self.lanes):
                at = self.weight(np.array([lane], np.int64))
                pairs.append([self.op("Gather", x, at) for x in (counts, totals)])
        return [[self.op("Cast", x, to=TensorProto.INT32) for x in pair] for pair in pairs]

    def attend(self, layer: int, qkv: str, attention: list[list[str]], lane_rows: list[str]) -> str:
        parts = [qkv]
        if self.lanes > 1:
            parts = self.ops("Split", qkv, "lane_rows", count=self.lanes, axis=1)
        pads = self.weight(np.array([0, 0, 0, 0, 1, 0], np.int64))
        start, axis = (self.weight(np.array([n], np.int64)) for n in (0, 1))
        outputs = []
        for lane, part in enumerate(parts):
            shape = [1, KV_HEADS, f"capacity{lane}", HEAD_DIM]
            end = "" if self.exported else f".{lane}"
            names = [f"{layer}.key{end}", f"{layer}.value{end}"]
            pasts = [f"past_key_values.{name}" for name in names]
            presents = [f"present.{name}" for name in names]
            for infos, tensors in ((self.inputs, pasts), (self.outputs, presents)):
                for name in tensors:
                    infos.append(helper.make_tensor_value_info(name, TensorProto.FLOAT, shape))
            padded = part if self.exported else self.op("Pad", part, pads)
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
            kept = out if self.exported else self.op("Slice", out, start, lane_rows[lane], axis)
            outputs.append(kept)
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
