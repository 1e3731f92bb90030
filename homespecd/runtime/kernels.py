"""Which kernels of this machine give the same bits however rows are split into steps.

Every probe compares, bit for bit, what an operator says about random rows fed several at a time
with what it says about the same rows fed one by one. Milliseconds each; random data finds a kernel
that sums in another order at once, since the order shows in the last bit of most sums.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from itertools import chain

import numpy as np
import numpy.typing as npt

from homespecd.bundle.manifest import KernelReport, Manifest
from homespecd.runtime.cpu import cpu_type
from homespecd.runtime.probe_graph import Port, one_node_graph
from homespecd.runtime.session import load_onnxruntime

WIDTHS = (*range(2, 18), 32, 64)

# An odd number of blocks and of 16-wide tiles: kernels treat what is left over apart.
_FEATURES = 32 * 19
_OUTPUTS = 16 * 9 + 5
_ROWS = 64
# Past 64 positions, where the attention kernel of wide heads is known to change.
_POSITIONS = 96
_FLOAT_BITS = 32
# Larger blocks are faster (16 costs a third more per step than 32), and 16 can hold the blocks
# of 32 that files have. Blocks of 64 and more cannot.
_CANDIDATES = (32, 16)

Rows = npt.NDArray[np.float32]


def width_invariant(block: int, bits: int, *, threads: int = 1) -> bool:
    """Whether products with int4 (`bits` 4) or int8 (8) weights are, or float ones (32).

    Args:
        block: inputs per scale; without meaning for floats.
    """
    graph = _float_product() if bits == _FLOAT_BITS else _packed_product(block, bits)
    run = _runner(graph, threads)

    def product(rows: Rows) -> Rows:
        products: Rows = run({"rows": rows[None]}, ["product"])[0][0]
        return products

    rows = _random(1).standard_normal((_ROWS, _FEATURES), dtype=np.float32)
    alone = np.concatenate([product(rows[i : i + 1]) for i in range(_ROWS)])
    return all(
        np.array_equal(product(rows[start : start + width]), alone[start : start + width])
        for width in WIDTHS
        for start in {0, _ROWS - width}
    )


def attention_width_invariant(head_dim: int, *, threads: int = 1) -> bool:
    """Whether GroupQueryAttention padded by one row is, up to some length past 64."""
    heads, kv_heads = 4, 2
    capacity = _POSITIONS + 1
    graph = attention_graph(heads=heads, kv_heads=kv_heads, head_dim=head_dim, capacity=capacity)
    run = _runner(graph, threads)
    width = (heads + 2 * kv_heads) * head_dim
    rows = _random(2).standard_normal((_POSITIONS, width), dtype=np.float32)

    def attend(steps: Iterator[int]) -> Rows:
        past = np.zeros((1, kv_heads, capacity, head_dim), dtype=np.float32)
        key, value, length, outputs = past, past, 0, []
        for step in steps:
            new = rows[length : length + step]
            attended, key, value = run(
                {
                    "rows": np.concatenate([new, new[-1:]])[None],
                    "past_key": key,
                    "past_value": value,
                    "length": np.array([length + len(new)], dtype=np.int32),
                    "total": np.array([length + len(new) + 1], dtype=np.int32),
                },
                ["attended", "key", "value"],
            )
            outputs.append(attended[0, :-1])
            length += len(new)
        return np.concatenate(outputs)

    alone = attend(iter([1] * _POSITIONS))
    return all(
        np.array_equal(attend(chain([width] * (_POSITIONS // width), _rest(width))), alone)
        for width in (*WIDTHS, _POSITIONS)
    )


def probe_kernels(head_dim: int, *, threads: int = 1) -> KernelReport:
    """Try the kernels an import may use and choose the block sizes.

    The largest block that is invariant is chosen; where none is, the largest, and the report says
    so.
    """
    names = [f"int{bits}/{block}" for bits in (4, 8) for block in _CANDIDATES]
    names += ["fp32", f"attention/{head_dim}"]
    invariant = {name: _probe(name, threads) for name in names}
    blocks = {
        str(bits): next(
            (block for block in _CANDIDATES if invariant[f"int{bits}/{block}"]), _CANDIDATES[0]
        )
        for bits in (4, 8)
    }
    return KernelReport(cpu=cpu_type(), blocks=blocks, invariant=invariant)


def kernels_invariant(manifest: Manifest, *, threads: int = 1) -> bool:
    """Probe again, on this machine, the kernels that a bundle's graphs use."""
    return all(_probe(name, threads) for name in manifest.kernel_probes())


