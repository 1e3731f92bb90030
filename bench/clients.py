"""1, 2 and 4 clients at once against taking turns, and how even they fare.

Alike: everyone chats. Mixed: other categories, whose answers are not equally easy to guess, so that
even alone one client's tokens take longer than another's. Copying: a chat beside those who copy,
and of half their length, so that it is in company to its end.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Sequence
from typing import Any, NamedTuple

from rich.console import Console
from rich.table import Table

from bench.inprocess import AUTO, PLAIN, Arm, Switchboard, open_engine
from bench.turns import Limits, Ratio, ms_per_token, request_for, smollm2
from homespecd.worker.engine import Engine
from homespecd.worker.jobs import Run, run_together
from homespecd.worker.messages import DrafterSettings
from homespecd.worker.prompt_set import BenchPrompt, shipped_prompts

# What a client's time per token may be: of the mean, and of what it is there if nobody speculates.
LEAST_OF_TURNS, MOST_OF_MEAN = 1.0, 1.3
MOST_OF_OWN = {1: 1.02, 2: 1.22, 4: 1.12}  # by clients
NGRAM = DrafterSettings(name="ngram", kind="ngram", max_draft_tokens=16)


# A chat beside others who copy: who has most to gain from speculation, and who has to wait for it.
COPYING = (("chat", "code edit"), ("chat", "question", "code edit", "list copy"))


class Ask(NamedTuple):
    """What one client asks for."""

    prompt: BenchPrompt
    tokens: int


def compare_clients(limits: Limits, console: Console, *, share: float) -> dict[str, Any]:
    """Every case in turns, until the share of the time is used up."""
    prompts = shipped_prompts()
    alike = [_chat(topic) for topic in ("a bicycle", "a piano", "a boat", "a telescope")]
    by_name = {one.category: one for one in prompts}
    by_name = {one.category: one for one in prompts}
    asked_of = {("alike", n): alike[:n] for n in (1, 2, 4)}
    asked_of |= {("mixed", n): _mixed(prompts, n) for n in (2, 4)}
    cases = {case: [Ask(one, limits.tokens) for one in of] for case, of in asked_of.items()}
    for names in COPYING:
        chat, *others = (by_name[one] for one in names)
        asks = [Ask(chat, limits.tokens // 2), *(Ask(one, limits.tokens) for one in others)]
        cases["copying", len(names)] = asks
    found: dict[tuple[str, int], dict[str, list[float]]] = {case: {} for case in cases}
    misses: list[str] = []
    with open_engine(smollm2("int4"), [NGRAM], slots=4, threads=limits.threads) as (engine, board):
        for category in range(len(prompts)):  # what was never measured is learned here …
            _together(engine, board, AUTO, [Ask(prompts[category], limits.tokens)])
        for asked in cases.values():  # … and of company here
            _together(engine, board, AUTO, asked)
        for _ in limits.turns(share):
            for case, asked in cases.items():
                _clients_turn(engine, board, case, asked, found[case], misses)
    table = Table(title="clients")
    for column in (
        "clients",
        "together ÷ turns",
        "÷ plain together",
        "slowest ÷ mean",
        "÷ its plain",
    ):
        table.add_column(column, justify="left" if column == "clients" else "right")
    rows = {}
    for case, own in found.items():
        name = f"{case[1]} {case[0]}"
        ratios = {what: Ratio.of(values) for what, values in own.items()}
        rows[name] = {what: ratio.to_json() for what, ratio in ratios.items()}
        table.add_row(name, *(str(ratio) for ratio in ratios.values()))
        verdict = ratios["of_turns"].verdict(LEAST_OF_TURNS)
        if verdict != "met" and case[1] > 1:
            misses.append(f"{name}: together {ratios['of_turns']} of taking turns, {verdict}")
        if ratios["slowest_of_mean"].median > MOST_OF_MEAN and case[0] != "copying":
            misses.append(f"{name}: the slowest client {ratios['slowest_of_mean']} of the mean")
        if ratios["of_own_plain"].median > MOST_OF_OWN[case[1]]:
            misses.append(
                f"{name}: a client is held up, {ratios['of_own_plain']} of its plain time"
            )
    console.print(table)
    return {"rows": rows, "misses": misses}


def _clients_turn(
    engine: Engine,
    board: Switchboard,
    case: tuple[str, int],
    asked: Sequence[Ask],
    found: dict[str, list[float]],
    misses: list[str],
) -> None:
    shared_s, shared = _together(engine, board, AUTO, asked)
    turns = [_together(engine, board, AUTO, [one]) for one in asked]
    plain_s, plain = _together(engine, board, PLAIN, asked)
    alone = [runs[0].tokens for _, runs in turns]
    if not alone == [run.tokens for run in shared] == [run.tokens for run in plain]:
        misses.append(f"{case[1]} {case[0]}: texts differ")
    own = [ms_per_token(run) for run in shared]
    own_plain = [ms_per_token(run) for run in plain]
    for what, value in (
        ("of_turns", sum(seconds for seconds, _ in turns) / shared_s),
        ("of_plain", plain_s / shared_s),
        ("slowest_of_mean", max(own) / statistics.fmean(own)),
        ("of_own_plain", max(a / b for a, b in zip(own, own_plain, strict=True))),
    ):
        found.setdefault(what, []).append(value)


def _together(
    engine: Engine, board: Switchboard, arm: Arm, asked: Sequence[Ask]
) -> tuple[float, list[Run]]:
    """Seconds until everyone has their answer, prompts included."""
    board.use(arm)
    began_s = time.perf_counter()
    requests = [request_for(one.prompt, arm, one.tokens) for one in asked]
    runs = run_together(engine, requests, cold=True)
    return time.perf_counter() - began_s, runs


def _mixed(prompts: Sequence[BenchPrompt], count: int) -> list[BenchPrompt]:
    """The first and the last categories: prose and copies."""
    return [*prompts[: count // 2], *prompts[-(count - count // 2) :]]


def _chat(topic: str) -> BenchPrompt:
    question = f"What should I look at before I buy {topic}? Explain in a few paragraphs."
    return BenchPrompt(topic, ({"role": "user", "content": question},))
