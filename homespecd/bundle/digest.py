"""SHA-256 digests of files, and one for a model made of several."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from pathlib import Path


def file_digest(path: Path) -> str:
    """Hex SHA-256 of a file's bytes. Raises OSError."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def model_digest(files: Mapping[str, str]) -> str:
    """One digest for a model from its files' names and digests, whatever their order."""
    lines = "".join(f"{name} {digest}\n" for name, digest in sorted(files.items()))
    return hashlib.sha256(lines.encode()).hexdigest()
