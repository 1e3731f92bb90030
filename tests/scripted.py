"""A governor that follows a script: any drafter, any k, plain in between."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import cycle

from homespecd.governor.fixed import FixedGovernor
from homespecd.governor.protocol import Choice, Reason, RoundRecord, Situation

# The drafter of a round and its k; None = plain.
Step = tuple[str | None, int]


class Scripted(FixedGovernor):
    """Does what the script says, over and over, as far as the drafters have something to say."""

    def __init__(self, script: Sequence[Step]) -> None:
        super().__init__({})
        self._script = cycle(script)
        self.asked: dict[tuple[int, int], Situation] = {}
        self.records: list[RoundRecord] = []

    def choose(self, now_s: float, situation: Situation) -> Choice:  # noqa: ARG002
        self.asked[situation.request, situation.context] = situation
        name, wanted = next(self._script)
        k = min(wanted, situation.offers.get(name or "", 0), situation.room - 1)
        if k <= 0:
            return Choice(None, 0, Reason.PROBING)
        return Choice(name, k, Reason.SPECULATING)

    def observe(self, record: RoundRecord) -> None:
        self.records.append(record)

    def prefill_rows(self, decoding_slots: int) -> int:
        return 3 + decoding_slots  # so that short prompts are read in several chunks as well
