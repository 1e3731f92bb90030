"""A governor that always speculates, with one k per drafter: it measures, but only to report.

For comparing (what does k = 4 cost here?), for tests, and for whoever wants no surprises. Drafters
are asked in the order they were given; the first that has something to say is taken.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from homespecd.governor.protocol import (
    Choice,
    DrafterStanding,
    MeasuredSpeedup,
    Reason,
    RoundRecord,
    Situation,
    SpeculationMode,
    Standing,
)

# A first round that must read more prompt rows than this stays plain: a draft would have to read
# the whole prompt as well before the first token is out. Fewer rows are a short follow-up, which
# costs it one small step.
_FIRST_ROUND_ROWS = 16

# Steps over more rows than this are prefill: no block to verify is so long.
_LONGEST_BLOCK_ROWS = 64


@dataclass
class _Tally:
    """Sums over rounds. The timed ones are those whose step carried no prompt."""

    rounds: int = 0
    proposed: int = 0
    accepted: int = 0
    committed: int = 0
    draft_ms: float = 0.0
    timed_rounds: int = 0
    timed_tokens: int = 0
    timed_ms: float = 0.0

    def add(self, record: RoundRecord) -> None:
        self.rounds += 1
        self.proposed += record.proposed
        self.accepted += record.accepted
        self.committed += record.committed
        self.draft_ms += record.draft_ms
        if record.catch_up <= 1:
            self.timed_rounds += 1
            self.timed_tokens += record.committed
            self.timed_ms += record.wall_ms

    @property
    def ms_per_token(self) -> float | None:
        return self.timed_ms / self.timed_tokens if self.timed_tokens else None


class FixedGovernor:
    """Implements `Governor`.

    Args:
        k_by_drafter: the most tokens to propose per round, in the order of preference.
        enabled: False = plain for everyone, whatever a request asks for.
        prefill_rows: rows of prompt per step, whoever else decodes. 64 is where prefill is fastest
            on the machines measured, and short enough not to hold others up for long.
    """

    def __init__(
        self, k_by_drafter: Mapping[str, int], *, enabled: bool = True, prefill_rows: int = 64
    ) -> None:
        self._k = dict(k_by_drafter)
        self._enabled = enabled
        self._prefill_rows = prefill_rows
        self._plain = _Tally()
        self._speculative = {name: _Tally() for name in self._k}
        self._step_ms: dict[int, tuple[float, int]] = {}  # rows → sum of times, steps

    def choose(self, now_s: float, situation: Situation) -> Choice:  # noqa: ARG002
        """See `Governor`. NO_DRAFT also where the drafters have nothing to say this round."""
        if situation.mode is SpeculationMode.OFF:
            return Choice(None, 0, Reason.DISABLED_BY_REQUEST)
        if not self._enabled:
            return Choice(None, 0, Reason.DISABLED_BY_CONFIG)
        auto = situation.mode is SpeculationMode.AUTO
        if auto and situation.offers and situation.catch_up > _FIRST_ROUND_ROWS:
            return Choice(None, 0, Reason.WARMING_UP)
        for name, most in self._k.items():
            # The round's own token takes one place of the room.
            k = min(most, situation.offers.get(name, 0), situation.room - 1)
            if k > 0:
                return Choice(name, k, Reason.SPECULATING)
        return Choice(None, 0, Reason.NO_DRAFT)

    def observe(self, record: RoundRecord) -> None:
        """See `Governor`. A round counts for the drafter that was asked, whatever it proposed."""
        name = record.choice.drafter
        tally = self._plain if name is None else self._speculative.setdefault(name, _Tally())
        tally.add(record)
        if record.catch_up <= 1 and record.total_rows <= _LONGEST_BLOCK_ROWS:
            total_ms, steps = self._step_ms.get(record.total_rows, (0.0, 0))
            self._step_ms[record.total_rows] = (total_ms + record.step_ms, steps + 1)

    def prefill_rows(self, decoding_slots: int) -> int:  # noqa: ARG002
        return self._prefill_rows

    def speedup(self, drafter: str | None) -> MeasuredSpeedup:
        """Of one drafter, or (None) of all rounds with any."""
        tallies = [
            tally for name, tally in self._speculative.items() if drafter is None or name == drafter
        ]
        ms = sum(tally.timed_ms for tally in tallies)
        tokens = sum(tally.timed_tokens for tally in tallies)
        plain, speculative = self._plain.ms_per_token, ms / tokens if tokens else None
        return MeasuredSpeedup(
            measured=plain / speculative if plain is not None and speculative else None,
            plain_ms_per_token=plain,
            speculative_ms_per_token=speculative,
            plain_samples=self._plain.timed_rounds,
            speculative_samples=sum(tally.timed_rounds for tally in tallies),
        )

    def standing(self) -> Standing:
        reason = self._reason()
        return Standing(
            mode="speculative" if reason is Reason.SPECULATING else "plain",
            reason=reason,
            step_ms={rows: ms / steps for rows, (ms, steps) in sorted(self._step_ms.items())},
            plain_ms_per_token=self._plain.ms_per_token,
            drafters=tuple(self._drafter(name, reason) for name in self._k),
        )

    def _reason(self) -> Reason:
        if not self._enabled:
            return Reason.DISABLED_BY_CONFIG
        return Reason.SPECULATING if any(k > 0 for k in self._k.values()) else Reason.NO_DRAFT

    def _drafter(self, name: str, reason: Reason) -> DrafterStanding:
        tally = self._speculative[name]
        return DrafterStanding(
            name=name,
            reason=reason,
            k=self._k[name],
            acceptance_rate=tally.accepted / tally.proposed if tally.proposed else None,
            acceptance_length=tally.committed / tally.rounds if tally.rounds else None,
            draft_ms=tally.draft_ms / tally.rounds if tally.rounds else None,
            speedup=self.speedup(name),
        )
