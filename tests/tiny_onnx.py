"""Toy models on disk: tiny ONNX decoders that betray every mistake with their cache.

`make_toy(folder, toy)` writes the graph(s), tokenizer.json, config.json, generation_config.json and
tokenizer_config.json (with a chat template) for a `tests.oracle.Toy`, which documents every option;
`tests.oracle.Oracle` says in plain Python what the graph must answer. A draft for a toy target is
another toy: `Toy(behaviour="wrong")`, `Toy(behaviour="every_third")`, `Toy(pad_vocab=64)`,
`Toy(layers=1, heads=1, head_dim=2, dtype="float16", position_ids=False)`.

    toy = Toy(script=say("Hi 😀"), script_after=ASSISTANT)   # answers every chat with "Hi 😀"
    folder = make_toy(tmp_path / "toy", toy)

Chats are rendered as `<|user|>…<|end|><|assistant|>…<|end|>`, ending in `<|assistant|>`, each
control token one id (`USER`, `ASSISTANT`, … in `tests.oracle`).
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

from tests.oracle import (
    FORCED,
    MODULUS,
    PERMUTED,
    SLOT_CYCLE,
    VOCAB,
    Toy,
    biases,
)
from tests.tiny_texts import write_texts

LANE_COUNTS = (1, 2, 4)
_FAR = 1 << 40


def make_toy(folder: Path, toy: Toy | None = None) -> Path:
    """Write a toy model into `folder` (created if missing) and return the folder."""
    toy = toy or Toy()
    folder.mkdir(parents=True, exist_ok=True)
    if toy.layout == "single":
        _save(_concatenated(toy, past=True), folder / "model.onnx", toy)
    elif toy.layout == "merged":
        _save(_concatenated(toy, past=True), folder / "decoder_model_merged.onnx", toy)
    elif toy.layout == "two_file":
        _save(_concatenated(toy, past=False), folder / "decoder_model.onnx", toy)
        _save(_concatenated(toy, past=True), folder / "decoder_with_past_model.onnx", toy)
    else:
        for lanes in LANE_COUNTS:
            _save(_lanes(toy, lanes), folder / f"model.lanes{lanes}.onnx", toy)
    write_texts(folder, toy)
    return folder


class _Graph:
    """A graph being written: every method adds one node and returns its output's name."""

    def __init__(self) -> None:
        self.nodes: list[onnx.NodeProto] = []
        self.inputs: list[onnx.ValueInfoProto] = []
        self.outputs: list[onnx.ValueInfoProto] = []
        self.weights: list[onnx.TensorProto] = []
        self.ballast = ""  # one for all lanes

    def __getattr__(self, op: str) -> Any:
        def add(*inputs: str, outputs: Sequence[str] = (), **attributes: Any) -> Any:
            names = list(outputs) or [f"{op}_{len(self.nodes)}"]
            node = helper.make_node(op, [*inputs], names, name=f"n{len(self.nodes)}", **attributes)
            self.nodes.append(node)
            return names[0] if len(names) == 1 else names

        return add

    def ints(self, *values: int) -> str:
        return self.weight(np.array(values, dtype=np.int64))

    def int(self, value: int) -> str:
        return self.weight(np.array(value, dtype=np.int64))

    def weight(self, array: np.ndarray) -> str:
        name = f"w{len(self.weights)}"
        self.weights.append(numpy_helper.from_array(array, name))
        return name

    def input(self, name: str, kind: int, shape: Sequence[int | str]) -> str:
        self.inputs.append(helper.make_tensor_value_info(name, kind, shape))
        return name

    def output(self, name: str, kind: int, shape: Sequence[int | str]) -> None:
        self.outputs.append(helper.make_tensor_value_info(name, kind, shape))

    def model(self) -> onnx.ModelProto:
        graph = helper.make_graph(self.nodes, "toy", self.inputs, self.outputs, self.weights)
        opsets = [helper.make_opsetid("", 17)]
        return helper.make_model(graph, opset_imports=opsets, ir_version=9)


