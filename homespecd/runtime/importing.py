"""`homespecctl import` in one call: probe the kernels, build the bundle, prepack its weights.

Here because the first and the last need onnxruntime, which only this room imports.
"""

from __future__ import annotations

from pathlib import Path

from homespecd.bundle.families import dimensions_of, family_of
from homespecd.bundle.gguf_file import GgufFile, is_gguf
from homespecd.bundle.importer import Progress, write_bundle
from homespecd.bundle.manifest import PACKED_FOLDER, Manifest
from homespecd.bundle.precision import PRECISIONS, Precision
from homespecd.bundle.staging import staged_folder
from homespecd.errors import BundleError
from homespecd.runtime.kernels import probe_kernels
from homespecd.runtime.prepack import pack_bundle


def import_model(
    source: Path,
    *,
    name: str,
    into: Path,
    precision: str,
    progress: Progress | None = None,
    force: bool = False,
) -> Manifest:
    """Import whatever `source` is, by its content. See `import_gguf`.

    Raises:
        BundleError: also when it is something that cannot be imported.
    """
    if source.is_dir():
        raise BundleError(
            f"{_kind_of(source)} cannot be imported",
            where=str(source),
            hint="import a GGUF file; an ONNX folder can be served as it is (path = …)",
        )
    return import_gguf(
        source, name=name, into=into, precision=precision, progress=progress, force=force
    )


def import_gguf(
    source: Path,
    *,
    name: str,
    into: Path,
    precision: str,
    progress: Progress | None = None,
    force: bool = False,
) -> Manifest:
    """Make the bundle `into/name` from a GGUF file, whole or not at all.

    Args:
        precision: "int4", "int8" or "fp32".
        progress: called with (bytes done, bytes in all, what).
        force: replace a bundle of that name.

    Raises:
        BundleError: the file is missing, cut short or of an unknown kind, the name is taken, the
            disk is full: one sentence, with a hint. Nothing half-written stays.
    """
    wanted = _precision(precision)
    report = progress or _silent
    if not name or Path(name).name != name or name == "..":
        raise BundleError(f"{name!r} is not a name for a bundle", hint="use letters and dashes")
    with staged_folder(into / name, force=force) as folder:
        file = GgufFile(source)
        family_of(file)
        total = sum(tensor.nbytes for tensor in file.tensors.values())
        report(0, total, "kernels")
        kernels = probe_kernels(dimensions_of(file).head_dim)
        manifest = write_bundle(
            file, folder, name=name, precision=wanted, kernels=kernels, progress=report
        )
        report(total, total, PACKED_FOLDER)
        pack_bundle(folder, manifest)
    return manifest


def _precision(wanted: str) -> Precision:
    for precision in PRECISIONS:
        if precision == wanted:
            return precision
    raise BundleError(
        f"the precision {wanted!r} cannot be imported to", hint=f"use {', '.join(PRECISIONS)}"
    )


def _kind_of(folder: Path) -> str:
    if (folder / "config.json").is_file() and any(folder.glob("*.safetensors")):
        return "a Hugging Face checkpoint"
    if any(folder.rglob("*.onnx")):
        return "an ONNX folder"
    if any(is_gguf(path) for path in folder.iterdir() if path.is_file()):
        return "a folder with GGUF files"
    return "a folder without a model"


def _silent(_done_bytes: int, _total_bytes: int, _what: str) -> None:
    return
