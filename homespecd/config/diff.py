"""What differs between two configurations, section by section."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from homespecd.config.schema import SECTIONS, TABLES_OF_SECTIONS, Config, Section


@dataclass(frozen=True)
class Change:
    """One section that came, went or changed.

    what: "server", "models.smollm2". keys: the keys that differ, as the file writes them; () when
    the whole section was added or removed.
    """

    kind: Literal["added", "removed", "changed"]
    what: str
    keys: tuple[str, ...] = ()

    def __str__(self) -> str:
        return f"{self.what} {self.kind}" + (f" ({', '.join(self.keys)})" if self.keys else "")


def diff(old: Config, new: Config) -> tuple[Change, ...]:
    """Every change from `old` to `new`, in a fixed order; () when nothing differs."""
    changes: list[Change] = []
    for name in SECTIONS:
        changes += _changed(name, getattr(old, name), getattr(new, name))
    for group in TABLES_OF_SECTIONS:
        before: Mapping[str, Section] = getattr(old, group)
        after: Mapping[str, Section] = getattr(new, group)
        for name in sorted({*before, *after}):
            what = f"{group}.{name}"
            if name not in after:
                changes.append(Change("removed", what))
            elif name not in before:
                changes.append(Change("added", what))
            else:
                changes += _changed(what, before[name], after[name])
    return tuple(changes)


def _changed(what: str, old: Section, new: Section) -> list[Change]:
    keys = tuple(
        field.alias or name
        for name, field in type(old).model_fields.items()
        if getattr(old, name) != getattr(new, name)
    )
    return [Change("changed", what, keys)] if keys else []
