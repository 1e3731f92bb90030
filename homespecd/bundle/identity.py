"""Who a model on disk is: a digest that costs ssector prove it, and how precise it is.

A bundle states both in its manifest. For a foreign export they are derived from its files: the
digest from names, sizes and the first megabyte of each (reading gigabytes at every load would
cost more than the question is worth), the precision from nothing at all: it says "as exported".
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from pathlib import Path

from homespecd.bundle.manifest import is_bundle, read_manifest

_HEAD_BYTES = 1 << 20
_GRAPH_SUFFIXES = (".onnx", ".data", ".onnx_data")


@dataclass(frozen=True)
class Identity:
    """digest: "sha256:…". precision: what the weights are, in a word or two."""

    digest: str
    precision: str


def identify(folder: Path, *, variant: str = "") -> Identity:
    """The identity of the model in `folder`.

    Raises:
        BundleError: the manifest is there but cannot be read.
    """
    if is_bundle(folder):
        manifest = read_manifest(folder)
        return Identity(digest=manifest.digest, precision=manifest.precision)
    sha = hashlib.sha256(variant.encode())
    for path in sorted(folder.rglob("*")):
        if path.is_file() and path.name.endswith(_GRAPH_SUFFIXES):
            sha.update(f"{path.relative_to(folder)}\0{path.stat().st_size}\0".encode())
            with path.open("rb") as file:
                sha.update(file.read(_HEAD_BYTES))
    return Identity(digest=f"sha256:{sha.hexdigest()}", precision=variant or "as exported")
