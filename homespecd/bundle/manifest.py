"""The manifest of a bundle: `homespec.json`, what the model is and how it came to be.

Plain dataclasses and json, so that reading a manifest costs nothing and needs no import extra.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path

from homespecd.bundle.manifest_values import wrong_value
from homespecd.errors import BundleError

MANIFEST_FILE = "homespec.json"
PACKED_FOLDER = "packed"
PORTABLE_FILE = "model.portable.onnx"
FORMAT = 1


def graph_file(lanes: int) -> str:
    """The file name of the graph for so many lanes."""
    return f"model.lanes{lanes}.onnx"


@dataclass(frozen=True)
class PartPrecision:
    """How one part of the model is held.

    part: "embedding", "head" (where it is not the embedding again), "attention.qkv",
        "attention.output", "mlp.gate_up", "mlp.down", "norms", "kv_cache".
    precision: "int4", "int8", "fp32".
    block_size: inputs per scale, 0 for floats.
    source: tensor types in the source file, "+" between several.
    kept: the source's own numbers, nothing rounded (the mean columns' four bits aside).
    layers: in how many layers the part is held so; 0 for parts that are not in layers.
    """

    part: str
    precision: str
    block_size: int
    source: str
    kept: bool
    layers: int = 0


@dataclass(frozen=True)
class KernelReport:
    """What probing the kernels of the importing machine said.

    cpu: the CPU type it was measured on (`runtime.prepack` has the same word for its files).
    blocks: bits ("4", "8") to the block size chosen.
    invariant: probe ("int4/32", "int8/32", "fp32", "attention/64") to whether results were
        bit-identical at every width tried.
    """

    cpu: str
    blocks: Mapping[str, int]
    invariant: Mapping[str, bool]


@dataclass(frozen=True)
class Manifest:
    """One imported model.

    context: positions the rotary tables reach.
    vocab: width of the logits; tokenizer_vocab: tokens the tokenizer knows.
    width_invariant: every kernel that the graphs use was invariant on the importing machine.
    files: file name to hex SHA-256, the manifest itself and `packed/` left out.
    digest: of the model as a whole (`bundle.digest.model_digest` over `files`).
    """

    name: str
    architecture: str
    precision: str
    layers: int
    heads: int
    kv_heads: int
    head_dim: int
    hidden: int
    feed_forward: int
    vocab: int
    tokenizer_vocab: int
    context: int
    lanes: tuple[int, ...]
    bos_id: int | None
    add_bos: bool
    eos_ids: tuple[int, ...]
    parts: tuple[PartPrecision, ...]
    kernels: KernelReport
    width_invariant: bool
    source_file: str
    source_sha256: str
    licence: str
    files: Mapping[str, str]
    digest: str
    weights_bytes: int
    format: int = FORMAT

    def kernel_probes(self) -> tuple[str, ...]:
        """The keys of `KernelReport.invariant` that this model's graphs depend on."""
        return kernel_probes(self.parts, self.head_dim)

    @property
    def kv_bytes_per_token(self) -> int:
        """Keys and values of one token over all layers, float32."""
        return 2 * self.layers * self.kv_heads * self.head_dim * 4

    def write(self, folder: Path) -> None:
        """Write `homespec.json`. Raises OSError."""
        text = json.dumps(asdict(self), indent=2, ensure_ascii=False)
        (folder / MANIFEST_FILE).write_text(text + "\n", encoding="utf-8")


def kernel_probes(parts: Iterable[PartPrecision], head_dim: int) -> tuple[str, ...]:
    """Names of the kernels that multiply by these parts, and of the attention's."""
    products = {
        f"{part.precision}/{part.block_size}" if part.block_size else part.precision
        for part in parts
        if part.part not in ("norms", "kv_cache")
    }
    return (*sorted(products), f"attention/{head_dim}")


def is_bundle(folder: Path) -> bool:
    """Whether this folder has a manifest of ours."""
    return (folder / MANIFEST_FILE).is_file()


def read_manifest(folder: Path) -> Manifest:
    """Read `homespec.json`.

    Raises:
        BundleError: it is missing, not JSON, of a later format, or lacks something.
    """
    path = folder / MANIFEST_FILE
    where = str(path)
    try:
        stated = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise BundleError(
            f"the manifest cannot be read: {error.strerror}",
            where=where,
            hint="make the bundle with homespecctl import",
        ) from error
    except (ValueError, RecursionError) as error:
        raise BundleError("the manifest is not JSON", where=where) from error
    if not isinstance(stated, dict) or stated.get("format") != FORMAT:
        found = stated.get("format") if isinstance(stated, dict) else None
        raise BundleError(
            f"the manifest's format is {found!r}, this version reads {FORMAT}",
            where=where,
            hint="import the model again",
        )
    if wrong := wrong_value(stated):
        raise BundleError(
            f"the manifest says what cannot be, {wrong}", where=where, hint="import the model again"
        )
    try:
        return Manifest(
            **{
                **stated,
                "lanes": tuple(stated["lanes"]),
                "eos_ids": tuple(stated["eos_ids"]),
                "parts": tuple(PartPrecision(**part) for part in stated["parts"]),
                "kernels": KernelReport(**stated["kernels"]),
            }
        )
    except (KeyError, TypeError) as error:
        raise BundleError(
            f"the manifest is incomplete: {error}", where=where, hint="import the model again"
        ) from error
