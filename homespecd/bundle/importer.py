"""From a GGUF file to the files of a bundle, prepacked weights aside.

Owns the order of things: family, sizes, tokenizer, matrices, graphs, manifest. Where the folder
comes from, and what the kernels of this machine want, is decided above (`runtime.importing`).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from homespecd.bundle.decoder_parts import GraphPlan
from homespecd.bundle.digest import file_digest, model_digest
from homespecd.bundle.families import (
    Dimensions,
    Family,
    dimensions_of,
    family_of,
    halves_order,
    rope_tables,
)
from homespecd.bundle.gguf_blocks import SOURCE_BLOCK
from homespecd.bundle.gguf_file import GgufFile, GgufTensor
from homespecd.bundle.graph import LANE_COUNTS, build_lanes_graph
from homespecd.bundle.linear import (
    FLOAT_BITS,
    Linear,
    write_float_table,
    write_floats,
    write_packed,
    write_table,
)
from homespecd.bundle.manifest import (
    PORTABLE_FILE,
    KernelReport,
    Manifest,
    PartPrecision,
    graph_file,
    kernel_probes,
)
from homespecd.bundle.portable import build_portable_graph
from homespecd.bundle.precision import BlockSizes, Precision, PrecisionRule
from homespecd.bundle.quantise import joined, pack
from homespecd.bundle.weights import WEIGHTS_FILE, WeightsWriter
from homespecd.errors import BundleError

Progress = Callable[[int, int, str], None]
"""Called with (bytes done, bytes in all, what is being done)."""

_TABLE_BITS = 8  # embedding and head: at 4 bits they cost a small model a quarter of its sense


@dataclass(frozen=True)
class _Part:
    """One matrix of the bundle and the tensors it is made of, top to bottom."""

    part: str
    name: str
    sources: tuple[str, ...]
    in_layer: bool = True


def write_bundle(
    file: GgufFile,
    folder: Path,
    *,
    name: str,
    precision: Precision,
    kernels: KernelReport,
    progress: Progress,
) -> Manifest:
    """Fill an empty folder with a bundle.

    Args:
        kernels: what probing this machine said; its block sizes are used.

    Raises:
        BundleError: the file cannot be converted.
        OSError: the disk is full or refuses.
    """
    # The tokenizer first: an unknown one is refused before gigabytes are written.
    from homespecd.bundle.gguf_tokenizer import write_tokenizer

    family, dimensions = family_of(file), dimensions_of(file)
    facts = write_tokenizer(file.metadata, folder)
    blocks = BlockSizes(int4=kernels.blocks["4"], int8=kernels.blocks["8"])
    conversion = _Conversion(file, family, dimensions, precision, blocks, progress)
    with WeightsWriter(folder) as weights:
        plan = conversion.run(weights)
    for lanes in LANE_COUNTS:
        graph = build_lanes_graph(plan, lanes)
        (folder / graph_file(lanes)).write_bytes(graph.SerializeToString())
    (folder / PORTABLE_FILE).write_bytes(build_portable_graph(plan).SerializeToString())
    files = {path.name: file_digest(path) for path in sorted(folder.iterdir())}
    parts = conversion.parts()
    manifest = Manifest(
        name=name,
        architecture=family.architecture,
        precision=precision,
        layers=dimensions.layers,
        heads=dimensions.heads,
        kv_heads=dimensions.kv_heads,
        head_dim=dimensions.head_dim,
        hidden=dimensions.hidden,
        feed_forward=dimensions.feed_forward,
        vocab=dimensions.vocab,
        tokenizer_vocab=facts.vocab_size,
        context=dimensions.context,
        lanes=LANE_COUNTS,
        bos_id=facts.bos_id,
        add_bos=facts.add_bos,
        eos_ids=tuple(facts.eos_ids),
        parts=parts,
        kernels=kernels,
        width_invariant=all(
            kernels.invariant[probe] for probe in kernel_probes(parts, dimensions.head_dim)
        ),
        source_file=file.path.name,
        source_sha256=file_digest(file.path),
        licence=file.text("general.license") or "not stated",
        files=files,
        digest=model_digest(files),
        weights_bytes=(folder / WEIGHTS_FILE).stat().st_size,
    )
    manifest.write(folder)
    return manifest


class _Conversion:
    """One file's matrices on their way into the weights file."""

    def __init__(
        self,
        file: GgufFile,
        family: Family,
        dimensions: Dimensions,
        precision: Precision,
        blocks: BlockSizes,
        progress: Progress,
    ) -> None:
        self._file = file
        self._family = family
        self._sizes = dimensions
        self._blocks = blocks
        self._progress = progress
        self._done_bytes = 0
        self._total_bytes = sum(tensor.nbytes for tensor in file.tensors.values())
        self._parts: Counter[PartPrecision] = Counter()
        self._rule = PrecisionRule.for_tensors(
            precision, (tensor.type_name for tensor in file.tensors.values())
        )

    def run(self, weights: WeightsWriter) -> GraphPlan:
        linears: dict[str, Linear] = {}
        for part in self._matrices():
            tensors = [self._checked(source, part) for source in part.sources]
            linears[part.name] = self._matrix(weights, part, tensors)
        linears.update(self._tables(weights))
        self._norms(weights)
        factors = self._file.tensors.get("rope_freqs.weight")
        cos, sin = rope_tables(self._sizes, factors.float32() if factors else None)
        weights.add("rope.cos", cos)
        weights.add("rope.sin", sin)
        return GraphPlan(self._sizes, linears, weights.initializers)

    def parts(self) -> tuple[PartPrecision, ...]:
        """Every way that some part is held, with its number of layers."""
        return tuple(
            PartPrecision(
                part.part, part.precision, part.block_size, part.source, part.kept, part.layers * n
            )
            for part, n in self._parts.items()
        )

    def _matrices(self) -> list[_Part]:
        parts = []
        for layer in range(self._sizes.layers):
            for part, sources in (
                ("attention.qkv", ("attn_q", "attn_k", "attn_v")),
                ("attention.output", ("attn_output",)),
                ("mlp.gate_up", ("ffn_gate", "ffn_up")),
                ("mlp.down", ("ffn_down",)),
            ):
                names = tuple(f"blk.{layer}.{source}.weight" for source in sources)
                parts.append(_Part(part, f"layers.{layer}.{part}", names))
        return parts

    def _checked(self, name: str, part: _Part) -> GgufTensor:
        sizes = self._sizes
        attended, keys = sizes.heads * sizes.head_dim, sizes.kv_heads * sizes.head_dim
        shapes = {
            "attn_q": (attended, sizes.hidden),
            "attn_k": (keys, sizes.hidden),
            "attn_v": (keys, sizes.hidden),
            "attn_output": (sizes.hidden, attended),
            "ffn_gate": (sizes.feed_forward, sizes.hidden),
            "ffn_up": (sizes.feed_forward, sizes.hidden),
            "ffn_down": (sizes.hidden, sizes.feed_forward),
        }
        kind = name.split(".")[-2]
        tensor = self._file.tensor(name)
        wanted = shapes.get(kind, (sizes.vocab, sizes.hidden))
        where = str(self._file.path)
        if tensor.shape != wanted:
            raise BundleError(
                f"the tensor {name} is {list(tensor.shape)}, expected {list(wanted)}", where=where
            )
        if wanted[1] % SOURCE_BLOCK and part.name and self._rule.precision != "fp32":
            raise BundleError(
                f"the tensor {name} has {wanted[1]} inputs, not a multiple of {SOURCE_BLOCK}",
                where=where,
                hint="import it with --precision fp32",
            )
        return tensor

    def _matrix(self, weights: WeightsWriter, part: _Part, tensors: list[GgufTensor]) -> Linear:
        bits = self._rule.bits(tensors) if part.in_layer else self._table_bits()
        orders = [self._order(source) for source in part.sources]
        if bits == FLOAT_BITS:
            kept = True
            values = [
                tensor.float32() if order is None else tensor.float32()[order]
                for tensor, order in zip(tensors, orders, strict=True)
            ]
            matrix = np.concatenate(values)
            write = write_floats if part.in_layer or part.part == "head" else write_float_table
            linear = write(weights, part.name, matrix)
        else:
            coded = [self._rule.codes(tensor, bits, means=part.in_layer) for tensor in tensors]
            kept = all(own for _, own in coded)
            codes = joined(
                [
                    codes if order is None else codes.rows(order)
                    for (codes, _), order in zip(coded, orders, strict=True)
                ]
            )
            packed = pack(codes, self._blocks.of(bits))
            linear = (write_packed if part.in_layer else write_table)(weights, part.name, packed)
        self._note(part, tensors, linear, kept=kept)
        return linear

    def _order(self, source: str) -> np.ndarray[tuple[int, ...], np.dtype[np.intp]] | None:
        """The order of a tensor's rows, None for as they are."""
        if not self._family.interleaved_rope:
            return None
        if source.endswith(".attn_q.weight"):
            return halves_order(self._sizes.heads, self._sizes.head_dim)
        if source.endswith(".attn_k.weight"):
            return halves_order(self._sizes.kv_heads, self._sizes.head_dim)
        return None

    def _table_bits(self) -> int:
        return FLOAT_BITS if self._rule.precision == "fp32" else _TABLE_BITS

    def _tables(self, weights: WeightsWriter) -> Mapping[str, Linear]:
        """Embedding and head; one table for both where the file has no head of its own."""
        embedding = _Part("embedding", "embedding", ("token_embd.weight",), in_layer=False)
        tables = [embedding]
        if "output.weight" in self._file.tensors:
            tables.append(_Part("head", "head", ("output.weight",), in_layer=False))
        written = {
            part.name: self._matrix(weights, part, [self._checked(part.sources[0], part)])
            for part in tables
        }
        return {"head": written["embedding"], **written}

    def _norms(self, weights: WeightsWriter) -> None:
        names = {"final_norm": "output_norm.weight"}
        for layer in range(self._sizes.layers):
            names[f"layers.{layer}.attention_norm"] = f"blk.{layer}.attn_norm.weight"
            names[f"layers.{layer}.mlp_norm"] = f"blk.{layer}.ffn_norm.weight"
        for name, source in names.items():
            tensor = self._file.tensor(source)
            if tensor.shape != (self._sizes.hidden,):
                raise BundleError(
                    f"the tensor {source} is {list(tensor.shape)}, not [{self._sizes.hidden}]",
                    where=str(self._file.path),
                )
            weights.add(name, tensor.float32())

    def _note(self, part: _Part, tensors: list[GgufTensor], linear: Linear, *, kept: bool) -> None:
        types = "+".join(dict.fromkeys(tensor.type_name for tensor in tensors))
        precision = "fp32" if linear.bits == FLOAT_BITS else f"int{linear.bits}"
        layers = int(part.in_layer)
        self._parts[
            PartPrecision(part.part, precision, linear.block_size, types, kept, layers)
        ] += 1
        self._done_bytes += sum(tensor.nbytes for tensor in tensors)
        self._progress(self._done_bytes, self._total_bytes, part.name)
