"""Reading the configuration again while the service runs: what is asked beyond what a start asks.

A start serves what it can; a reload that would break what works is refused as a whole. So whatever
is new or changed must be there on the disk, and what is pinned must fit into the caps. What did not
change is not asked about: a disk that is away for a moment is no fault of the edit.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from homespecd.bundle.layout import find_graphs
from homespecd.config.checks import Fault
from homespecd.config.load import load
from homespecd.config.schema import Config
from homespecd.config.source import read
from homespecd.config.units import format_size
from homespecd.daemon.estimate import estimate
from homespecd.daemon.keys import read_keys
from homespecd.daemon.settings import worker_settings
from homespecd.errors import BundleError, ConfigError, Problem


def read_again(path: Path, *, running: Config) -> tuple[Config, tuple[str, ...]]:
    """The configuration of `path` and the API keys it names. Looks at the disk.

    Raises:
        ConfigError: every problem; nothing of it may be applied.
    """
    new = load(path, check=lambda config: _faults(config, running))
    if running.models and not new.models and not read(path).data:
        raise ConfigError(
            [
                Problem(
                    file=str(path),
                    line=0,
                    key="",
                    message="is empty, which would take every model away",
                    hint="to serve nothing, stop the service",
                )
            ]
        )
    return new, read_keys(new.server)


def looks_unfinished(path: Path, *, running: Config) -> bool:
    """Whether the files may be half of what somebody is writing: broken, or models are gone."""
    try:
        new = load(path)
    except ConfigError:
        return True
    return not running.models.keys() <= new.models.keys()


def _faults(new: Config, running: Config) -> Iterator[Fault]:
    for name, model in new.models.items():
        old = running.models.get(name)
        if old is None or (old.path, old.variant) != (model.path, model.variant):
            yield from _graphs(("models", name, "path"), model.path, model.variant)
    for name, drafter in new.drafters.items():
        before = running.drafters.get(name)
        changed = before is None or (before.path, before.variant) != (drafter.path, drafter.variant)
        if drafter.path is not None and changed:
            yield from _graphs(("drafters", name, "path"), drafter.path, drafter.variant)
    yield from _pinned(new)


def _graphs(key: tuple[str, ...], path: Path, variant: str) -> Iterator[Fault]:
    try:
        find_graphs(path, variant)
    except BundleError as error:
        yield Fault(key, f"{path}: {error.message}", error.hint)
    except OSError as error:
        yield Fault(key, f"{path} cannot be read: {error.strerror}")


def _pinned(new: Config) -> Iterator[Fault]:
    """Pinned models stay for ever, so together they must fit. Their drafts need not."""
    total = 0
    for name, model in new.models.items():
        if model.residency != "pinned":
            continue
        total += estimate(worker_settings(new, name)).floor_bytes
        if total > new.memory.cap_bytes:
            yield Fault(
                ("models", name, "residency"),
                f"the pinned models up to this one need at least {format_size(total)}, "
                f"and memory.cap is {format_size(new.memory.cap_bytes)}",
                'make one of them residency = "on-demand", or raise memory.cap',
            )
            return
