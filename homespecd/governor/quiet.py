"""Rounds in which there is nothing to decide, put by and worked off together.

What runs first after a step finds its code and data pushed out of the processor's caches by the
weights, and takes several times as long as it should; on a small model that is a percent of every
plain round. So a round that can only be plain is answered at once, and what there is to learn of it
waits for the next one with something to decide (or for some thirty of its kind). Everything is then
done in its order, as if it had been done at the time.
"""

from __future__ import annotations

from dataclasses import dataclass

from homespecd.governor.knowledge import Knowledge
from homespecd.governor.lessons import Lessons
from homespecd.governor.prospects import plain_round
from homespecd.governor.protocol import Choice, Reason, RoundRecord, Situation, SpeculationMode
from homespecd.governor.requests import Asked

_MOST_ROUNDS = 32

# A draft model that is far from paying is not looked at again for so many rounds: its prospects
# change with evidence, and without a proposal there is none. (A lookup's change with its match.)
_REST_ROUNDS = 3


@dataclass(slots=True)
class _Round:
    asked_s: float
    situation: Situation
    choice: Choice
    record: RoundRecord | None = None


class QuietRounds:
    """Of one conversation at a time: where several share a step, each may count for the others."""

    def __init__(self, known: Knowledge, lessons: Lessons) -> None:
        self._known = known
        self._lessons = lessons
        self._rounds: list[_Round] = []
        self._resting: tuple[int, list[str]] = (0, [])  # a request, and who had an offer in it
        self._rest = 0

    def choose(self, now_s: float, situation: Situation) -> Choice | None:
        """The choice where only one is possible, None where it must be thought about."""
        if situation.other_rows:
            return None
        offering = [name for name, most in situation.offers.items() if most > 0]
        if not offering or situation.room <= 1:
            reason = self._known.quiet_reason(situation.offers)
        elif self._rest and (situation.request, offering) == self._resting:
            self._rest -= 1
            reason = Reason.SLOWER_THAN_PLAIN
        else:
            return None
        if situation.mode is SpeculationMode.OFF:
            reason = Reason.DISABLED_BY_REQUEST
        choice = Choice(None, 0, reason)
        self._rounds.append(_Round(now_s, situation, choice))
        return choice

    def rest(self, situation: Situation) -> None:
        """These offers are far from paying: let that stand for the next rounds."""
        offering = [name for name, most in situation.offers.items() if most > 0]
        if not any(situation.matches.get(name) for name in offering):
            self._resting, self._rest = (situation.request, offering), _REST_ROUNDS

    def observe(self, record: RoundRecord) -> bool:
        """Put the record by if it is that of a quiet round; False where it must be learned now."""
        if not self._rounds:
            return False
        last = self._rounds[-1]
        asked = last.situation
        if last.record is not None or asked.request != record.request:
            return False
        if record.total_rows != record.rows:
            return False
        last.record = record
        if len(self._rounds) >= _MOST_ROUNDS:
            self.work_off()
        return True

    def work_off(self) -> None:
        """Learn from all that was put by. A round that is still under way counts as asked."""
        rounds, self._rounds = self._rounds, []
        for one in rounds:
            situation = one.situation
            state = self._known.state(situation.request, one.asked_s)
            plain = plain_round(self._known, situation, state, one.asked_s)
            state.asked = Asked(one.asked_s, situation, one.choice, 1.0, plain.ms)
            for name, most in situation.offers.items():
                if most > 0 and situation.room > 1 and name in self._known.pairs:
                    self._known.pairs[name].considered(used=False)
                    self._known.pairs[name].probes.round()
            if one.record is not None:
                self._lessons.learn(one.record)
