"""What one request cost and what speculation did for it: the numbers a response carries."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any

from homespecd.governor.protocol import MeasuredSpeedup, Reason, RoundRecord


@dataclass
class Account:
    """Filled in by the engine's thread while a request runs. Times are clock readings in seconds.

    submitted_s: the request reached the worker; started_s: it got a slot; first_token_s: its first
    round was committed; ended_s: its last. paused_s: how long others had its slot, up to where its
    text had been read again.
    """

    prompt_tokens: int
    submitted_s: float
    started_s: float = 0.0
    first_token_s: float | None = None
    ended_s: float = 0.0
    paused_s: float = 0.0
    cached_tokens: int = 0
    completion_tokens: int = 0
    first_round_tokens: int = 0
    rounds: int = 0
    speculative_rounds: int = 0
    proposed: int = 0
    accepted: int = 0
    draft_ms: float = 0.0
    verify_ms: float = 0.0
    reasons: Counter[Reason] = field(default_factory=Counter)
    drafters: Counter[str] = field(default_factory=Counter)
    _pause_began_s: float | None = None

    def pause(self, now_s: float) -> None:
        """Somebody else has its turn."""
        self._pause_began_s = now_s

    def go_on(self, now_s: float) -> None:
        """It decodes, for the first time or again."""
        if self._pause_began_s is not None:
            self.paused_s += now_s - self._pause_began_s
            self._pause_began_s = None

    def add(self, record: RoundRecord) -> None:
        """One round, as it was committed."""
        now_s = record.at_s
        if self.first_token_s is None:
            self.first_token_s = now_s
            self.first_round_tokens = record.committed
        self.ended_s = now_s
        self.rounds += 1
        self.completion_tokens += record.committed
        self.reasons[record.choice.reason] += 1
        if record.proposed:
            assert record.choice.drafter is not None
            self.speculative_rounds += 1
            self.drafters[record.choice.drafter] += 1
            self.proposed += record.proposed
            self.accepted += record.accepted
            self.draft_ms += record.draft_ms
            self.verify_ms += record.step_ms

    @property
    def mode(self) -> str:
        if self.speculative_rounds == 0:
            return "plain"
        return "speculative" if self.speculative_rounds == self.rounds else "mixed"

    @property
    def drafter(self) -> str | None:
        """The drafter that most rounds used, None when none did."""
        return self.drafters.most_common(1)[0][0] if self.drafters else None

    @property
    def reason(self) -> Reason:
        """Why most rounds were what they were. Drafters that would have been used and had nothing
        to say are no reason to call an answer speculative."""
        most = self.reasons.most_common(1)[0][0] if self.reasons else Reason.NO_DRAFT
        if most is Reason.SPECULATING and not self.speculative_rounds:
            return Reason.NO_DRAFT
        return most

    @property
    def decode_ms(self) -> float:
        """Wall time after the first round, in which every token of the rest was made; without the
        turns of others."""
        if self.first_token_s is None:
            return 0.0
        return (self.ended_s - self.first_token_s - self.paused_s) * 1e3

    @property
    def decode_tok_s(self) -> float | None:
        """Tokens per second after the first round; None when there was no second."""
        if self.rounds < 2 or self.decode_ms <= 0:
            return None
        return (self.completion_tokens - self.first_round_tokens) / self.decode_ms * 1e3

    def usage(self) -> dict[str, int]:
        return {
            "prompt_tokens": self.prompt_tokens,
            "completion_tokens": self.completion_tokens,
            "cached_tokens": self.cached_tokens,
        }

    def report(self, *, speedup: MeasuredSpeedup, peak_memory_bytes: int) -> dict[str, Any]:
        """The response's `homespec` object."""
        first_s = self.first_token_s if self.first_token_s is not None else self.ended_s
        return {
            "mode": self.mode,
            "drafter": self.drafter,
            "reason": self.reason.value,
            "queued_ms": round((self.started_s - self.submitted_s) * 1e3, 3),
            "ttft_ms": round((first_s - self.submitted_s) * 1e3, 3),
            "prefill_ms": round((first_s - self.started_s) * 1e3, 3),
            "decode_ms": round(self.decode_ms, 3),
            "paused_ms": round(self.paused_s * 1e3, 3),
            "decode_tok_s": _rounded(self.decode_tok_s),
            "rounds": self.rounds,
            "draft_tokens_proposed": self.proposed,
            "draft_tokens_accepted": self.accepted,
            "acceptance_length": _rounded(
                self.completion_tokens / self.rounds if self.rounds else None
            ),
            "draft_ms": round(self.draft_ms, 3),
            "verify_ms": round(self.verify_ms, 3),
            "speedup": asdict(speedup),
            "peak_memory_bytes": peak_memory_bytes,
        }


def together(accounts: Sequence[Account]) -> Account:
    """The account of a request with several choices: one prompt, and the sum of the rest.

    Times are those of the whole: while one choice waits for its turn others go on, so no pause of
    one is a pause of all.
    """
    first = accounts[0]
    if len(accounts) == 1:
        return first
    began = [one.first_token_s for one in accounts if one.first_token_s is not None]
    sums = {
        name: sum(getattr(one, name) for one in accounts)
        for name in (
            "completion_tokens",
            "first_round_tokens",
            "rounds",
            "speculative_rounds",
            "proposed",
            "accepted",
            "draft_ms",
            "verify_ms",
        )
    }
    return replace(
        first,
        started_s=min(one.started_s for one in accounts),
        first_token_s=min(began, default=None),
        ended_s=max(one.ended_s for one in accounts),
        paused_s=0.0,
        reasons=sum((one.reasons for one in accounts), Counter()),
        drafters=sum((one.drafters for one in accounts), Counter()),
        **sums,
    )


def _rounded(value: float | None) -> float | None:
    return None if value is None else round(value, 3)
