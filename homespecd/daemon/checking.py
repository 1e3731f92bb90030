"""A configuration and the model folders it names: `homespecctl check`, and what a reload asks.

A start asks less: a model that cannot be loaded is that model's failure, and the others are served.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache, partial
from pathlib import Path

from homespecd.bundle.external_data import external_files
from homespecd.bundle.layout import LanesFiles, declared_context, find_graphs
from homespecd.bundle.manifest import is_bundle, read_manifest
from homespecd.config import folders
from homespecd.config.folders import FolderFacts
from homespecd.config.load import load
from homespecd.config.schema import Config
from homespecd.daemon.fitting import doubts, pinned_faults
from homespecd.errors import BundleError, ConfigError, Problem


@dataclass(frozen=True)
class Checked:
    """config: None when there are problems. warnings: what works, and may not be meant."""

    config: Config | None
    problems: tuple[Problem, ...]
    warnings: tuple[Problem, ...]


def check(path: Path, *, file_only: bool = False) -> Checked:
    """Everything that is wrong with the configuration in `path`. Reads tokenizers, no weights.

    Args:
        file_only: what would keep the service from starting, and nothing of models and other paths.
    """
    look = cache(partial(folder_facts, vocabulary=_vocabulary))
    warnings: list[Problem] = []
    try:
        config = load(
            path,
            check_paths=not file_only,
            look=None if file_only else lambda config: folders.faults(config, look),
            warn=warnings.append,
            check=None if file_only else pinned_faults,
            doubt=None if file_only else doubts,
        )
    except ConfigError as error:
        return Checked(None, error.problems, tuple(warnings))
    return Checked(config, (), tuple(warnings))


def folder_facts(
    path: Path, variant: str, *, vocabulary: Callable[[Path], str] = lambda _path: ""
) -> FolderFacts:
    """What the folder of a model holds. One that cannot be reached has no facts.

    Args:
        vocabulary: a digest of the vocabulary of a folder; it may raise BundleError.
    """
    try:
        found = path.is_dir()
    except OSError:  # below one that may not be entered: `config.checks` says so
        found = False
    if not found:
        return FolderFacts()
    broken: list[tuple[str, str]] = []
    no_variant: list[tuple[str, str]] = []
    context, digest = None, ""
    try:
        graphs = find_graphs(path, variant)
        files = (
            [*graphs.graphs.values()]
            if isinstance(graphs, LanesFiles)
            else [graphs.graph, *([graphs.first] if graphs.first else [])]
        )
        broken += [(fault, "import or export the model again") for fault in _missing(files)]
        if is_bundle(path):
            stated = read_manifest(path).files
            lost = [name for name in stated if not (path / name).is_file()]
            missing = {one.partition(" ")[0] for one, _ in broken}
            broken += [
                (f"{name} is missing", "import the model again")
                for name in lost
                if name not in missing
            ]
        context = declared_context(path)
        digest = vocabulary(path)
    except BundleError as error:
        where = "" if error.where in ("", str(path)) else f"{Path(error.where).name}: "
        (no_variant if variant and "variant" in error.message else broken).append(
            (f"{where}{error.message}", error.hint)
        )
    except OSError as error:
        broken.append((f"cannot be read: {error.strerror}", "see who may enter it"))
    return FolderFacts(tuple(broken), tuple(no_variant), context, digest)


def _missing(graphs: list[Path]) -> list[str]:
    """Graphs without anything in them, and data files that are not there."""
    found = [f"{graph.name} is empty" for graph in graphs if graph.stat().st_size == 0]
    data = dict.fromkeys(file for graph in graphs for file in external_files(graph))
    return found + [f"{file.name} is missing" for file in data if not file.is_file()]


def _vocabulary(path: Path) -> str:
    # Here alone: the service has no need of the tokenizers' library in memory.
    from homespecd.bundle.tokenizer import Tokenizer

    return Tokenizer.load(path).vocab_digest
