"""Weights prepacked for this CPU, in files that sessions map instead of copying.

onnxruntime rearranges weights for its kernels whenever a session is made, into private memory. Here
it does so once and writes the result into the bundle's `packed/` folder; a session over those files
maps them, shares them with every other one, and starts in a fraction of the time. Packed files
belong to a CPU type, an onnxruntime version and a model: with any other they are made again, and
where they cannot be (a read-only disk), the graphs as imported do.

Where the packed weights of all lane counts come out alike, the files are hard links to one.
"""

from __future__ import annotations

import json
import logging
import os
import shutil
import zlib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from homespecd.bundle.digest import file_digest
from homespecd.bundle.external_data import stored_bytes
from homespecd.bundle.manifest import PACKED_FOLDER, Manifest, graph_file
from homespecd.bundle.staging import staged_folder
from homespecd.config.units import format_size
from homespecd.errors import BundleError
from homespecd.runtime.cpu import cpu_type
from homespecd.runtime.session import load_onnxruntime

_log = logging.getLogger(__name__)
_RECORD_FILE = "packed.json"
_READ_BYTES = 1 << 20
# Small arrays stay in the graph's file: a mapping of their own would cost more than they weigh.
_EXTERNAL_FROM_BYTES = 1024


@dataclass(frozen=True)
class LanesGraphs:
    """The graph files to load. `reason` says why they are not the packed ones, "" if they are."""

    files: Mapping[int, Path]
    packed: bool
    reason: str = ""


def best_graphs(folder: Path, manifest: Manifest) -> LanesGraphs:
    """The graphs of a bundle by lane count, packed (now, if need be) where that is possible.

    Raises:
        BundleError: the bundle's own files are not what was imported.
    """
    plain = {lanes: folder / graph_file(lanes) for lanes in manifest.lanes}
    packed = {lanes: folder / PACKED_FOLDER / graph_file(lanes) for lanes in manifest.lanes}
    if is_packed(folder, manifest):
        return LanesGraphs(packed, packed=True)
    check_weights(folder, manifest)
    try:
        pack_bundle(folder, manifest)
    except BundleError as error:
        return LanesGraphs(plain, packed=False, reason=str(error))
    return LanesGraphs(packed, packed=True)


def is_packed(folder: Path, manifest: Manifest) -> bool:
    """Whether `packed/` is there, whole, and made for this CPU, onnxruntime and model."""
    record_file = folder / PACKED_FOLDER / _RECORD_FILE
    try:
        record = json.loads(record_file.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError):
        return False
    if not isinstance(record, dict) or record.get("for") != _made_for(manifest):
        return False
    sums = record.get("sums")
    if not isinstance(sums, dict):
        return False
    try:
        if _sums(record_file.parent) == sums:
            return True
    except OSError:
        return False
    _log.warning("%s: packed weights are damaged and are made again", folder)
    return False


def check_weights(folder: Path, manifest: Manifest) -> None:
    """Raises BundleError when a file that packing would read is not the one that was imported."""
    for name, digest in manifest.files.items():
        if not name.endswith((".onnx", ".bin")):
            continue
        try:
            intact = file_digest(folder / name) == digest
        except OSError as error:
            raise BundleError(
                f"cannot be read: {error.strerror or error}", where=str(folder / name)
            ) from error
        if not intact:
            raise BundleError(
                "is not what was imported: the file is damaged or was changed",
                where=str(folder / name),
                hint="import the model again",
            )


def pack_bundle(folder: Path, manifest: Manifest) -> None:
    """Make `packed/` anew, atomically.

    Raises:
        BundleError: the disk is full or read-only, or onnxruntime cannot load a graph.
    """
    with staged_folder(folder / PACKED_FOLDER, force=True) as staging:
        first: Path | None = None
        for lanes in manifest.lanes:
            weights = staging / f"weights.lanes{lanes}.bin"
            _need_room(folder, stored_bytes(folder / graph_file(lanes)))
            _pack_graph(folder / graph_file(lanes), staging / graph_file(lanes), weights)
            if first is None:
                first = weights
            else:
                _share(weights, first)
        record = {"for": _made_for(manifest), "sums": _sums(staging)}
        (staging / _RECORD_FILE).write_text(json.dumps(record, indent=2) + "\n", encoding="utf-8")


def _need_room(folder: Path, needed_bytes: int) -> None:
    """Asked before anything is written: a disk that is full has other users than us."""
    free_bytes = shutil.disk_usage(folder).free
    if free_bytes < needed_bytes:
        raise BundleError(
            f"no room to prepack the weights: it takes {format_size(needed_bytes)}, and the disk "
            f"has {format_size(free_bytes)}",
            where=str(folder),
            hint="free some space, or move the model",
        )


def _sums(folder: Path) -> dict[str, int]:
    """CRC-32 of every file but the record; of several names of one file it is worked out once.

    It runs at well over a gigabyte a second, faster than disks are read, and what it reads is what
    the sessions map next.
    """
    by_inode: dict[int, int] = {}
    sums = {}
    for path in sorted(folder.iterdir()):
        if path.name == _RECORD_FILE:
            continue
        inode = path.stat().st_ino
        if inode not in by_inode:
            by_inode[inode] = _crc32(path)
        sums[path.name] = by_inode[inode]
    return sums


def _crc32(path: Path) -> int:
    value = 0
    with path.open("rb") as file:
        while block := file.read(_READ_BYTES):
            value = zlib.crc32(block, value)
    return value


def _made_for(manifest: Manifest) -> dict[str, str]:
    ort = load_onnxruntime()
    return {"cpu": cpu_type(), "onnxruntime": ort.__version__, "model": manifest.digest}


def _pack_graph(source: Path, target: Path, weights: Path) -> None:
    ort = load_onnxruntime()
    options = ort.SessionOptions()
    options.intra_op_num_threads = 1
    options.inter_op_num_threads = 1
    # The fusions, and none of the layouts of one machine that cannot be written down.
    options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_ENABLE_EXTENDED
    options.optimized_model_filepath = str(target)
    for key, value in (
        ("save_external_prepacked_constant_initializers", "1"),
        ("optimized_model_external_initializers_file_name", weights.name),
        ("optimized_model_external_initializers_min_size_in_bytes", str(_EXTERNAL_FROM_BYTES)),
    ):
        options.add_session_config_entry(f"session.{key}", value)
    try:
        ort.InferenceSession(str(source), options, providers=["CPUExecutionProvider"])
    except Exception as error:
        # onnxruntime's exceptions share no base but Exception.
        raise BundleError(
            "the weights cannot be prepacked", where=str(source), hint=str(error).splitlines()[0]
        ) from error


def _share(weights: Path, first: Path) -> None:
    """Make `weights` another name of `first` when their bytes are the same."""
    if file_digest(weights) != file_digest(first):
        return
    link = weights.with_suffix(".link")
    try:
        os.link(first, link)
    except OSError:
        return  # a file system without hard links holds it twice
    link.replace(weights)