def _probe(name: str, threads: int) -> bool:
    """By the name that reports give it: "int4/32", "fp32", "attention/64"."""
    kind, _, size = name.partition("/")
    if kind == "attention":
        return attention_width_invariant(int(size), threads=threads)
    if kind == "fp32":
        return width_invariant(0, _FLOAT_BITS, threads=threads)
    return width_invariant(int(size), int(kind.removeprefix("int")), threads=threads)


def _rest(width: int) -> list[int]:
    rest = _POSITIONS % width
    return [rest] if rest else []


def _random(seed: int) -> np.random.Generator:
    return np.random.default_rng(seed)


def _packed_product(block: int, bits: int) -> bytes:
    random, blocks = _random(0), _FEATURES // block
    codes = random.integers(0, 256, (_OUTPUTS, blocks, block * bits // 8), dtype=np.uint8)
    points = random.integers(0, 256, (_OUTPUTS, -(-blocks * bits // 8)), dtype=np.uint8)
    return one_node_graph(
        "MatMulNBits",
        domain="com.microsoft",
        node_inputs=["rows", "codes", "scales", "zero_points"],
        attributes={
            "K": _FEATURES,
            "N": _OUTPUTS,
            "bits": bits,
            "block_size": block,
            "accuracy_level": 4,
        },
        inputs=[Port("rows", "float32", (1, "n", _FEATURES))],
        outputs=[Port("product", "float32", (1, "n", _OUTPUTS))],
        weights={
            "codes": codes,
            "scales": random.uniform(0.005, 0.015, (_OUTPUTS, blocks)).astype(np.float32),
            "zero_points": points,
        },
    )


def _float_product() -> bytes:
    weights = _random(0).standard_normal((_FEATURES, _OUTPUTS), dtype=np.float32)
    return one_node_graph(
        "MatMul",
        domain="",
        node_inputs=["rows", "weights"],
        attributes={},
        inputs=[Port("rows", "float32", (1, "n", _FEATURES))],
        outputs=[Port("product", "float32", (1, "n", _OUTPUTS))],
        weights={"weights": weights},
    )


def attention_graph(
    *, head_dim: int, heads: int = 4, kv_heads: int = 2, capacity: int = _POSITIONS + 1
) -> bytes:
    """A graph of one GroupQueryAttention, as the lanes graph has it in every layer."""
    angles = np.arange(capacity)[:, None] * 10000.0 ** -(np.arange(head_dim // 2) * 2 / head_dim)
    past = (1, kv_heads, capacity, head_dim)
    width = (heads + 2 * kv_heads) * head_dim
    return one_node_graph(
        "GroupQueryAttention",
        domain="com.microsoft",
        node_inputs=["rows", "", "", "past_key", "past_value", "length", "total", "cos", "sin"],
        attributes={
            "num_heads": heads,
            "kv_num_heads": kv_heads,
            "do_rotary": 1,
            "scale": float(head_dim**-0.5),
        },
        inputs=[
            Port("rows", "float32", (1, "n", width)),
            Port("past_key", "float32", past),
            Port("past_value", "float32", past),
            Port("length", "int32", (1,)),
            Port("total", "int32", (1,)),
        ],
        outputs=[
            Port("attended", "float32", (1, "n", heads * head_dim)),
            Port("key", "float32", past),
            Port("value", "float32", past),
        ],
        weights={
            "cos": np.cos(angles).astype(np.float32),
            "sin": np.sin(angles).astype(np.float32),
        },
    )


def _runner(
    graph: bytes, threads: int
) -> Callable[[Mapping[str, npt.NDArray[np.generic]], list[str]], list[Rows]]:
    ort = load_onnxruntime()
    options = ort.SessionOptions()
    options.intra_op_num_threads = threads
    options.inter_op_num_threads = 1
    options.add_session_config_entry("session.intra_op.allow_spinning", "0")
    session = ort.InferenceSession(graph, options, providers=["CPUExecutionProvider"])

    def run(feed: Mapping[str, npt.NDArray[np.generic]], names: list[str]) -> list[Rows]:
        results: list[Rows] = session.run(names, dict(feed))
        return results

    return run
