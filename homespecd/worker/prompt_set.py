"""The prompts that `bench` and `verify` use when they are given none."""

from __future__ import annotations

import json
from dataclasses import dataclass
from importlib import resources
from typing import Any

from homespecd.errors import RequestError


@dataclass(frozen=True)
class BenchPrompt:
    """category: what kind of work it stands for; messages: OpenAI chat messages."""

    category: str
    messages: tuple[dict[str, str], ...]


def shipped_prompts() -> tuple[BenchPrompt, ...]:
    """Chat, summary, question over a text, code edit, translation and list copying."""
    text = resources.files("homespecd.worker").joinpath("prompts.json").read_text("utf-8")
    return parse_prompts(json.loads(text))


def parse_prompts(value: Any) -> tuple[BenchPrompt, ...]:
    """Check a caller's prompts: a list of {"category", "messages"}.

    Raises:
        RequestError: it is something else.
    """
    try:
        prompts = tuple(
            BenchPrompt(
                category=str(one["category"]),
                messages=tuple(
                    {"role": str(m["role"]), "content": str(m["content"])} for m in one["messages"]
                ),
            )
            for one in value
        )
    except (TypeError, KeyError) as error:
        raise RequestError(
            'prompts must be a list of {"category": …, "messages": [{"role", "content"}]}',
            param="prompts",
        ) from error
    if not prompts or not all(one.messages for one in prompts):
        raise RequestError("prompts must not be empty", param="prompts")
    return prompts