def _cells(toy: Toy) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Per cell of one token's cache entry [layers, 2, heads, head_dim]: factor and summand that
    make it from h(t, p), and its weight when it is read. Read back, they add up to t + h."""
    shape = (toy.layers, 2, toy.heads, toy.head_dim)
    n = np.arange(np.prod(shape), dtype=np.int64)
    factor, summand, weight = (n * 37 + 5) % MODULUS, (n * n * 3 + 11) % MODULUS, n % 1000 + 1
    factor[0], summand[0] = 0, 0  # the first cell holds the token itself
    # The last cell is solved for: the weighted sums must be 1 and 0.
    inverse = pow(int(weight[-1]), -1, MODULUS)
    factor[-1] = (1 - int((weight * factor)[:-1].sum())) * inverse % MODULUS
    summand[-1] = -int((weight * summand)[:-1].sum()) * inverse % MODULUS
    return factor.reshape(shape), summand.reshape(shape), weight.reshape(shape)


def _tensor_type(toy: Toy) -> int:
    return int(TensorProto.FLOAT16 if toy.dtype == "float16" else TensorProto.FLOAT)


def _new_entries(g: _Graph, toy: Toy, tokens: str, positions: str) -> list[tuple[str, str]]:
    """Key and value per layer, [1, heads, rows, head_dim], for tokens and positions [rows]."""
    factor, summand, _ = _cells(toy)
    first = np.zeros_like(factor)
    first.flat[0] = 1
    t1, p1 = g.Add(tokens, g.int(1)), g.Add(positions, g.int(1))
    mixed = g.Mul(g.Mul(t1, p1), g.int(17))
    linear = g.Add(g.Mul(tokens, g.int(613)), g.Mul(positions, g.int(331)))
    h = g.Mod(g.Add(linear, mixed), g.int(MODULUS))
    column = g.ints(-1, 1, 1)
    entries = []
    for layer in range(toy.layers):
        pair = []
        for kv in range(2):
            f, s, e = (g.weight(x[layer, kv]) for x in (factor, summand, first))
            made = g.Mod(g.Add(g.Mul(g.Reshape(h, column), f), s), g.int(MODULUS))
            cell = g.Add(made, g.Mul(g.Reshape(tokens, column), e))  # [rows, heads, head_dim]
            by_head = g.Unsqueeze(g.Transpose(cell, perm=[1, 0, 2]), g.ints(0))
            pair.append(g.Cast(by_head, to=_tensor_type(toy)))
        entries.append((pair[0], pair[1]))
    return entries


def _read(g: _Graph, toy: Toy, caches: list[tuple[str, str]]) -> tuple[str, str]:
    """From caches [1, heads, total, head_dim]: t + h and the tokens themselves, both [total]."""
    _, _, weight = _cells(toy)
    sums = []
    tokens = ""
    for layer in range(toy.layers):
        for kv in range(2):
            cell = g.Cast(caches[layer][kv], to=TensorProto.INT64)
            if not tokens:
                head = g.Gather(g.Gather(cell, g.int(0), axis=1), g.int(0), axis=2)
                tokens = g.Reshape(head, g.ints(-1))
            w = g.weight(weight[layer, kv].reshape(1, toy.heads, 1, toy.head_dim))
            sums.append(g.ReduceSum(g.Mul(cell, w), g.ints(0, 1, 3), keepdims=0))
    return g.Mod(_add_all(g, sums), g.int(MODULUS)), tokens


def _add_all(g: _Graph, names: list[str]) -> str:
    total = names[0]
    for name in names[1:]:
        total = g.Add(total, name)
    return total


def _scripted(g: _Graph, toy: Toy, tokens: str, slots: str, rows: str) -> str:
    """What to add to the logits [rows, width] for the script; `rows` are the rows' slots."""
    length = max(toy.script) + 1
    table = np.full(length + 1, -1, dtype=np.int64)
    for offset, token in toy.script.items():
        table[offset] = token
    script, end = g.weight(table), g.int(length)
    column = g.Reshape(rows, g.ints(-1, 1))
    visible = g.LessOrEqual(slots, column)  # [rows, total]
    anchor = g.int(0)
    if toy.script_after is not None:
        at = g.Where(g.Equal(tokens, g.int(toy.script_after)), slots, g.int(-_FAR))
        seen = g.Where(visible, at, g.int(-_FAR))
        anchor = g.ReduceMax(seen, axes=[1], keepdims=1)

    def look_up(offsets: str) -> str:
        outside = g.Or(g.Less(offsets, g.int(0)), g.Greater(offsets, end))
        return str(g.Gather(script, g.Where(outside, end, offsets)))

    expected = look_up(g.Sub(slots, anchor))
    wrong = g.And(g.GreaterOrEqual(expected, g.int(0)), g.Not(g.Equal(expected, tokens)))
    broken = g.Cast(g.And(visible, wrong), to=TensorProto.INT64)
    intact = g.Equal(g.ReduceMax(broken, axes=[1], keepdims=1), g.int(0))  # [rows, 1]
    forced = look_up(g.Sub(g.Add(column, g.int(1)), anchor))
    ids = g.weight(np.arange(toy.width, dtype=np.int64))
    hit = g.And(intact, g.Equal(ids, forced))
    return str(g.Mul(g.Cast(hit, to=TensorProto.FLOAT), g.weight(np.float32(FORCED))))


