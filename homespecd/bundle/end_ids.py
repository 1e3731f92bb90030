"""Which token ids end an answer.

Model folders declare end ids in several files that often disagree (a base model's `config.json`
beside a chat model's `generation_config.json`), and honouring one of them gives chats that never
end. So all that is declared anywhere counts.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from homespecd.errors import BundleError

_CHAT_ENDERS = (
    "<|endoftext|>",
    "<|end_of_text|>",
    "<|im_end|>",
    "<|eot_id|>",
    "<|eom_id|>",
    "<|end|>",
    "<|return|>",
    "<|call|>",
    "<end_of_turn>",
    "<end_of_utterance>",
    "<｜end▁of▁sentence｜>",
    "<EOT>",
    "</s>",
)


def known_enders(control_tokens: Mapping[str, int]) -> set[int]:
    """Ids of the control tokens (text → id) that end a turn or a text by their well-known names.

    Where `<|return|>` and `<|call|>` exist, `<|end|>` only ends one of an answer's channels.
    """
    found = {name: control_tokens[name] for name in _CHAT_ENDERS if name in control_tokens}
    if {"<|return|>", "<|call|>"} <= found.keys():
        found.pop("<|end|>", None)
    return set(found.values())


def read_json(path: Path) -> dict[str, Any]:
    """A JSON object from a file; {} when there is no such file.

    Raises:
        BundleError: the file is there and cannot be read as a JSON object.
    """
    try:
        value = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return {}
    except (OSError, ValueError, RecursionError) as error:
        raise BundleError(f"cannot be read as JSON: {error}", where=str(path)) from error
    if not isinstance(value, dict):
        raise BundleError("is not a JSON object", where=str(path))
    return value


def token_name(value: object) -> str | None:
    """A token's text where a configuration names it plainly or as an object with `content`."""
    if isinstance(value, Mapping):
        value = value.get("content")
    return value if isinstance(value, str) and value else None


def declared_end_ids(folder: Path, id_of: Callable[[str], int | None]) -> frozenset[int]:
    """The union of the end ids that a model folder declares.

    Read are `eos_token_id` (scalar or list) of config.json, its text part, generation_config.json
    and genai_config.json, `eos_token` of tokenizer_config.json and special_tokens_map.json, and
    `eos_ids` of homespec.json.

    Raises:
        BundleError: one of these files is not valid JSON, or declares something else than ids.
    """
    ends: set[int] = set()
    config = read_json(folder / "config.json")
    for source, part in (
        ("config.json", config),
        ("config.json", config.get("text_config")),
        ("generation_config.json", read_json(folder / "generation_config.json")),
        ("genai_config.json", read_json(folder / "genai_config.json").get("model")),
    ):
        if isinstance(part, Mapping):
            ends |= _ids(part.get("eos_token_id"), folder / source)
    for source in ("tokenizer_config.json", "special_tokens_map.json"):
        name = token_name(read_json(folder / source).get("eos_token"))
        token_id = None if name is None else id_of(name)
        if token_id is not None:
            ends.add(token_id)
    ends |= _ids(read_json(folder / "homespec.json").get("eos_ids"), folder / "homespec.json")
    return frozenset(ends)


def _ids(value: object, path: Path) -> set[int]:
    ids: set[int] = set()
    for one in value if isinstance(value, list) else [value]:
        if isinstance(one, int) and not isinstance(one, bool):
            ids.add(one)
        elif one is not None:
            raise BundleError(f"end-of-text ids are not numbers: {value!r}", where=str(path))
    return {one for one in ids if one >= 0}  # -1 is how some exports say "none"
