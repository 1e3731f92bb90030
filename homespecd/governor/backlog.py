"""Rounds as they were asked for and as they went, until everything has been learned from them.

What runs first after a step finds its code and data pushed out of the processor's caches by the
weights, and takes several times as long as it should; on a small model that is a percent of every
round. So a report is put by; the text's part of it is looked at when the next decision needs it,
and the machine's part together with that of some rounds more.
"""

from __future__ import annotations

import math

from homespecd.governor.knowledge import Knowledge
from homespecd.governor.lessons import Lessons, Seen
from homespecd.governor.protocol import Reason, RoundRecord
from homespecd.governor.requests import SILENT_S, Asked, Company

# Rounds after which the machine's part is learned: a drafter that has become a loss is found out
# one such handful later, and by the request's stake at once. Of a model that was just loaded, every
# round is news: the handful grows by one with so many rounds.
_HANDFUL, _GROWTH = 16, 4

# The first passes after a load touch cold weights, grow arenas and wake the clock up: several times
# slower, and no measure of anything.
_COLD_ROUNDS = 3


# A step of an hour is none.
_MOST_MS = 3.6e6


class Backlog:
    """Keeps order: every round is learned from once, in the order of the reports."""

    def __init__(self, known: Knowledge, lessons: Lessons) -> None:
        self._known = known
        self._lessons = lessons
        self._cold = _COLD_ROUNDS
        # By request: a choice whose round will be reported, unless the client goes away.
        self.asked: dict[int, Asked] = {}
        self._reports: list[tuple[RoundRecord, Asked | None, bool]] = []
        self._seen: list[Seen] = []
        self._learned = 0

    def company(self, request: int, most: int, now_s: float) -> Company:
        """What is known of the others in a step: so many of them at the most."""
        others = [
            asked
            for other, asked in self.asked.items()
            if other != request and now_s - asked.at_s <= SILENT_S
        ]
        ahead_ms = self._known.requests.others_ahead_ms(request, most, now_s)
        return Company(
            tokens=sum(asked.tokens for asked in others),
            proposed=sum(asked.proposed for asked in others),
            ahead_ms=min(ahead_ms, default=0.0),
            slots=1 + max(1, len(ahead_ms)),
        )

    def report(self, record: RoundRecord) -> bool:
        """Put a round by; True if it is time to work everything off.

        One whose times are no times is not believed at all: a single number that is none would be
        in every average from then on.
        """
        if not _sane(record):
            self.asked.pop(record.request, None)
            return False
        cold = self._cold > 0
        if cold:
            self._cold -= 1
        self._reports.append((record, self.asked.pop(record.request, None), cold))
        waiting = len(self._reports) + len(self._seen)
        enough = min(_HANDFUL, 1 + self._learned // _GROWTH)
        return waiting >= enough or record.choice.reason is Reason.PROBING

    def read(self) -> None:
        """Learn what the reports say of their texts."""
        if not self._reports:
            return
        reports, self._reports = self._reports, []
        for record, asked, cold in reports:
            if asked is not None and not asked.considered:
                for name, most in asked.situation.offers.items():
                    pair = self._known.pairs.get(name)
                    if most > 0 and pair is not None and asked.situation.room > 1:
                        pair.considered(used=False)
                        pair.probes.round()
            seen = self._lessons.of_text(record, asked, cold=cold)
            if not cold:
                self._seen.append(seen)

    def work_off(self) -> None:
        """Learn everything from everything."""
        self.read()
        if self._seen:
            seen, self._seen = self._seen, []
            self._learned += len(seen)
            self._lessons.of_machine(seen)
        now_s = max((asked.at_s for asked in self.asked.values()), default=0.0)
        # Clients that went away between question and report.
        gone = [key for key, asked in self.asked.items() if now_s - asked.at_s > SILENT_S]
        for request in gone:
            del self.asked[request]


def _sane(record: RoundRecord) -> bool:
    # What is no number is not between two others.
    return (
        -_MOST_MS < record.draft_ms < _MOST_MS
        and -_MOST_MS < record.step_ms < _MOST_MS
        and -_MOST_MS < record.wall_ms < _MOST_MS
        and math.isfinite(record.at_s)
    )
