"""Drafts that must not be used: a bad one that looks tempting, and what they are made from."""

from __future__ import annotations

import shutil
from pathlib import Path

import numpy as np
from gguf import GGUFReader

from homespecd.runtime.importing import import_model

# Rows of these are put in another order: every weight keeps its block, so the numbers look as they
# should, and what the layers write is noise.
_SHUFFLED = ("attn_output.weight", "ffn_down.weight")


def imported(source: Path, folder: Path, *, name: str, precision: str) -> Path:
    """`source` as a bundle in `folder`, made if it is not there yet."""
    bundle = folder / f"{name}-{precision}"
    if not bundle.is_dir():
        folder.mkdir(parents=True, exist_ok=True)
        import_model(source, name=bundle.name, into=folder, precision=precision)
    return bundle


def bad_draft(source: Path, folder: Path, *, layers: int = 4) -> Path:
    """A bundle with the vocabulary of `source`, a few of its layers, and their rows shuffled.

    Cheap to run and never right: the draft whose low price tempts.
    """
    bundle = folder / "bad-int4"
    if bundle.is_dir():
        return bundle
    folder.mkdir(parents=True, exist_ok=True)
    copy = folder / "bad.gguf"
    shutil.copyfile(source, copy)
    try:
        _spoil(copy, layers)
        import_model(copy, name=bundle.name, into=folder, precision="int4")
    finally:
        copy.unlink()
    return bundle


def _spoil(path: Path, layers: int) -> None:
    reader = GGUFReader(path, "r+")
    architecture = str(reader.fields["general.architecture"].contents())
    blocks = reader.fields[f"{architecture}.block_count"]
    blocks.parts[blocks.data[0]][0] = layers
    shuffle = np.random.default_rng(1)
    for tensor in reader.tensors:
        if tensor.name.endswith(_SHUFFLED):
            tensor.data[:] = tensor.data[shuffle.permutation(len(tensor.data))]
    reader.data.flush()
