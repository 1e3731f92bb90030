"""A configuration file to a `Config`, or every problem in it at once."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from pathlib import Path

from homespecd.config import accounts, checks
from homespecd.config.lines import KeyPath
from homespecd.config.schema import ClientConfig, Config
from homespecd.config.sections import Checked, Sections, validate
from homespecd.config.source import Document, read
from homespecd.errors import ConfigError, Problem


def load(
    path: Path,
    *,
    check_paths: bool = False,
    look: Callable[[Config], Iterable[checks.Fault]] | None = None,
    warn: Callable[[Problem], None] | None = None,
    check: Callable[[Config], Iterable[checks.Fault]] | None = None,
    doubt: Callable[[Config], Iterable[checks.Fault]] | None = None,
) -> Config:
    """Read `path` and `conf.d/*.toml` beside it.

    Relative model paths start at `paths.models`, all others at the folder of `path`. The clients
    always have a "default".

    Args:
        check_paths: also look whether the folders and files named are there. A running service
            does not ask: a model that is missing is that model's failure, not the service's.
        look: what else the disk says against it, asked whatever else is wrong.
        warn: told what is no error and may not be meant.
        check: what else is wrong, asked once everything before is right.
        doubt: what else to warn of, asked when nothing is wrong.

    Raises:
        ConfigError: with every problem, in the order of files and lines.
    """
    document = read(path)
    sections = validate(document)
    if document.complete:
        # A name that is missing may stand in the file that could not be read.
        for fault in checks.between_sections(sections):
            document.problem(fault.key, fault.message, fault.hint)
    config = _resolve(sections, path.absolute().parent)
    faults = [*checks.of_paths(config), *(checks.on_disk(config) if check_paths else ())]
    if look is not None:
        faults += look(config)
    for fault in faults:
        if fault.key[-1] not in _faulty(sections, fault.key):
            document.problem(fault.key, fault.message, fault.hint)
    if check is not None and not document.problems:
        for fault in check(config):
            document.problem(fault.key, fault.message, fault.hint)
    if warn is not None:
        known = {"is_user": accounts.is_user, "is_group": accounts.is_group}
        doubts = [*accounts.unknown_accounts(sections.clients, **known)]
        if doubt is not None and not document.problems:
            doubts += doubt(config)
        for fault in doubts:
            warn(document.described(fault.key, fault.message, fault.hint))
    if document.problems:
        raise ConfigError(_ordered(document))
    return config


def _faulty(sections: Sections, key: KeyPath) -> frozenset[str]:
    """Keys of the section that `key` is in which stand at a placeholder."""
    section = getattr(sections, str(key[0]))
    checked = section if isinstance(section, Checked) else section[key[1]]
    return frozenset(checked.faulty)


def _resolve(sections: Sections, folder: Path) -> Config:
    """All sections together, with absolute paths."""
    server = sections.server.value
    keys = server.api_keys_file
    paths = sections.paths.value.model_copy(
        update={
            "models": folder / sections.paths.value.models,
            "state": folder / sections.paths.value.state,
        }
    )

    def under_models(path: Path | None) -> dict[str, Path | None]:
        return {"path": None if path is None else paths.models / path}

    return Config(
        server=server.model_copy(
            update={
                "socket": folder / server.socket,
                "api_keys_file": None if keys is None else folder / keys,
            }
        ),
        paths=paths,
        memory=sections.memory.value,
        speculation=sections.speculation.value,
        models={
            name: model.value.model_copy(update=under_models(model.value.path))
            for name, model in sections.models.items()
        },
        drafters={
            name: drafter.value.model_copy(update=under_models(drafter.value.path))
            for name, drafter in sections.drafters.items()
        },
        clients={
            "default": ClientConfig(),
            **{name: client.value for name, client in sections.clients.items()},
        },
    )


def _ordered(document: Document) -> list[Problem]:
    """Problems by file, the main one first, and by line."""
    main = str(document.main)
    return sorted(document.problems, key=lambda one: (one.file != main, one.file, one.line))