def _sequence_logits(
    g: _Graph, toy: Toy, caches: list[tuple[str, str]], rows: str, positions: str, mask: str
) -> str:
    """Logits [rows, width], float32, of one sequence; `rows` are its rows' slots."""
    entries, tokens = _read(g, toy, caches)
    total = g.Shape(entries)
    slots = g.Range(g.int(0), g.Squeeze(total), g.int(1))
    summands = g.Mul(g.Add(g.Mod(slots, g.int(SLOT_CYCLE)), g.int(1)), entries)
    if mask:
        summands = g.Mul(summands, g.Reshape(mask, g.ints(-1)))
    if toy.not_causal:
        everything = g.ReduceSum(summands, g.ints(0), keepdims=1)
        state = g.Expand(everything, g.Shape(rows))
    else:
        state = g.Gather(g.CumSum(summands, g.int(0)), rows)
    state = g.Reshape(g.Mod(state, g.int(MODULUS)), g.ints(-1, 1))
    slope = g.Add(g.Mod(state, g.int(PERMUTED - 1)), g.int(1))
    offset = g.Mod(g.Add(g.Mul(state, g.int(7)), g.int(3)), g.int(PERMUTED))
    ids = g.weight(np.arange(toy.width, dtype=np.int64))
    ranks = g.Mod(g.Add(g.Mul(slope, ids), offset), g.int(PERMUTED))
    scaled = g.Mul(g.Cast(ranks, to=TensorProto.FLOAT), g.weight(np.float32(toy.spread)))
    logits = g.Add(scaled, g.weight(np.array(biases(toy), dtype=np.float32)))
    if toy.script:
        logits = g.Add(logits, _scripted(g, toy, tokens, slots, rows))
    return _misbehave(g, toy, logits, positions)


