"""Drafting by lookup: what followed when the sequence last ended like this. No model, no weights.

Prompt lookup and output lookup in one: the index covers all that is committed. It is the hash chain
of LZ77: for every run of `min_match` tokens the place where it last ended, and for every place the
one before it with the same run. So a committed token costs one dictionary entry, taking it back
restores the entry before, and the longest match is found by walking the chain from the most recent
place back.
"""

from __future__ import annotations

import sys
from collections.abc import Generator, Sequence

from homespecd.decoding.sequences import common_prefix
from homespecd.drafters.protocol import NO_PROPOSAL, Draw, Proposal, StepResult, Work

# On prose and code, 2 has something to say in twice as many rounds as 3 and finds copies a token
# sooner, but about a tenth of what either says is right, and a wrong block costs up to two plain
# steps. Worth lowering for a governor that weighs every match by its length.
MIN_MATCH = 3
# Longer matches are as good as this one: the most recent of them is taken.
MAX_MATCH = 16
# Places looked at per lookup. Runs that recur more often than this are spaces, rules and tables,
# whose recent copies are as good as old ones. Bounds a lookup to some 50 µs.
MAX_PLACES = 64


class NgramDrafter:
    """Proposes the continuation of the longest earlier match; implements `Drafter`.

    A proposal whose source reaches the end of the sequence goes on in itself, so that text with a
    period shorter than k (rows of a table, a list) is continued for all k tokens.
    """

    def __init__(
        self,
        name: str,
        *,
        min_match: int = MIN_MATCH,
        max_match: int = MAX_MATCH,
        max_places: int = MAX_PLACES,
    ) -> None:
        if not 1 <= min_match <= max_match:
            raise ValueError(f"1 ≤ min_match ≤ max_match, not {min_match} and {max_match}")
        self._name = name
        self._min_match = min_match
        self._max_match = max_match
        self._max_places = max_places
        self._tokens: list[int] = []
        # Whoever gives the same sequence again has only added to it, or said so by `rewind`: then
        # a round costs what it added, however long the text is.
        self._given: Sequence[int] | None = None
        # A place is the index just past a run: where its continuation begins.
        self._last: dict[tuple[int, ...], int] = {}  # run → its last place
        self._before: list[
            int
        ] = []  # [len(tokens)] place - 1 → an earlier one of its run, 0 = none
        self._source = 0  # place of the best match for the end of _tokens, 0 = none
        self._match_length = 0

    @property
    def name(self) -> str:
        return self._name

    @property
    def match_length(self) -> int:
        """Tokens that the last looked-up match agrees on, up to max_match; 0 = there is none.

        Says more than anything else about how much of a proposal will be accepted.
        """
        return self._match_length

    @property
    def nbytes(self) -> int:
        """Of the index, estimated: tokens are shared with the committed sequence."""
        run_bytes = sys.getsizeof((0,) * self._min_match) + sys.getsizeof(1 << 20)
        return (
            sys.getsizeof(self._tokens)
            + sys.getsizeof(self._before)
            + sys.getsizeof(self._last)
            + run_bytes * len(self._last)
        )

    def expected_length(self, committed: Sequence[int], k: int) -> int:
        """k where there is a match, else 0."""
        self._follow(committed)
        return max(0, k) if self._source else 0

    def unread(self, committed: Sequence[int]) -> int:  # noqa: ARG002
        """See `Drafter`: looking a text up is no reading."""
        return 0

    def foresee(self, committed: Sequence[int]) -> int | None:
        """See `Drafter`."""
        self._follow(committed)
        return self._tokens[self._source] if self._source else None

    def hindsight(self, committed: Sequence[int], count: int) -> int:
        """See `Drafter`. Costs a lookup for each of them."""
        start = len(committed) - count
        self._align(committed)
        self._cut(start)
        self._extend(committed[len(self._tokens) : start])
        right = 0
        for token in committed[start:]:
            self._look_up()
            right += self._source > 0 and self._tokens[self._source] == token
            self._extend([token])
        self._look_up()
        return right

    def propose(
        self,
        committed: Sequence[int],
        k: int,
        draw: Draw,  # noqa: ARG002 (a copy draws nothing)
    ) -> Generator[Work, StepResult, Proposal]:
        """See `Drafter`. Deterministic (q is None), and yields no work."""
        self._follow(committed)
        if not self._source or k <= 0:
            return NO_PROPOSAL
        period = len(self._tokens) - self._source
        tokens = self._tokens[self._source : self._source + k]
        while len(tokens) < k:  # the source ran into the end: go on in the proposal itself
            tokens.append(tokens[len(tokens) - period])
        return Proposal(tokens=tuple(tokens))
        yield  # a generator like every drafter's, though nothing ever needs to be run

    def rewind(self, valid: int) -> None:
        """See `Drafter`."""
        if valid < len(self._tokens):
            self._cut(valid)
            self._look_up()

    def _follow(self, committed: Sequence[int]) -> None:
        """Make the index that of `committed`, and look its end up if anything changed."""
        held = len(self._tokens)
        self._align(committed)
        if not held == len(self._tokens) == len(committed):
            self._extend(committed[len(self._tokens) :])
            self._look_up()

    def _align(self, committed: Sequence[int]) -> None:
        """Take back what is not a beginning of `committed`."""
        if committed is not self._given:
            self._cut(common_prefix(self._tokens, committed))
            self._given = committed

    def _extend(self, added: Sequence[int]) -> None:
        tokens, last, before = self._tokens, self._last, self._before
        length = self._min_match
        for token in added:
            tokens.append(token)
            place = len(tokens)
            earlier = 0
            if place >= length:
                run = tuple(tokens[-length:])
                earlier = last.get(run, 0)
                last[run] = place
            before.append(earlier)

    def _cut(self, length: int) -> None:
        """Take tokens back from the end, which undoes the index exactly."""
        while len(self._tokens) > length:
            earlier = self._before.pop()
            if len(self._tokens) >= self._min_match:
                run = tuple(self._tokens[-self._min_match :])
                if earlier:
                    self._last[run] = earlier
                else:
                    del self._last[run]
            self._tokens.pop()

    def _look_up(self) -> None:
        """The earlier place that agrees longest with the end; the most recent among equals."""
        self._source = self._match_length = 0
        place = self._before[-1] if self._before else 0
        for _ in range(self._max_places):
            if place == 0 or self._match_length == self._max_match:
                break
            length = self._agreement(place)
            if length > self._match_length:
                self._source, self._match_length = place, length
            place = self._before[place - 1]

    def _agreement(self, place: int) -> int:
        """Tokens before `place` that are those at the end of the sequence, up to max_match."""
        tokens = self._tokens
        end = len(tokens)
        length = self._min_match  # they share the run that the chain is of
        while (
            length < self._max_match
            and length < place
            and tokens[place - length - 1] == tokens[end - length - 1]
        ):
            length += 1
        return length
