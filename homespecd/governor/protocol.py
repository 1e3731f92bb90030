"""The question asked before every round, and what is told after it.

The worker asks `choose` and reports `observe`; it never looks at a clock for the governor and never
second-guesses the answer. Whether the answer is a fixed k or comes from measured costs is this
room's own business.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Protocol


class Reason(StrEnum):
    """Why a round is speculative or plain (the outside contract's words)."""

    SPECULATING = "speculating"
    WARMING_UP = "warming_up"
    PROBING = "probing"
    SLOWER_THAN_PLAIN = "slower_than_plain"
    NO_DRAFT = "no_draft"
    DRAFT_OVER_CAP = "draft_over_cap"
    DRAFT_INCOMPATIBLE = "draft_incompatible"
    DRAFT_FAILED = "draft_failed"
    LOGITS_LAST_ONLY = "logits_last_only"
    NOT_BLOCK_CAUSAL = "not_block_causal"
    DISABLED_BY_CONFIG = "disabled_by_config"
    DISABLED_BY_REQUEST = "disabled_by_request"


_BEST_FIRST = (Reason.SPECULATING, Reason.WARMING_UP, Reason.SLOWER_THAN_PLAIN)


def best_reason(reasons: Iterable[Reason], *, default: Reason) -> Reason:
    """How a model stands whose drafters stand so: as the best of them; `default` without any."""

    def rank(reason: Reason) -> int:
        return _BEST_FIRST.index(reason) if reason in _BEST_FIRST else len(_BEST_FIRST)

    return min(reasons, key=rank, default=default)


class SpeculationMode(StrEnum):
    """What a request asks for. `ON` speculates even where it is measured slower."""

    AUTO = "auto"
    OFF = "off"
    ON = "on"


@dataclass(frozen=True)
class Situation:
    """One slot about to start a round.

    request: an id that is the same for all rounds of one request.
    context: tokens committed so far. catch_up: rows of prompt that the step must carry anyway.
    room: how many tokens may still be committed (max_tokens, context); a block longer is waste.
    offers: drafter name → the most tokens it could propose now (0 = it has nothing to say);
        only drafters that this request may use.
    other_rows: rows that other slots are known to put into the same step.
    matches: drafter name → how many of the last tokens its proposal is backed by (the length of the
        n-gram match); absent for drafters without such a notion. Sharpens the guess, no more.
    unread: drafter name → tokens of the text that it must read before it can propose, the usual one
        not counted; absent = none.
    beginnings: hashes of the prompt's beginnings (see `kinds`); requests that share some are
        expected to fare alike.
    """

    request: int
    mode: SpeculationMode
    context: int
    catch_up: int
    room: int
    offers: Mapping[str, int]
    other_rows: int = 0
    matches: Mapping[str, int] = field(default_factory=dict)
    unread: Mapping[str, int] = field(default_factory=dict)
    beginnings: Sequence[int] = ()


@dataclass(frozen=True)
class Choice:
    """Which drafter and how many tokens; k = 0 (drafter None) is a plain step."""

    drafter: str | None
    k: int
    reason: Reason


@dataclass(frozen=True)
class RoundRecord:
    """What one round really was.

    proposed is what the drafter came up with (≤ the k asked for), accepted ≤ proposed, committed
    counts accepted tokens and the final one, less what a stop cut off. draft_ms is the wall time
    between asking the drafter and having its proposal, step_ms that of the shared target step,
    wall_ms everything from the choice to the commit. rows: this slot's; total_rows: the step's.
    impossible: tokens that the drafter proposed after those, and that a grammar rules out; they
        were not verified, and are as wrong as any.
    foreseen: of a plain round, drafter name → whether the token that it would have proposed first
        is the one that was committed; only for drafters that had an offer and propose for next to
        nothing (n-gram). It makes learning free where it would take a probe otherwise.
    total_proposed: of the step's rows, those of proposals, this slot's included.
    covered: of a speculative round, how many of its committed tokens another drafter would have
        foreseen, each from those before it; the best of those that say so for next to nothing.
    """

    request: int
    at_s: float
    choice: Choice
    context: int
    catch_up: int
    rows: int
    total_rows: int
    lanes: int
    proposed: int
    accepted: int
    committed: int
    draft_ms: float
    step_ms: float
    wall_ms: float
    foreseen: Mapping[str, bool] = field(default_factory=dict)
    impossible: int = 0
    covered: int = 0
    total_proposed: int = 0


@dataclass(frozen=True)
class MeasuredSpeedup:
    """plain ÷ speculative wall time per token; None until both sides have run."""

    measured: float | None
    plain_ms_per_token: float | None
    speculative_ms_per_token: float | None
    plain_samples: int
    speculative_samples: int


@dataclass(frozen=True)
class DrafterStanding:
    """What the governor knows of one drafter, for the snapshot."""

    name: str
    reason: Reason
    k: int
    acceptance_rate: float | None
    acceptance_length: float | None
    draft_ms: float | None
    speedup: MeasuredSpeedup


@dataclass(frozen=True)
class Standing:
    """The governor's whole view, for the snapshot and for responses."""

    mode: str  # "speculative" | "plain"
    reason: Reason
    step_ms: Mapping[int, float] = field(default_factory=dict)
    plain_ms_per_token: float | None = None
    drafters: tuple[DrafterStanding, ...] = ()


class Governor(Protocol):
    """Decides each round. Called from the engine's one thread only."""

    def choose(self, now_s: float, situation: Situation) -> Choice: ...

    def observe(self, record: RoundRecord) -> None: ...

    def prefill_rows(self, decoding_slots: int) -> int:
        """How many rows of prompt a step may carry while others decode."""
        ...

    def speedup(self, drafter: str | None) -> MeasuredSpeedup: ...

    def standing(self) -> Standing: ...
