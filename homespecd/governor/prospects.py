"""What a round could be: the plain step, and the best block of every drafter with an offer.

It puts together what is known (costs, acceptance, how far each draft has read) for one situation,
and decides nothing.
"""

from __future__ import annotations

from dataclasses import dataclass

from homespecd.governor.choice import Block, Plain, best_block, paid_back
from homespecd.governor.fare import Saves
from homespecd.governor.knowledge import UNREAD_FREE, Knowledge
from homespecd.governor.pair import Pair
from homespecd.governor.protocol import Situation, SpeculationMode
from homespecd.governor.requests import Company
from homespecd.governor.running import RequestState, Use, fair_stretch

_ANYTHING = float("inf")

# The part of the price of reading that must have been lost before a draft whose worth in this kind
# of text is not known reads it (see `_waited`); and how many times the price one must be worth of
# which it is.
_RENT = 0.12
_MUST_SAVE, _SHOULD_SAVE = 1.2, 1.5
_UNRIVALLED = 0.9


@dataclass(frozen=True, slots=True)
class Prospect:
    """A drafter's best block, and what stands behind its promise.

    block: the best if nothing were at stake; playable: the best of those whose loss the request can
    bear, None where there is none. unpaid_ms: of what its draft must read first, the part that
    later blocks are to pay back.
    """

    pair: Pair
    block: Block
    playable: Block | None
    unpaid_ms: float


def plain_round(
    known: Knowledge, situation: Situation, state: RequestState, company: Company
) -> Plain:
    """The round without a proposal, for this slot and whoever shares the step."""
    others, context = situation.other_rows, situation.context
    if not others:
        return Plain(known.plain_ms(1, context, 1), 0.0)
    ms = known.plain_ms(1 + others, context, state.lanes)
    even_rows = max(2, 1 + others - company.proposed)
    even_ms = known.steps.price(rows=even_rows, context=context, lanes=state.lanes)
    fair_ms = fair_stretch(company.slots) * even_ms + company.ahead_ms
    return Plain(ms, min(company.tokens, float(others)), fair_ms)


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
    free = situation.mode is SpeculationMode.ON
    token_ms = state.token_ms(plain.ms)
    ahead = min(float(situation.room), state.remaining)
    found = []
    for pair, k in usable:
        name = pair.spec.name
        unread = situation.unread.get(name, 0)
        read_ms = pair.cost.catch_up(unread) if unread > UNREAD_FREE else 0.0
        use = state.use_of(pair)
        saves = use.saves if read_ms else None
        proven = saves is not None and _proven(
            saves, left=use.fare.left, rounds=ahead, price=read_ms / plain.ms
        )
        horizon = max(1.0, ahead * state.left_to(use))
        block, playable = best_block(
            drafter=name,
            outlook=use.acceptance.outlook(k, situation.matches.get(name)),
            draft_ms=pair.cost.price,
            step_ms=step_ms,
            row_ms=pair.row_ms,
            read_ms=read_ms,
            proven=proven,
            horizon=horizon,
            plain=plain,
            token_ms=token_ms,
            stake_ms=_ANYTHING if free else use.stake.rounds * plain.ms,
        )
        if playable is not None and read_ms:
            known_here = saves is not None and saves.here
            due = (proven or not known_here) and _waited(use, state, playable, read_ms, plain)
            playable = playable if due else None
        paid_ms = paid_back(read_ms, tokens=block.tokens, horizon=horizon)
        found.append(Prospect(pair, block, playable, read_ms - paid_ms))
    return found


def _proven(saves: Saves, *, left: float, rounds: float, price: float) -> bool:
    """Whether what a draft has saved so far says that reading will be worth its price, in rounds.

    What it did in other kinds of requests says less, and nothing where other drafters do the work.
    """
    if saves.here:
        return saves.rate * rounds >= _MUST_SAVE * price
    return left >= _UNRIVALLED and saves.rate * rounds >= _SHOULD_SAVE * price


def _waited(use: Use, state: RequestState, block: Block, read_ms: float, plain: Plain) -> bool:
    """Whether it is time that a draft reads this text, though others may yet take its work.

    As with renting or buying skis: what was lost by not having it must have come near the price;
    the more of the tokens others usually take, the nearer, if that is not always the same.
    """
    saved_ms = max(0.0, plain.ms - (block.ms / block.tokens))
    fare = use.fare
    lost_ms = (state.plain_rounds + 1) * saved_ms  # this round's included
    return lost_ms >= _RENT * fare.unsure * (1.0 - fare.left) * read_ms
