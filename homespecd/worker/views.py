"""A prefix of a sequence without a copy: what each position of a block may look back on."""

from __future__ import annotations

from collections.abc import Sequence
from typing import overload


class Prefix(Sequence[int]):
    """The first `end` tokens of `tokens`, which must not change while the view is in use."""

    __slots__ = ("_end", "_tokens")

    def __init__(self, tokens: Sequence[int], end: int) -> None:
        assert 0 <= end <= len(tokens)
        self._tokens = tokens
        self._end = end

    def __len__(self) -> int:
        return self._end

    @overload
    def __getitem__(self, index: int) -> int: ...

    @overload
    def __getitem__(self, index: slice) -> Sequence[int]: ...

    def __getitem__(self, index: int | slice) -> int | Sequence[int]:
        if isinstance(index, slice):
            return self._tokens[slice(*index.indices(self._end))]
        if not -self._end <= index < self._end:
            raise IndexError(index)
        return self._tokens[index if index >= 0 else index + self._end]
