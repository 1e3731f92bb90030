"""What a worker has done since it started."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

from homespecd.worker.generate import Conversation
from homespecd.worker.waiting import Outcome

# Weight of the newest request in the displayed decoding speed: about its last ten requests.
_NEWEST = 0.2


@dataclass
class Totals:
    """Sums over requests that have ended, however they ended."""

    requests: int = 0
    prompt_tokens: int = 0
    completion_tokens: int = 0
    rounds: int = 0
    proposed: int = 0
    accepted: int = 0
    failures: int = 0
    decode_tok_s: float | None = None

    def ended(self, conversation: Conversation | None, outcome: Outcome) -> None:
        self.requests += 1
        self.failures += outcome.error is not None
        if conversation is None:
            return
        account = conversation.account
        self.prompt_tokens += account.prompt_tokens
        self.completion_tokens += account.completion_tokens
        self.rounds += account.rounds
        self.proposed += account.proposed
        self.accepted += account.accepted
        speed = account.decode_tok_s
        if speed is not None:
            before = speed if self.decode_tok_s is None else self.decode_tok_s
            self.decode_tok_s = before + _NEWEST * (speed - before)

    def as_dict(self) -> dict[str, Any]:
        """The counters alone."""
        return {name: value for name, value in asdict(self).items() if name != "decode_tok_s"}
