"""Reading the configuration again while the service runs: what is asked beyond what a start asks.

A start serves what it can; a reload that would break what works is refused as a whole. So whatever
is new or changed must be there on the disk, and what is pinned must fit into the caps. What did not
change is not asked about: a disk that is away for a moment is no fault of the edit.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

from homespecd.config import checks, folders
from homespecd.config.checks import Fault
from homespecd.config.load import load
from homespecd.config.schema import Config, Section
from homespecd.config.source import read
from homespecd.daemon.checking import folder_facts
from homespecd.daemon.fitting import doubts, pinned_faults
from homespecd.daemon.keys import read_keys
from homespecd.daemon.state_folder import state_faults
from homespecd.errors import ConfigError, Problem


def read_again(
    path: Path, *, running: Config, warn: Callable[[Problem], None]
) -> tuple[Config, tuple[str, ...]]:
    """The configuration of `path` and the API keys it names. Looks at the disk.

    Args:
        warn: told what is no error and may not be meant.

    Raises:
        ConfigError: every problem; nothing of it may be applied.
    """
    new = load(path, warn=warn, check=lambda config: _faults(config, running), doubt=own_doubts)
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


def own_doubts(config: Config) -> Iterator[Fault]:
    """What the service warns of when it starts and reloads; some of it only its user can see."""
    yield from doubts(config)
    yield from state_faults(config)


def looks_unfinished(path: Path, *, running: Config) -> bool:
    """Whether the files may be half of what somebody is writing: broken, or models are gone."""
    try:
        new = load(path)
    except ConfigError:
        return True
    return not running.models.keys() <= new.models.keys()


def _faults(new: Config, running: Config) -> Iterator[Fault]:
    changed = new.model_copy(
        update={
            "models": {
                name: one
                for name, one in new.models.items()
                if _differs(running.models.get(name), one, "path", "variant", "context")
            },
            "drafters": {
                name: one
                for name, one in new.drafters.items()
                if _differs(running.drafters.get(name), one, "path", "variant")
            },
        }
    )
    yield from checks.folders(changed)
    yield from folders.faults(changed, folder_facts)
    yield from pinned_faults(new)


def _differs(old: Section | None, new: Section, *keys: str) -> bool:
    return old is None or any(getattr(old, key) != getattr(new, key) for key in keys)
