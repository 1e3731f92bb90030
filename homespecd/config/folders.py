"""What a configuration says of models, against what their folders hold.

Pure: whoever looks at the disk states what is there as `FolderFacts`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from homespecd.config.checks import Fault
from homespecd.config.lines import KeyPath
from homespecd.config.schema import Config


@dataclass(frozen=True)
class FolderFacts:
    """What was found in one model's folder.

    broken: why no model can be loaded from it, as (what is wrong, hint); () when one can, as far as
    files tell. variant: that it has no such variant, likewise.
    context: positions the model has, None when its files do not say.
    vocabulary: a digest of the whole id → token map, "" when it cannot be read.
    """

    broken: tuple[tuple[str, str], ...] = ()
    variant: tuple[tuple[str, str], ...] = ()
    context: int | None = None
    vocabulary: str = ""


# The facts of a folder, for the variant that is asked for.
Look = Callable[[Path, str], FolderFacts]


def faults(config: Config, look: Look) -> Iterator[Fault]:
    """Everything in which `config` and the folders do not agree, model by model."""
    for name, drafter in config.drafters.items():
        if drafter.path is not None:
            yield from _unusable(("drafters", name), look(drafter.path, drafter.variant))
    for name, model in config.models.items():
        facts = look(model.path, model.variant)
        yield from _unusable(("models", name), facts)
        if facts.context is not None and model.context > facts.context:
            yield Fault(
                ("models", name, "context"),
                f"{model.context} is more than the {facts.context} positions that the model has",
                f"set it to {facts.context} or less",
            )
        for index, drafter_name in enumerate(model.drafters):
            used = config.drafters.get(drafter_name)
            if used is None or used.path is None or not facts.vocabulary:
                continue
            theirs = look(used.path, used.variant).vocabulary
            if theirs and theirs != facts.vocabulary:
                yield Fault(
                    ("models", name, "drafters", index),
                    f'the vocabulary of "{drafter_name}" is not that of the model, so its tokens '
                    "mean something else",
                    "pair models that share a tokenizer",
                )


def _unusable(section: KeyPath, facts: FolderFacts) -> Iterator[Fault]:
    for message, hint in facts.variant:
        yield Fault((*section, "variant"), message, hint)
    for message, hint in facts.broken:
        yield Fault((*section, "path"), message, hint)
