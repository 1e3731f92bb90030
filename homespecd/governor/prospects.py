"""What a round could be: the plain step, and the best block of every drafter with an offer.

It puts together what is known (costs, acceptance, how far each draft has read) for one situation,
and decides nothing.
"""

from __future__ import annotations

from dataclasses import dataclass

from homespecd.governor.choice import Block, Plain, best_block
from homespecd.governor.knowledge import UNREAD_FREE, Knowledge
from homespecd.governor.pair import Pair
from homespecd.governor.protocol import Situation
from homespecd.governor.requests import RequestState


@dataclass(frozen=True, slots=True)
class Prospect:
    """A drafter's best block, and what stands behind its promise.

    read_ms: what its draft must read first, if that is more than rides along for nothing.
    doubt: how unsure its acceptance is in this request, 0 … 1.
    """

    pair: Pair
    block: Block
    read_ms: float
    doubt: float


def plain_round(known: Knowledge, situation: Situation, state: RequestState, now_s: float) -> Plain:
    """The round without a proposal, for this slot and whoever shares the step."""
    others = situation.other_rows
    if not others:
        return Plain(known.plain_ms(1, situation.context, 1), 0.0)
    ms = known.plain_ms(1 + others, situation.context, state.lanes)
    return Plain(ms, min(known.requests.others_tokens(situation.request, now_s), float(others)))


def prospects(
    known: Knowledge, situation: Situation, state: RequestState, plain: Plain
) -> list[Prospect]:
    """One for each drafter that is known and has something to say; in the order of the offers."""
    usable: list[tuple[Pair, int]] = []
    for name, offer in situation.offers.items():
        pair = known.pairs.get(name)
        if pair is not None:
            k = min(offer, pair.spec.max_k, situation.room - 1)
            if k > 0:
                usable.append((pair, k))
    if not usable:
        return []
    base = 1 + situation.catch_up + situation.other_rows
    step_ms = known.steps.prices(
        first=base,
        last=base + max(k for _, k in usable),
        context=situation.context,
        lanes=state.lanes if situation.other_rows else 1,
    )
    token_ms = state.token_ms(plain.ms)
    remaining = known.requests.remaining(state)
    found = []
    for pair, k in usable:
        name = pair.spec.name
        running = state.acceptance_of(pair)
        unread = state.unread(name, situation.context)
        read_ms = pair.cost.catch_up(unread) if unread > UNREAD_FREE else 0.0
        block = best_block(
            drafter=name,
            accepted=running.expected(k, situation.matches.get(name)),
            draft_ms=pair.cost.price,
            step_ms=step_ms,
            row_ms=pair.row_ms,
            catch_up_ms=read_ms,
            horizon=max(1.0, min(situation.room, remaining * state.left_to(name, pair.left))),
            token_ms=token_ms,
            plain=plain,
        )
        found.append(Prospect(pair, block, read_ms, running.doubt))
    return found
