"""Raw tables to typed sections, with every fault in this program's own words.

A section with faults is validated again without the faulty keys, so that the rules which look at
several sections can still speak about the rest of it.
"""

from __future__ import annotations

import difflib
import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

from pydantic import ValidationError
from pydantic_core import ErrorDetails

from homespecd.config.lines import KeyPath
from homespecd.config.schema import (
    SECTIONS,
    TABLES_OF_SECTIONS,
    ClientConfig,
    DrafterConfig,
    MemoryConfig,
    ModelConfig,
    PathsConfig,
    Section,
    ServerConfig,
    SpeculationConfig,
    check_name,
)
from homespecd.config.source import Document

S = TypeVar("S", bound=Section)

# Stand-ins for required keys that are missing or faulty; never seen outside a failed load.
_PLACEHOLDERS = {"path": "/", "kind": "ngram"}
_ITEM_PLACEHOLDERS = {"listen": "localhost:1"}


@dataclass(frozen=True)
class Checked(Generic[S]):
    """A section, and the keys in it that were faulty and stand at their defaults."""

    value: S
    faulty: frozenset[str]

    def sound(self, *keys: str) -> bool:
        return not self.faulty.intersection(keys)


@dataclass(frozen=True)
class Sections:
    """Every section of a document, as far as it could be understood."""

    server: Checked[ServerConfig]
    paths: Checked[PathsConfig]
    memory: Checked[MemoryConfig]
    speculation: Checked[SpeculationConfig]
    models: Mapping[str, Checked[ModelConfig]]
    drafters: Mapping[str, Checked[DrafterConfig]]
    clients: Mapping[str, Checked[ClientConfig]]


def nearest(word: str, known: Iterable[str]) -> str:
    """The known word that was probably meant, or ""."""
    by_lower = {one.lower(): one for one in known}
    close = difflib.get_close_matches(word.lower(), by_lower, n=1, cutoff=0.6)
    return by_lower[close[0]] if close else ""


def validate(document: Document) -> Sections:
    """Validate every section; faults are added to the document's problems."""
    _unknown_sections(document)
    return Sections(
        server=_table(document, "server", ServerConfig),
        paths=_table(document, "paths", PathsConfig),
        memory=_table(document, "memory", MemoryConfig),
        speculation=_table(document, "speculation", SpeculationConfig),
        models=_named_tables(document, "models", ModelConfig),
        drafters=_named_tables(document, "drafters", DrafterConfig),
        clients=_named_tables(document, "clients", ClientConfig),
    )


def keys_of(kind: type[Section]) -> list[str]:
    """The keys of a section as the file writes them."""
    return [field.alias or name for name, field in kind.model_fields.items()]


def _unknown_sections(document: Document) -> None:
    known = (*SECTIONS, *TABLES_OF_SECTIONS)
    for name in document.data:
        if name not in known:
            guess = nearest(name, known)
            hint = f"did you mean [{guess}]?" if guess else _home_of(name)
            hint = hint or f"known sections are {', '.join(known)}"
            document.problem((name,), "unknown section", hint)


def _table(document: Document, name: str, kind: type[S]) -> Checked[S]:
    raw = document.data.get(name, {})
    if not isinstance(raw, dict):
        document.problem((name,), f"must be a table: [{name}]")
        raw = {}
    return _validate(document, (name,), kind, raw)


def _named_tables(document: Document, group: str, kind: type[S]) -> dict[str, Checked[S]]:
    entries = document.data.get(group, {})
    if not isinstance(entries, dict):
        document.problem((group,), f"must be tables: [{group}.NAME]")
        return {}
    checked = {}
    for name, raw in entries.items():
        if not isinstance(raw, dict):
            document.problem((group, name), f"must be a table: [{group}.NAME]")
            continue
        if group != "clients" and (fault := check_name(name)):
            document.problem((group, name), fault)
        checked[name] = _validate(document, (group, name), kind, raw)
    return checked


