"""Deltas put together: what each choice of an answer has come to."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from homespecd.api.service import Delta


@dataclass
class Gathered:
    """Several deltas of one choice as one."""

    texts: list[str] = field(default_factory=list)
    logprobs: list[Mapping[str, Any]] = field(default_factory=list)
    calls: dict[int, dict[str, Any]] = field(default_factory=dict)

    @property
    def text(self) -> str:
        return "".join(self.texts)

    @property
    def plain(self) -> bool:
        """There is nothing but text."""
        return not (self.logprobs or self.calls)

    @property
    def tool_calls(self) -> Sequence[Mapping[str, Any]]:
        """Calls, or what there is of them, in order: `{"index", "arguments"}`, and "id" and "name"
        if their beginning is among the deltas."""
        return list(self.calls.values())

    def add(self, delta: Delta) -> None:
        self.texts.append(delta.text)
        self.logprobs += delta.logprobs or ()
        for piece in delta.tool_calls or ():
            known = self.calls.setdefault(piece["index"], {**piece, "arguments": ""})
            known["arguments"] += piece["arguments"]


def gather(deltas: Iterable[Delta], count: int) -> Sequence[Gathered]:
    """The deltas of `count` choices, by choice."""
    gathered = [Gathered() for _ in range(count)]
    for delta in deltas:
        gathered[delta.index].add(delta)
    return gathered
