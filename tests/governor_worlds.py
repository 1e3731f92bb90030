"""Simulated worlds, a governor for each, and how its answers compare with plain and fixed ones."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from homespecd.governor.measured import DrafterSpec, MeasuredGovernor
from tests.governor_answers import Draft, Drafting, answers
from tests.governor_machine import Machine
from tests.governor_sim import Fixed, Outcome, World, fixed_policies

PROBE_BUDGET = 0.02
CHAT = ("chat", (("chat", 150),))
CATEGORIES = [(name, ((name, 150),)) for name in ("chat", "summary", "edit", "copy")]

BAD = Draft("draft", {"": 0.03}, token_ms=2.4, read_row_ms=0.2)
GOOD = Draft("draft", {"": 0.85}, token_ms=7.25, read_row_ms=0.4)

# Answers before these are the first ones after a load: they learn.
LEARNING = 4

Kinds = Sequence[tuple[str, Sequence[tuple[str, int]]]]


def world(
    machine: Machine,
    drafters: Sequence[Drafting],
    kinds: Kinds,
    *,
    prompt: int = 200,
    foreseen: bool = True,
) -> World:
    made = answers(drafters, kinds, seed=7, prompt=prompt)
    return World(machine, drafters, made, foreseen=foreseen)


def governor_for(
    world: World,
    *,
    curve: bool = True,
    remembered: Mapping[str, Any] | None = None,
    min_speedup: float = 1.0,
    probe_budget: float = PROBE_BUDGET,
) -> MeasuredGovernor:
    return MeasuredGovernor(
        [DrafterSpec(one.name, one.max_k) for one in world.drafters],
        min_speedup=min_speedup,
        probe_budget=probe_budget,
        step_ms=world.machine.curve if curve else None,
        remembered=remembered,
    )


def probed(outcome: Outcome) -> float:
    """The share of the time that looks took."""
    return outcome.probe_ms / outcome.seen_ms


def times_plain(world: World, outcome: Outcome, first: int, last: int) -> float:
    """How many times as fast as plain the answers `first` … `last` - 1 were."""
    return sum(world.run(Fixed()).answers[first:last]) / sum(outcome.answers[first:last])


def spent(world: World, outcome: Outcome, category: str, first: int = LEARNING) -> float:
    return sum(
        ms
        for index, ms in enumerate(outcome.answers)
        if index >= first and world.answers[index].category == category
    )


def against_plain(world: World, outcome: Outcome, category: str, first: int = LEARNING) -> float:
    """How many times faster than plain, in a category, once it has been learned."""
    plain = world.run(Fixed())
    return spent(world, plain, category, first) / spent(world, outcome, category, first)


def regret(world: World, outcome: Outcome, category: str, first: int = LEARNING) -> float:
    """How much longer than with the best fixed drafter and k, found in hindsight."""
    best = min(
        spent(world, world.run(policy), category, first)
        for policy in fixed_policies(world.drafters)
    )
    return spent(world, outcome, category, first) / best - 1
