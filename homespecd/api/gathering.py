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
    tool_calls: list[Mapping[str, Any]] = field(default_factory=list)

    @property
    def text(self) -> str:
        return "".join(self.texts)

    @property
    def plain(self) -> bool:
        """There is nothing but text."""
        return not (self.logprobs or self.tool_calls)

    def add(self, delta: Delta) -> None:
        self.texts.append(delta.text)
        self.logprobs += delta.logprobs or ()
        self.tool_calls += delta.tool_calls or ()


def gather(deltas: Iterable[Delta], count: int) -> Sequence[Gathered]:
    """The deltas of `count` choices, by choice."""
    gathered = [Gathered() for _ in range(count)]
    for delta in deltas:
        gathered[delta.index].add(delta)
    return gathered
