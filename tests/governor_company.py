"""Several answers at once on a simulated machine: every step carries the rows of all.

As in `governor_sim`, what is right at each position is laid down beforehand. An answer that is over
begins again under a new number, so that the company stays the same as long as it is looked at.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass, field

from homespecd.governor.protocol import RoundRecord, Situation, SpeculationMode
from tests.governor_answers import Answer, Drafting
from tests.governor_machine import Machine
from tests.governor_sim import Decider


@dataclass
class Client:
    """One of them: where it is in its answer, and what it has had."""

    answer: Answer
    request: int
    position: int = 0
    read: dict[str, int] = field(default_factory=dict)
    tokens: int = 0
    rows: int = 0


@dataclass(frozen=True)
class Together:
    """tokens: of each client. ms: of everything."""

    tokens: Sequence[int]
    ms: float

    @property
    def ms_per_token(self) -> list[float]:
        return [self.ms / one for one in self.tokens]


def decode_together(
    machine: Machine,
    drafters: Sequence[Drafting],
    answers: Sequence[Answer],
    decider: Decider,
    *,
    steps: int,
    learning: int = 0,
    seed: int = 1,
) -> Together:
    """So many steps, of which the first ones are not counted."""
    rng = random.Random(seed)
    clients = [Client(answer, number) for number, answer in enumerate(answers)]
    now_s, spent_ms, requests = 0.0, 0.0, len(clients)
    by_name = {one.name: one for one in drafters}
    for step in range(steps):
        if step == learning:
            spent_ms = 0.0
            for client in clients:
                client.tokens = 0
        for client in clients:
            client.rows = 1
        rounds = []
        for client in clients:
            answer, position = client.answer, client.position
            context = answer.prompt + position
            situation = Situation(
                request=client.request,
                mode=SpeculationMode.AUTO,
                context=context,
                catch_up=0,
                room=len(answer.domains) - position,
                offers=answer.offers(position),
                other_rows=sum(one.rows for one in clients if one is not client),
                matches=answer.matches(position),
                unread=answer.unread(position, drafters, client.read),
                beginnings=answer.beginnings,
            )
            choice = decider.choose(now_s, situation)
            accepted, draft_ms = 0, 0.0
            if choice.drafter is not None:
                accepted = answer.laid[choice.drafter].accepted(position, choice.k)
                unread = situation.unread.get(choice.drafter, 0)
                draft_ms = by_name[choice.drafter].ms(choice.k, unread)
                client.read[choice.drafter] = context + accepted
                client.rows = 1 + choice.k
            rounds.append((client, situation, choice, accepted, draft_ms))
        total = sum(client.rows for client in clients)
        step_ms = machine.step_ms(total, rounds[0][1].context, 0, 0)
        all_ms = step_ms + sum(draft_ms for *_, draft_ms in rounds) + machine.overhead_ms
        seen = machine.noise(rng, step)
        now_s += all_ms * seen / 1e3
        spent_ms += all_ms
        for client, situation, choice, accepted, draft_ms in rounds:
            committed = min(accepted + 1, situation.room)
            decider.observe(
                RoundRecord(
                    request=client.request,
                    at_s=now_s,
                    choice=choice,
                    context=situation.context,
                    catch_up=0,
                    rows=client.rows,
                    total_rows=total,
                    lanes=len(clients),
                    proposed=choice.k,
                    accepted=accepted,
                    committed=committed,
                    draft_ms=draft_ms,
                    step_ms=step_ms * seen,
                    wall_ms=all_ms * seen,
                    total_proposed=total - len(clients),
                )
            )
            client.tokens += committed
            client.position += committed
            if client.position >= len(client.answer.domains):
                client.position, client.read = 0, {}
                client.request, requests = requests, requests + 1
    return Together([client.tokens for client in clients], spent_ms)
