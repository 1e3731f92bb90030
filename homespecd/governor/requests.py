"""What the governor remembers of each running request.

Requests have no end here: a client may be gone without a word. One that has been silent for a while
is retired when the next one starts, and its acceptance becomes part of the pair's prior.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import NamedTuple

from homespecd.governor.acceptance import RequestAcceptance
from homespecd.governor.pair import Pair
from homespecd.governor.protocol import Situation
from homespecd.governor.switch import Stake

# A round of the slowest model that is any use takes less; coming back after it costs no more than
# the request's own acceptance, learned again in a few rounds.
SILENT_S = 2.0
_MOST_REQUESTS = 64

# How long answers are, until some have been seen, and how fast that is learned. An answer that is
# longer than usual already goes on a little.
_FIRST_ANSWER_TOKENS = 64.0
_LEAST_REMAINING_TOKENS = 32.0
_ANSWER_RATE = 0.1

# What a token costs "of late" spans some 48 tokens, and starts out as if a few had been plain.
_FADE = 1.0 - 1.0 / 48.0
_PLAIN_PRIOR_TOKENS = 4.0
_SHARE_PRIOR_TOKENS = 8.0


class Asked(NamedTuple):
    """A choice whose round has not been reported yet.

    tokens: what this slot expects of it. expected_ms: 0 where nobody looked. considered: whether
    the drafters with an offer were weighed, or passed over unseen.
    """

    at_s: float
    situation: Situation
    tokens: float = 1.0
    expected_ms: float = 0.0
    considered: bool = True


@dataclass(slots=True)
class RequestState:
    """One request: its acceptance per drafter, how far each draft has read, what it may lose."""

    last_s: float
    acceptance: dict[str, RequestAcceptance] = field(default_factory=dict)
    read: dict[str, int] = field(default_factory=dict)
    stakes: dict[str, Stake] = field(default_factory=dict)
    lanes: int = 1
    spent_ms: float = 0.0
    tokens: float = 0.0
    committed: int = 0
    plain_rounds: int = 0
    served: dict[str, float] = field(default_factory=dict)

    def acceptance_of(self, pair: Pair) -> RequestAcceptance:
        """This request's acceptance of one drafter, from the pair's prior on."""
        running = self.acceptance.get(pair.spec.name)
        if running is None:
            running = self.acceptance[pair.spec.name] = pair.acceptance.new_request()
        return running

    def stake_of(self, pair: Pair) -> Stake:
        """What one drafter may still lose in this request."""
        stake = self.stakes.get(pair.spec.name)
        if stake is None:
            stake = self.stakes[pair.spec.name] = Stake(pair.trust)
        return stake

    def spend(self, ms: float, tokens: int, drafter: str | None) -> None:
        """A decoding round; older ones fade."""
        self.committed += tokens
        for stake in self.stakes.values():
            stake.token(tokens)
        fade = _FADE**tokens
        self.spent_ms = self.spent_ms * fade + ms
        self.tokens = self.tokens * fade + tokens
        for name in self.served:
            self.served[name] *= fade
        if drafter is None:
            self.plain_rounds += 1
        else:
            self.served[drafter] = self.served.get(drafter, 0.0) + tokens

    def left_to(self, drafter: str, usually: float) -> float:
        """The share of the tokens that no other drafter takes care of.

        usually: that share over all requests, where this one starts from.
        """
        others = sum(tokens for name, tokens in self.served.items() if name != drafter)
        taken = others + (1.0 - usually) * _SHARE_PRIOR_TOKENS
        return 1.0 - taken / (self.tokens + _SHARE_PRIOR_TOKENS)

    def token_ms(self, plain_ms: float) -> float:
        """What a token costs of late, at most a plain round."""
        ms = (self.spent_ms + _PLAIN_PRIOR_TOKENS * plain_ms) / (self.tokens + _PLAIN_PRIOR_TOKENS)
        return min(ms, plain_ms)

    def unread(self, pair: Pair, context: int) -> int:
        """Rows that the draft must catch up on before it can propose, besides the usual one."""
        if not pair.spec.reads:
            return 0
        return max(0, context - self.read.get(pair.spec.name, 0) - 1)


class Requests:
    """The requests that are running, as far as anyone can tell."""

    def __init__(self) -> None:
        self._states: dict[int, RequestState] = {}
        self.answer_tokens = _FIRST_ANSWER_TOKENS

    def remaining(self, state: RequestState) -> float:
        """How many tokens an answer that has come so far is likely to have ahead."""
        return max(_LEAST_REMAINING_TOKENS, self.answer_tokens - state.committed)

    def state(self, request: int, now_s: float, *, started: Callable[[], None]) -> RequestState:
        """The request's state; `started` is called when it is new."""
        state = self._states.get(request)
        if state is None:
            self._retire(now_s)
            started()
            state = self._states[request] = RequestState(now_s)
        state.last_s = now_s
        return state

    def _retire(self, now_s: float) -> None:
        silent = [
            request for request, state in self._states.items() if now_s - state.last_s > SILENT_S
        ]
        # Insertion order: the oldest go first when there are too many.
        crowd = len(self._states) - len(silent) - _MOST_REQUESTS + 1
        if crowd > 0:
            silent += [request for request in self._states if request not in silent][:crowd]
        for request in silent:
            state = self._states.pop(request)
            self.answer_tokens += _ANSWER_RATE * (state.committed - self.answer_tokens)
            for acceptance in state.acceptance.values():
                acceptance.retire()
            for stake in state.stakes.values():
                stake.retire()
