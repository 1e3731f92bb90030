"""What a drafter may lose in one request, and how far it is trusted from the start."""

from __future__ import annotations

from typing import Any

from homespecd.governor.levels import finite

# In plain rounds: what a drafter may lose in a request before it has gained anything there, and
# what each token adds to that, up to where it began. Together some 2 % of a hundred tokens.
_FIRST_STAKE = 1.2
_STAKE_PER_TOKEN = 0.004
# A part of what was gained may be lost again, up to so much: a request that copied a list for a
# minute must not burn the gain on the prose after it.
_KEPT = 0.7
_MOST_STAKE = 6.0
# A token that a plain round shows would have been right speaks for trying again.
_ENCOURAGED = 0.15

# A drafter that gained in each of its last requests may lose more than the first stake, by a part
# of what it gained in the worst of them; the fewer there are, the less.
_REMEMBERED_REQUESTS = 8
_TRUSTED_REQUESTS = 4
_TRUSTED_PART = 0.25
# One that lost in each of so many, by this part less: a short block can still show a change.
_DOUBTED_REQUESTS = 3
_DOUBTED_PART = 0.25
# One bad beginning must not settle a drafter's fate: of the losses of its first rounds so much is
# borne by nobody.
_ADVANCE = 4.0


class Stake:
    """What a drafter may still lose in one request, in plain rounds.

    A block is played only if this covers its loss should all of it be rejected, unless it pays even
    when the drafter does badly. So a text that nobody has seen yet is tried with a short block; one
    whose short block was right has earned a long one at once; and one where nothing is right has
    lost no more than its stake, whatever was expected of it.
    """

    def __init__(self, first: float, advance: Advance) -> None:
        self._advance = advance
        self._first = self.rounds = first
        self.gained: float | None = None  # until it is played

    def token(self, count: int) -> None:
        """Tokens committed, in whatever way."""
        if self.rounds < self._first:
            self.rounds = min(self.rounds + count * _STAKE_PER_TOKEN, self._first)

    def see(self, *, plain_ms: float, spent_ms: float, round_ms: float) -> None:
        """One speculative round: what its tokens would have cost one by one, and what they did."""
        gained = (plain_ms - spent_ms) / round_ms
        self.gained = (self.gained or 0.0) + gained
        if gained < 0:
            gained += self._advance.cover(-gained)
        self.rounds = min(self.rounds + gained * (_KEPT if gained > 0 else 1.0), _MOST_STAKE)

    def invest(self, rounds: float) -> None:
        """What it had to read first. It counts when all is over: stopping brings it not back."""
        self.gained = (self.gained or 0.0) - rounds

    def encourage(self) -> None:
        """It was not asked and would have been right."""
        if self.rounds < self._first:
            self.rounds += _ENCOURAGED


class Advance:
    """What finding out about a drafter that nobody knows may cost, once; in plain rounds."""

    def __init__(self) -> None:
        self._left = _ADVANCE

    def cover(self, lost: float) -> float:
        """How much of a loss is covered."""
        covered = min(lost, self._left)
        self._left -= covered
        return covered

    def to_record(self) -> float:
        return self._left

    def restore(self, record: Any) -> None:
        self._left = finite(record, 0.0, _ADVANCE)


class Trust:
    """How a drafter fared in its last requests, and what it may lose in the next one therefore."""

    def __init__(self) -> None:
        self._gained: list[float] = []

    @property
    def first_stake(self) -> float:
        """In plain rounds."""
        last = self._gained[-_DOUBTED_REQUESTS:]
        if len(last) == _DOUBTED_REQUESTS and max(last) <= 0.0:
            return _FIRST_STAKE * _DOUBTED_PART
        part = _TRUSTED_PART * min(1.0, len(self._gained) / _TRUSTED_REQUESTS)
        least = min(self._gained, default=0.0)
        return min(_FIRST_STAKE + part * max(0.0, least), _MOST_STAKE)

    def remember(self, gained: float) -> None:
        """A request is over in which the drafter saved so many plain rounds."""
        self._gained = [*self._gained, gained][-_REMEMBERED_REQUESTS:]

    def to_record(self) -> list[float]:
        return [round(one, 2) for one in self._gained]

    def restore(self, record: Any) -> None:
        """Take over what an earlier run saw. Raises ValueError or TypeError."""
        self._gained = [finite(one, -1e9, 1e9) for one in record][-_REMEMBERED_REQUESTS:]
