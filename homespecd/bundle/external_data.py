"""Which files beside a graph hold its weights, without parsing the graph.

An ONNX file names its external data in key-value entries of its tensors. Finding these is a search
for a fixed byte pattern, so the service needs no protobuf for it.
"""

from __future__ import annotations

import mmap
import re
from pathlib import Path

# Protobuf: field 1 (key) of 8 bytes, "location", then field 2 (value) and its length below 128.
_LOCATION = re.compile(rb"\x0a\x08location\x12([\x01-\x7f])")
# Graphs that refer to external data are small; a larger one has its weights inside.
_LARGEST_GRAPH_BYTES = 256 * 1024 * 1024


def external_files(graph: Path) -> tuple[Path, ...]:
    """The data files that a graph names, beside the graph, whether they exist or not."""
    size = graph.stat().st_size
    if not 0 < size <= _LARGEST_GRAPH_BYTES:
        return ()
    names: set[str] = set()
    with (
        graph.open("rb") as file,
        mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as content,
    ):
        for match in _LOCATION.finditer(content):
            name = content[match.end() : match.end() + match[1][0]]
            names.add(name.decode(errors="replace"))
    return tuple(graph.parent / name for name in sorted(names))


def stored_bytes(*graphs: Path) -> int:
    """Size of graphs and their data files, those that exist; hard links to one file count once."""
    sizes: dict[tuple[int, int], int] = {}
    for graph in graphs:
        for file in (graph, *external_files(graph)):
            if file.is_file():
                stat = file.stat()
                sizes[stat.st_dev, stat.st_ino] = stat.st_size
    return sum(sizes.values())
