"""`python -m bench.governor`: is the governor ever slower than plain, and how near to the best?

On the real model and the shipped prompts, greedy, all arms on one loaded model in one process and
in turns. A ratio is taken within a turn, between neighbours; what is printed is the median of the
ratios and their quartiles, and against the bar also whether a miss is more than noise (a bootstrap
interval of the median). Speeds are those of decoding, from an answer's first token to its last,
with everything that happens in between (a draft that reads the prompt, say).

    auto / plain   per category, at least 0.98
    auto / best    against the drafter and k that turn out best for the category, at least 0.90
    clients        1, 2 and 4 at once: all tokens per second against taking turns, at least 1.0;
                   a client's time per token against the mean, at most 1.3, and against what it is
                   in the same company if nobody speculates, at most 1.2 of two and 1.1 of four

Sections: lookup (int4 target, n-gram), unseen (the same with other texts of the same kinds, each
answered as if it were the first after the shipped ones), bad (a cheap draft that is never right),
slow (the same model at fp32 as draft: always right, never worth it), fp32 (its int4 self and
n-gram as drafters), clients. A bad or slow draft must end as slower_than_plain. Each section has
a share of the time of its own, and the JSON file has every section that is complete.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from bench.clients import NGRAM, compare_clients
from bench.drafts import bad_draft
from bench.inprocess import AUTO, PLAIN, Arm, fixed, open_engine
from bench.turns import CACHE, Limits, Ratio, ms_per_token, request_for, smollm2
from homespecd.cli.demo import model_file
from homespecd.worker.jobs import run_one
from homespecd.worker.machine import describe_machine
from homespecd.worker.messages import DrafterSettings
from homespecd.worker.prompt_set import BenchPrompt, parse_prompts, shipped_prompts

WIDTHS = (2, 4, 8, 16)
LEAST_OF_PLAIN, LEAST_OF_BEST = 0.98, 0.90


def main() -> int:
    parser = argparse.ArgumentParser(
        prog="python -m bench.governor",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--tokens", type=int, default=128)
    parser.add_argument("--minutes", type=float, default=25.0, help="for all sections that run")
    parser.add_argument("--turns", type=int, default=12, help="at most so many in a section")
    parser.add_argument("--threads", type=int, default=0, help="0: what this process may use")
    parser.add_argument("--only", choices=SECTIONS, action="append", help="may be repeated")
    parser.add_argument("--json", type=Path, help="write it there, section by section")
    arguments = parser.parse_args()
    names = arguments.only or list(SECTIONS)
    # Whoever asks for a few sections gets all of the time for them.
    scale = 1.0 / sum(SHARES[name] for name in names)
    limits = Limits(arguments.tokens, arguments.minutes * scale, arguments.turns, arguments.threads)
    console = Console(width=110)
    console.print(f"{describe_machine()} · {limits.tokens} tokens an answer")
    results: dict[str, Any] = {"machine": describe_machine(), "tokens": limits.tokens}
    misses: list[str] = []
    for name in names:
        began_s = time.monotonic()
        results[name] = SECTIONS[name](limits, console)
        results[name]["load_average"] = os.getloadavg()[0]
        console.print(f"{name}: {time.monotonic() - began_s:.0f} s · load {os.getloadavg()[0]:.1f}")
        found = results[name]["misses"]
        console.print("\n".join(f"  {line}" for line in found) or "  every bar is met", end="\n\n")
        misses += found
        if arguments.json:
            arguments.json.write_text(json.dumps(results, indent=1), encoding="utf-8")
    return 1 if any("within noise" not in line for line in misses) else 0


def lookup(limits: Limits, console: Console) -> dict[str, Any]:
    target = smollm2("int4")
    arms = [fixed("ngram", k) for k in WIDTHS]
    return _against(limits, console, "lookup", target, [NGRAM], arms, share=SHARES["lookup"])


def unseen(limits: Limits, console: Console) -> dict[str, Any]:
    texts = Path(__file__).with_name("other_texts.json").read_text("utf-8")
    return _against(
        limits,
        console,
        "unseen",
        smollm2("int4"),
        [NGRAM],
        [fixed("ngram", k) for k in WIDTHS],
        share=SHARES["unseen"],
        prompts=parse_prompts(json.loads(texts)),
    )


def bad(limits: Limits, console: Console) -> dict[str, Any]:
    return _useless(limits, console, "bad", bad_draft(model_file(), CACHE))


def slow(limits: Limits, console: Console) -> dict[str, Any]:
    return _useless(limits, console, "slow", smollm2("fp32"))


def _useless(limits: Limits, console: Console, name: str, bundle: Path) -> dict[str, Any]:
    """A draft that is to be given up."""
    draft, target = _model_draft(name, bundle), smollm2("int4")
    return _against(limits, console, name, target, [draft], [], share=SHARES[name], given_up=name)


def fp32(limits: Limits, console: Console) -> dict[str, Any]:
    drafters = [NGRAM, _model_draft("int4", smollm2("int4"))]
    arms = [fixed("ngram", k) for k in WIDTHS] + [fixed("int4", k) for k in WIDTHS if k <= 8]
    # Three times as slow and twice the arms: shorter answers, to stay within the time.
    limits = replace(limits, tokens=max(2, limits.tokens * 2 // 3))
    return _against(limits, console, "fp32", smollm2("fp32"), drafters, arms, share=SHARES["fp32"])


def _against(
    limits: Limits,
    console: Console,
    title: str,
    target: Path,
    drafters: Sequence[DrafterSettings],
    arms: Sequence[Arm],
    *,
    share: float,
    given_up: str | None = None,
    prompts: Sequence[BenchPrompt] = (),
) -> dict[str, Any]:
    """given_up: a drafter that must end as slower than plain. prompts: to be answered by who has
    only answered the shipped ones; without, these are what is asked."""
    shipped = shipped_prompts()
    unseen, prompts = bool(prompts), prompts or shipped
    learned: dict[str, Any] | None = None
    # Plain and auto at either end, so that each turn has two pairs of neighbours.
    order = [PLAIN, AUTO, *arms, AUTO, PLAIN]
    times: dict[tuple[str, str], list[float]] = {}
    texts: dict[str, set[tuple[int, ...]]] = {}
    speculated: dict[str, list[float]] = {}
    with open_engine(target, drafters, threads=limits.threads) as (engine, board):

        def answer(prompt: BenchPrompt, arm: Arm) -> float:
            board.use(arm)
            if learned is not None and arm is AUTO:
                board.go_back_to(learned)
            run = run_one(engine, request_for(prompt, arm, limits.tokens), cold=True)
            texts.setdefault(prompt.category, set()).add(run.tokens)
            if arm is AUTO:
                share = run.account.speculative_rounds / run.account.rounds
                speculated.setdefault(prompt.category, []).append(share)
            return ms_per_token(run)

        # Whatever was never measured is learned here, and this answer is not counted.
        answer(prompts[0], PLAIN)
        first_plain_ms = answer(prompts[0], PLAIN)
        first = first_plain_ms / answer(prompts[0], AUTO)
        if unseen:
            for prompt in (*shipped, *shipped):
                answer(prompt, AUTO)
            learned = board.to_record()
            texts.clear()
            speculated.clear()
        for turn in limits.turns(share):
            for prompt in prompts:
                for arm in order if turn % 2 == 0 else reversed(order):
                    times.setdefault((prompt.category, arm.name), []).append(answer(prompt, arm))
        standing = engine.snapshot()["speculation"]
        governor_us = board.seconds / max(1, board.rounds) * 1e6
    rows = [
        _row(prompt.category, times, arms)
        | {"speculated": statistics.median(speculated[prompt.category])}
        for prompt in prompts
    ]
    bars = (("auto_of_plain", LEAST_OF_PLAIN), ("auto_of_best", LEAST_OF_BEST))
    misses = [
        f"{title}, {row['category']}: {what} {row[what]}, {row[what].verdict(least)} ({least})"
        for row in rows
        for what, least in bars
        if row[what] is not None and row[what].verdict(least) != "met"
    ]
    misses += [f"{title}, {name}: texts differ" for name, kinds in texts.items() if len(kinds) > 1]
    states = {one["name"]: one["reason"] for one in standing["drafters"]}
    if given_up and states[given_up] != "slower_than_plain":
        misses.append(f"{title}: the draft is {states[given_up]}")
    _show(console, title, rows)
    console.print(
        f"first answer {first:.3f} × plain · drafters {states} · governor {governor_us:.0f} µs a "
        f"round · {standing['reason']}"
    )
    return {
        "first_answer_of_plain": first,
        "governor_us_per_round": governor_us,
        "speculation": standing,
        "rows": [
            row | {what: None if row[what] is None else row[what].to_json() for what, _ in bars}
            for row in rows
        ],
        "ms_per_token": {f"{category} · {arm}": own for (category, arm), own in times.items()},
        "misses": misses,
    }


def _row(
    category: str, times: Mapping[tuple[str, str], Sequence[float]], arms: Sequence[Arm]
) -> dict[str, Any]:
    plain, auto = times[category, PLAIN.name], times[category, AUTO.name]
    best = min(arms, key=lambda arm: statistics.median(times[category, arm.name]), default=None)
    of_best = None
    if best is not None:
        # Of the best of all there is: where no fixed choice beats plain, plain is it.
        own = times[category, best.name]
        twice = [ms for ms in own for _ in range(2)]  # a fixed arm runs once a turn, auto twice
        if statistics.median(own) > statistics.median(plain):
            best, twice = PLAIN, list(plain)
        of_best = Ratio.of([b / a for a, b in zip(auto, twice, strict=True)])
    return {
        "category": category,
        "plain_ms": statistics.median(plain),
        "auto_ms": statistics.median(auto),
        "auto_of_plain": Ratio.of([p / a for p, a in zip(plain, auto, strict=True)]),
        "best": best.name if best is not None else "",
        "auto_of_best": of_best,
    }


def _show(console: Console, title: str, rows: Sequence[Mapping[str, Any]]) -> None:
    table = Table(title=title)
    left = ("category", "best fixed")
    right = ("plain ms", "auto ms", "speculated", "auto ÷ plain")
    for column in (left[0], *right, left[1], "auto ÷ best"):
        table.add_column(column, justify="left" if column in left else "right", no_wrap=True)
    for row in rows:
        table.add_row(
            row["category"],
            f"{row['plain_ms']:.2f}",
            f"{row['auto_ms']:.2f}",
            f"{row['speculated']:.0%}",
            str(row["auto_of_plain"]),
            row["best"],
            "" if row["auto_of_best"] is None else str(row["auto_of_best"]),
        )
    console.print(table)


def _model_draft(name: str, bundle: Path) -> DrafterSettings:
    return DrafterSettings(name=name, kind="model", path=str(bundle), max_draft_tokens=8)


SHARES = {
    "lookup": 0.24,
    "unseen": 0.14,
    "bad": 0.1,
    "slow": 0.1,
    "fp32": 0.28,
    "clients": 0.14,
}
SECTIONS: dict[str, Callable[[Limits, Console], dict[str, Any]]] = {
    "lookup": lookup,
    "unseen": unseen,
    "bad": bad,
    "slow": slow,
    "fp32": fp32,
    "clients": lambda limits, console: compare_clients(limits, console, share=SHARES["clients"]),
}


if __name__ == "__main__":
    sys.exit(main())
