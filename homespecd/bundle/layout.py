"""Which file in a folder is the model, and what kind of graph it is.

Files are found by name, because that is how folders are organised; what a graph *is* comes from its
own inputs and outputs, given as plain data, never from a name. Nothing here opens a graph.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Any

from homespecd.errors import BundleError

MANIFEST = "homespec.json"
GENAI_CONFIG = "genai_config.json"

_LANES_FILE = re.compile(r"model\.lanes(\d+)\.onnx")
_DECODER_FILE = re.compile(
    r"(?P<stem>model|decoder_model_merged|decoder_model|decoder_with_past_model)"
    r"(?:_(?P<variant>.+))?"
)
_CONTEXT_KEYS = ("max_position_embeddings", "n_positions", "max_seq_len", "n_ctx")


@dataclass(frozen=True)
class TensorSpec:
    """An input or output of a graph. dtype: "float32", "float16", "int64", …; a dimension is a
    number, or a name (or "") where it can vary."""

    name: str
    dtype: str
    shape: tuple[int | str, ...]


@dataclass(frozen=True)
class LanesFiles:
    """Graphs by lane count, over one weights file."""

    graphs: Mapping[int, Path]


@dataclass(frozen=True)
class DecoderFiles:
    """An exported decoder. `first` is given when a graph of its own, without past inputs, makes the
    first pass (the two-file export); `graph` is the one with past inputs.

    shared_buffer: the folder says that past and present are made to be one buffer (the
    onnxruntime-genai builder's layout).
    """

    graph: Path
    first: Path | None = None
    shared_buffer: bool = False


GraphFiles = LanesFiles | DecoderFiles


def find_graphs(path: Path, variant: str = "") -> GraphFiles:
    """Find the graph(s) of the model at `path` (a folder, or one .onnx file).

    Args:
        variant: which one, where a folder holds several: what follows `model_` in the file's name
            ("q4" for model_q4.onnx), or a file's name.

    Raises:
        BundleError: nothing there, no graph among the files, or several and no variant.
    """
    if path.is_file():
        return DecoderFiles(path)
    if not path.is_dir():
        raise BundleError("there is no such folder or file", where=str(path))
    lanes = {
        int(match[1]): file
        for file in path.iterdir()
        if (match := _LANES_FILE.fullmatch(file.name))
    }
    if lanes:
        if variant:
            raise BundleError(
                f"variant {variant!r} asked for, but this bundle holds one model only",
                where=str(path),
                hint="leave variant empty",
            )
        return LanesFiles(dict(sorted(lanes.items())))
    if (path / MANIFEST).is_file():
        raise BundleError(
            "this bundle has lost its graphs (model.lanesN.onnx)",
            where=str(path),
            hint="import the model again",
        )
    if (path / GENAI_CONFIG).is_file():
        return _genai(path)
    return _choose(path, variant)


def _genai(folder: Path) -> DecoderFiles:
    config = _read_json(folder / GENAI_CONFIG)
    name = _dig(config, "model", "decoder", "filename")
    if not isinstance(name, str) or not (folder / name).is_file():
        raise BundleError(
            f"model.decoder.filename does not name a file in the folder: {name!r}",
            where=str(folder / GENAI_CONFIG),
        )
    shared = _dig(config, "search", "past_present_share_buffer")
    return DecoderFiles(folder / name, shared_buffer=shared is True)


def _choose(folder: Path, variant: str) -> DecoderFiles:
    files = [file for place in (folder, folder / "onnx") for file in sorted(place.glob("*.onnx"))]
    if not files:
        held = ", ".join(sorted(file.name for file in folder.iterdir())) or "no files"
        raise BundleError(
            f"no graph (.onnx file) in this folder, which holds: {held}",
            where=str(folder),
            hint="homespecctl import makes a bundle from a GGUF file or a checkpoint",
        )
    for file in files:
        if variant and variant in (file.name, str(file.relative_to(folder))):
            return _complete(file, files)
    found: dict[str, Path] = {}
    for file in files:
        match = _DECODER_FILE.fullmatch(file.stem)
        stem, name = (match["stem"], match["variant"] or "") if match else ("model", file.stem)
        # A standard export holds the merged decoder beside the two it was merged from.
        if stem == "decoder_model_merged" or name not in found:
            found[name] = file
    if variant in found and (variant or len(found) == 1):
        return _complete(found[variant], files)
    if variant == "fp32" and "" in found:  # the full-precision file carries no suffix
        return _complete(found[""], files)
    if not variant and len(found) == 1:
        return _complete(next(iter(found.values())), files)
    names = ", ".join(f"{name or 'fp32'} ({file.name})" for name, file in found.items())
    if variant:
        raise BundleError(f"no variant {variant!r} here, only: {names}", where=str(folder))
    raise BundleError(
        f"several graphs here: {names}",
        where=str(folder),
        hint="choose one with variant",
    )


def _complete(file: Path, files: Sequence[Path]) -> DecoderFiles:
    """Add the partner of a two-file export."""
    match = _DECODER_FILE.fullmatch(file.stem)
    if not match or match["stem"] not in ("decoder_model", "decoder_with_past_model"):
        return DecoderFiles(file)
    suffix = f"_{match['variant']}" if match["variant"] else ""
    first = file.with_name(f"decoder_model{suffix}.onnx")
    second = file.with_name(f"decoder_with_past_model{suffix}.onnx")
    if match["stem"] == "decoder_model" and second not in files:
        return DecoderFiles(file)
    if first not in files:
        raise BundleError(
            f"{second.name} needs {first.name} beside it, which is missing",
            where=str(file.parent),
        )
    return DecoderFiles(second, first=first)


class Layout(StrEnum):
    """How a graph keeps its cache."""

    LANES = "lanes"
    CONCATENATED = "concatenated"


@dataclass(frozen=True)
class CacheTensors:
    """Names and shape of a graph's cache. Keys and values alternate, layer by layer, and
    `pasts[i]` comes out again as `presents[i]`. For lanes, the names are those of lane 0 without
    the trailing lane number."""

    layout: Layout
    pasts: tuple[str, ...]
    presents: tuple[str, ...]
    dtype: str
    kv_heads: int
    head_dim: int
    lanes: int = 1

    @property
    def bytes_per_token(self) -> int:
        """Keys and values of one token over all layers."""
        item_bytes = {"float32": 4, "float16": 2, "bfloat16": 2}[self.dtype]
        return len(self.pasts) * self.kv_heads * self.head_dim * item_bytes


_CACHE_NAME = re.compile(r"past_key_values\.(\d+)\.(key|value)(?:\.(\d+))?")


def recognise(inputs: Sequence[TensorSpec], outputs: Sequence[TensorSpec]) -> CacheTensors:
    """The layout of a graph, from its own inputs and outputs.

    Raises:
        BundleError: it is none that this program knows; the message lists what the graph has.
    """
    by_name = {spec.name: spec for spec in inputs}
    out_names = {spec.name for spec in outputs}
    matches = [match for name in by_name if (match := _CACHE_NAME.fullmatch(name))]
    matches.sort(key=lambda match: (int(match[1]), match[2]))
    lanes = {int(match[3]) for match in matches if match[3]}
    prefixes = tuple(
        f"past_key_values.{match[1]}.{match[2]}" for match in matches if match[3] in (None, "0")
    )
    presents = tuple(name.replace("past_key_values", "present", 1) for name in prefixes)
    ends = [f".{lane}" for lane in sorted(lanes)] or [""]
    whole = all(f"{name}{end}" in by_name for name in prefixes for end in ends)
    whole = whole and all(f"{name}{end}" in out_names for name in presents for end in ends)
    steered = not lanes or {"lane_rows", "past_lengths", "logit_rows"} <= set(by_name)
    if not (prefixes and whole and steered and "input_ids" in by_name and "logits" in out_names):
        raise BundleError(
            "a graph of an unknown layout, with inputs "
            f"{', '.join(by_name) or 'none'} and outputs {', '.join(sorted(out_names)) or 'none'}",
            hint="known are past_key_values.N.key and .value in, present.N.key and .value out",
        )
    spec = by_name[f"{prefixes[0]}{ends[0]}"]
    heads, head_dim = (spec.shape[1], spec.shape[3]) if len(spec.shape) == 4 else ("", "")
    if not isinstance(heads, int) or not isinstance(head_dim, int):
        raise BundleError(f"the cache input {spec.name} has no fixed heads and head size")
    return CacheTensors(
        layout=Layout.LANES if lanes else Layout.CONCATENATED,
        pasts=prefixes,
        presents=presents,
        dtype=spec.dtype,
        kv_heads=heads,
        head_dim=head_dim,
        lanes=len(ends),
    )


def declared_context(folder: Path) -> int | None:
    """Most positions the model's own files say it can hold; None when they do not say."""
    for name, keys in ((MANIFEST, ("context",)), (GENAI_CONFIG, ()), ("config.json", ())):
        file = folder / name
        if not file.is_file():
            continue
        config = _read_json(file)
        found = _dig(config, *keys) if keys else None
        found = found or _dig(config, "model", "context_length")
        for key in _CONTEXT_KEYS:
            found = found or _dig(config, key) or _dig(config, "text_config", key)
        if isinstance(found, int) and found > 0:
            return found
    return None


def _read_json(path: Path) -> Any:
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        raise BundleError(f"cannot be read as JSON: {error}", where=str(path)) from error


def _dig(value: Any, *keys: str) -> Any:
    for key in keys:
        value = value.get(key) if isinstance(value, dict) else None
    return value
