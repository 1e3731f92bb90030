"""Log-probabilities as OpenAI's two APIs write them down."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

Entries = Sequence[Mapping[str, Any]]


def of_chat(entries: Entries) -> dict[str, Any]:
    """`choices[].logprobs` of a chat: the entries are in its form already."""
    return {"content": list(entries), "refusal": None}


def of_completion(entries: Entries, *, offset: int) -> dict[str, Any]:
    """`choices[].logprobs` of a text completion, whose first token begins at `offset`.

    The token that was chosen is among the alternatives even if it is not one of the likeliest.
    """
    offsets = []
    for entry in entries:
        offsets.append(offset)
        offset += len(entry["token"])
    return {
        "tokens": [entry["token"] for entry in entries],
        "token_logprobs": [entry["logprob"] for entry in entries],
        "top_logprobs": [_alternatives(entry) for entry in entries],
        "text_offset": offsets,
    }


def length_of(entries: Entries) -> int:
    """Characters of the tokens together: where the next one begins."""
    return sum(len(entry["token"]) for entry in entries)


def _alternatives(entry: Mapping[str, Any]) -> dict[str, float] | None:
    if not entry["top_logprobs"]:
        return None
    listed: Iterable[Mapping[str, Any]] = (*entry["top_logprobs"], entry)
    found: dict[str, float] = {}
    for one in listed:
        # Two ids may spell the same; the likelier comes first.
        found.setdefault(one["token"], one["logprob"])
    return found