def _validate(document: Document, place: KeyPath, kind: type[S], raw: dict[str, Any]) -> Checked[S]:
    try:
        return Checked(kind.model_validate(raw), frozenset())
    except ValidationError as error:
        faults = error.errors(include_url=False)
    for fault in faults:
        message, hint = _words(fault, kind)
        document.problem((*place, *fault["loc"]), message, hint)
    faulty = frozenset(str(fault["loc"][0]) for fault in faults)
    return Checked(kind.model_validate(_salvage(raw, faults, kind)), faulty)


def _salvage(
    raw: dict[str, Any], faults: list[ErrorDetails], kind: type[Section]
) -> dict[str, Any]:
    """`raw` without what is faulty, with stand-ins where nothing would not do."""
    rest = dict(raw)
    for fault in faults:
        key = str(fault["loc"][0])
        if key in _ITEM_PLACEHOLDERS and len(fault["loc"]) > 1:
            index = fault["loc"][1]
            rest[key] = [
                _ITEM_PLACEHOLDERS[key] if at == index else item
                for at, item in enumerate(rest[key])
            ]
        elif key in _PLACEHOLDERS and key in kind.model_fields:
            rest[key] = _PLACEHOLDERS[key]
        else:
            rest.pop(key, None)
    return rest


def _words(fault: ErrorDetails, kind: type[Section]) -> tuple[str, str]:
    """Message and hint for one of pydantic's faults."""
    context = fault.get("ctx", {})
    value = fault["input"]
    if isinstance(value, float) and not math.isfinite(value):
        return f"{_show(value)} is not a number to work with", ""
    match fault["type"]:
        case "homespec":
            return context["message"], context["hint"]
        case "extra_forbidden":
            return "unknown key", _hint_for(str(fault["loc"][-1]), kind)
        case "missing":
            return "is missing", "it has no default"
        case "literal_error":
            allowed = kind.model_fields[str(fault["loc"][0])].annotation
            words = [str(one) for one in getattr(allowed, "__args__", ())]
            guess = nearest(str(value), words) if isinstance(value, str) else ""
            hint = f'did you mean "{guess}"?' if guess else ""
            return f"{_show(value)} is not one of {', '.join(words)}", hint
        case "greater_than_equal":
            return f"{_show(value)} is too small: at least {context['ge']}", ""
        case "greater_than":
            return f"{_show(value)} is too small: more than {context['gt']}", ""
        case "less_than_equal":
            return f"{_show(value)} is too large: at most {context['le']}", ""
        case other:
            wanted = {
                "string_type": "text in quotes",
                "int_type": "a whole number",
                "float_type": "a number",
                "bool_type": "true or false",
                "tuple_type": 'a list, like ["a", "b"]',
            }.get(other)
            if wanted is None:
                return fault["msg"], ""
            return f"must be {wanted}, not {_show(value)}", ""


def _hint_for(key: str, kind: type[Section]) -> str:
    known = keys_of(kind)
    guess = nearest(key, known)
    if guess:
        return f'did you mean "{guess}"?'
    return _home_of(key) or f"known keys are {', '.join(known)}"


def _home_of(key: str) -> str:
    """Where a key belongs that stands in the wrong section."""
    for name, kind in SECTIONS.items():
        if key in keys_of(kind):
            return f"it belongs in [{name}]"
    for name, kind in TABLES_OF_SECTIONS.items():
        if key in keys_of(kind):
            return f"it belongs in [{name}.NAME]"
    return ""


def _show(value: object) -> str:
    """A value as TOML writes it, cut to a readable length."""
    if isinstance(value, bool):
        text = str(value).lower()
    elif isinstance(value, str):
        text = f'"{value}"'
    elif isinstance(value, dict):
        return "a table"
    elif isinstance(value, list | tuple):
        return "a list"
    else:
        text = str(value)
    return text if len(text) <= 60 else text[:57] + "..."
