"""How much memory models hold, and how much one will need before it is loaded."""

from __future__ import annotations

import os
from pathlib import Path

import psutil  # type: ignore[import-untyped]

from homespecd.worker.messages import WorkerSettings

# What a worker holds besides weights: interpreter, libraries, tokenizer, first cache and scratch.
# Only for the first load of a model; afterwards what was measured counts.
_OVERHEAD_BYTES = 160 * 2**20


def worker_bytes(pid: int) -> int | None:
    """Memory of a process, shared pages counted in parts (PSS); None when it is gone.

    The weights of a model are mapped from a file: two processes that map the same file share them.
    """
    try:
        process = psutil.Process(pid)
        try:
            return int(process.memory_full_info().pss)
        except psutil.AccessDenied:
            return int(process.memory_info().rss)
    except psutil.NoSuchProcess:
        return None


def available_bytes() -> int:
    """What the machine could give to a process now without swapping."""
    return int(psutil.virtual_memory().available)


def estimate_bytes(settings: WorkerSettings) -> int:
    """What a model and its drafts will hold, from the sizes of their files. Looks at the disk."""
    drafts = sum(_weights_bytes(Path(d.path), d.variant) for d in settings.drafters if d.path)
    return _weights_bytes(Path(settings.path), settings.variant) + drafts + _OVERHEAD_BYTES


def _weights_bytes(path: Path, variant: str) -> int:
    """Bytes of the one graph that would be loaded, its external data included.

    A bundle has one `weights.bin`; of several exports in a folder the variant's counts, else the
    largest. 0 when there is nothing to load, which the load itself reports better.
    """
    bundle = path / "weights.bin"
    try:
        if bundle.is_file():
            return bundle.stat().st_size
        files = {
            Path(folder, name): Path(folder, name).stat().st_size
            for folder, _, names in os.walk(path)
            for name in names
        }
    except OSError:
        return 0
    graphs = [file for file in files if file.suffix == ".onnx"]
    chosen = [graph for graph in graphs if variant and graph.stem.endswith(variant)] or graphs
    return max((_with_data(graph, files) for graph in chosen), default=0)


def _with_data(graph: Path, files: dict[Path, int]) -> int:
    return sum(
        size
        for file, size in files.items()
        if file.parent == graph.parent and file.name.startswith(graph.name)
    )