def _misbehave(g: _Graph, toy: Toy, logits: str, positions: str) -> str:
    column = g.Reshape(positions, g.ints(-1, 1))
    if toy.behaviour != "perfect":
        parts = [g.Slice(logits, g.ints(1), g.ints(VOCAB), g.ints(1))]
        parts.append(g.Slice(logits, g.ints(0), g.ints(1), g.ints(1)))
        parts.append(g.Slice(logits, g.ints(VOCAB), g.ints(_FAR), g.ints(1)))
        turned = g.Concat(*parts, axis=1)
        if toy.behaviour == "every_third":
            third = g.Mod(g.Add(column, g.int(1)), g.int(3))
            turned = g.Where(g.Equal(third, g.int(0)), turned, logits)
        logits = turned
    if toy.nan_at is not None:
        nan = g.weight(np.float32(np.nan))
        logits = g.Where(g.Equal(column, g.int(toy.nan_at)), nan, logits)
    if toy.fail_at is not None:
        hit = g.Cast(g.Equal(column, g.int(toy.fail_at)), to=TensorProto.INT64)
        # An index that is out of range exactly when the row is there.
        index = g.Mul(hit, g.int(10))
        logits = g.Add(logits, g.Gather(g.weight(np.zeros(1, np.float32)), index))
    if toy.ballast_bytes:
        g.ballast = g.ballast or g.weight(np.zeros(toy.ballast_bytes // 4, dtype=np.float32))
        zero = g.Gather(g.ballast, g.Mod(g.ReduceMax(column, keepdims=0), g.int(2)))
        logits = g.Add(logits, zero)
    return logits


def _concatenated(toy: Toy, *, past: bool) -> onnx.ModelProto:
    """An Optimum-style decoder: past_key_values.N.key in, present.N.key out, longer by the rows."""
    g = _Graph()
    kind = _tensor_type(toy)
    tokens = g.Reshape(g.input("input_ids", TensorProto.INT64, ["batch", "rows"]), g.ints(-1))
    mask = ""
    if toy.attention_mask:
        mask = g.input("attention_mask", TensorProto.INT64, ["batch", "total"])
    given = ""
    if toy.position_ids:
        given = g.input("position_ids", TensorProto.INT64, ["batch", "rows"])
    olds: list[list[str]] = []
    for layer in range(toy.layers if past else 0):
        shape = ["batch", toy.heads, "past", toy.head_dim]
        names = (f"past_key_values.{layer}.key", f"past_key_values.{layer}.value")
        olds.append([g.input(name, kind, shape) for name in names])
    if toy.layout == "merged":
        branch = g.input("use_cache_branch", TensorProto.BOOL, [1])
        keep = g.Mul(g.Cast(branch, to=TensorProto.INT64), g.ints(_FAR))
        olds = [[g.Slice(x, g.ints(0), keep, g.ints(2)) for x in pair] for pair in olds]
    start = g.Gather(g.Shape(olds[0][0]), g.int(2)) if past else g.int(0)
    rows = g.Range(start, g.Add(start, g.Squeeze(g.Shape(tokens))), g.int(1))
    positions = g.Reshape(given, g.ints(-1)) if given else rows
    caches = []
    for layer, pair in enumerate(_new_entries(g, toy, tokens, positions)):
        made = []
        for kv, word in enumerate(("key", "value")):
            name = f"present.{layer}.{word}"
            parts = [olds[layer][kv], pair[kv]] if past else [pair[kv]]
            made.append(g.Concat(*parts, outputs=[name], axis=2))
            g.output(name, kind, ["batch", toy.heads, "total", toy.head_dim])
        caches.append((made[0], made[1]))
    logits = _sequence_logits(g, toy, caches, rows, positions, mask)
    if toy.last_only:
        logits = g.Slice(logits, g.ints(-1), g.ints(_FAR), g.ints(0))
    typed = g.Cast(logits, to=kind)
    g.Unsqueeze(typed, g.ints(0), outputs=["logits"])
    g.output("logits", kind, ["batch", 1 if toy.last_only else "rows", toy.width])
    return g.model()


def _lanes(toy: Toy, lanes: int) -> onnx.ModelProto:
    """The lanes graph of docs/design.md. A lane's buffer is written in place (past = present)."""
    g = _Graph()
    kind = _tensor_type(toy)
    ids = g.Reshape(g.input("input_ids", TensorProto.INT64, [1, "rows"]), g.ints(-1))
    lane_rows = g.input("lane_rows", TensorProto.INT64, [lanes])
    lengths = g.input("past_lengths", TensorProto.INT32, [lanes])
    wanted = g.input("logit_rows", TensorProto.INT64, ["wanted"])
    lengths = g.Cast(lengths, to=TensorProto.INT64)
    tokens = g.Split(ids, lane_rows, outputs=[f"tokens{i}" for i in range(lanes)], axis=0)
    tokens = [tokens] if lanes == 1 else tokens
    logits = []
    for lane in range(lanes):
        start = g.Gather(lengths, g.int(lane))
        end = g.Add(start, g.Gather(lane_rows, g.int(lane)))
        rows = g.Range(start, end, g.int(1))
        caches = []
        for layer, pair in enumerate(_new_entries(g, toy, tokens[lane], rows)):
            valid = []
            for new, word in zip(pair, ("key", "value"), strict=True):
                name = f"past_key_values.{layer}.{word}.{lane}"
                shape = [1, toy.heads, f"capacity{lane}", toy.head_dim]
                old = g.input(name, kind, shape)
                head = g.Slice(old, g.ints(0), g.Reshape(start, g.ints(1)), g.ints(2))
                # One row more than the step's, like the pad row of the real graphs: garbage
                # past the end of the lane, and the reason for a spare position.
                spare = g.Add(end, g.int(1))
                tail = g.Slice(old, g.Reshape(spare, g.ints(1)), g.ints(_FAR), g.ints(2))
                garbage = g.weight(np.full((1, toy.heads, 1, toy.head_dim), 777, toy.dtype))
                present = f"present.{layer}.{word}.{lane}"
                g.Concat(head, new, garbage, tail, outputs=[present], axis=2)
                g.output(present, kind, shape)
                valid.append(g.Concat(head, new, axis=2))
            caches.append((valid[0], valid[1]))
        logits.append(_sequence_logits(g, toy, caches, rows, rows, ""))
    every = g.Concat(*logits, axis=0)
    g.Gather(every, wanted, outputs=["logits"], axis=0)
    g.output("logits", TensorProto.FLOAT, ["wanted", toy.width])
    return g.model()


def _save(model: onnx.ModelProto, path: Path, toy: Toy) -> None:
    onnx.checker.check_model(model)
    if toy.external_data:
        onnx.save(
            model,
            path,
            save_as_external_data=True,
            location=f"{path.name}_data",
            size_threshold=64,  # shapes must stay inside for shape inference
            convert_attribute=False,
        )
    else:
        onnx.save(model, path)
