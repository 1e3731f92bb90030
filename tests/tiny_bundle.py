"""A bundle of the random two-layer Llama, imported without probing and prepacking."""

from __future__ import annotations

from pathlib import Path

from homespecd.bundle.gguf_file import GgufFile
from homespecd.bundle.importer import write_bundle
from homespecd.bundle.manifest import KernelReport
from homespecd.bundle.precision import Precision
from tests.tiny_gguf import TinyLlama


def bundle(
    folder: Path, model: TinyLlama, precision: Precision, *, block: int = 32, four_bits: int = 0
) -> Path:
    """Import without prepacking. The kernels' report is made up: only its block sizes matter."""
    file = GgufFile(model.write(folder / "tiny.gguf"))
    target = folder / precision
    target.mkdir()
    names = [f"int{bits}/{size}" for bits in (4, 8) for size in (16, 32)]
    invariant = dict.fromkeys([*names, "fp32", f"attention/{model.head_dim}"], True)
    kernels = KernelReport("test", {"4": four_bits or block, "8": block}, invariant)
    write_bundle(
        file,
        target,
        name="tiny",
        precision=precision,
        kernels=kernels,
        progress=lambda _done, _total, _what: None,
    )
    return target
