"""`python -m bench.providers`: what a step costs by rows, on each provider that is installed.

The real model at each precision, on the CPU provider and on the one that "auto" takes (`make
bench-providers` runs it in OpenVINO's environment). The curve is the one that the governor prices
blocks by: ms for a step over so many rows at 256 tokens of context. All arms of a precision take
turns, step by step; what is printed is the median, and below it the time of all cores together
(mean) and the least, which a busy machine moves less. Then how far blocks are from single steps,
what prompts cost, and how many of the provider's greedy tokens are not the CPU's own choice.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import psutil  # type: ignore[import-untyped]
from rich.console import Console
from rich.table import Table

from bench.drafts import imported
from bench.turns import CACHE
from homespecd.bundle.precision import PRECISIONS
from homespecd.cli.demo import model_file
from homespecd.runtime.open import open_model
from homespecd.runtime.providers import ProviderRequest
from homespecd.runtime.step import KVCache, Model, Rows, whole
from homespecd.worker.checks import compare, logits_in_blocks

WIDTHS = (1, 2, 4, 8, 16)
CONTEXT = 256
PREFILL_ROWS = 64
GREEDY_TOKENS = 64


@dataclass
class Arm:
    """One model on one provider, and what its steps took."""

    model: Model
    load_s: float
    taken_bytes: int
    cache: KVCache
    steps_ms: dict[int, list[float]] = field(default_factory=dict)
    work_ms: dict[int, float] = field(default_factory=dict)
    prefill_ms: float = 0.0

    @property
    def name(self) -> str:
        spec = self.model.spec
        return f"{spec.provider} ({spec.layout})"

    def step_ms(self, tokens: Sequence[int], *, logits_from: int = 0) -> float:
        began_s = time.perf_counter()
        self.model.step([Rows(self.cache, tokens, logits_from)])
        return (time.perf_counter() - began_s) * 1000.0


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m bench.providers", description=__doc__)
    parser.add_argument("--repeats", type=int, default=30, help="steps of each width")
    parser.add_argument("--threads", type=int, default=0, help="0: what this process may use")
    parser.add_argument("--only", choices=PRECISIONS, action="append", help="may be repeated")
    arguments = parser.parse_args()
    console = Console(highlight=False)
    for precision in arguments.only or PRECISIONS:
        folder = imported(model_file(), CACHE / "providers", name="smollm2", precision=precision)
        with loaded(folder, arguments.threads) as arms:
            tokens = some_tokens(arms[0].model.spec.vocab_size, CONTEXT)
            for arm in arms:
                prefill(arm, tokens)
            for _ in range(arguments.repeats):
                turn(arms, tokens)
            console.print(curve(precision, arms))
            for arm in arms:
                console.print(described(arm, arms[0].model, tokens))
    return 0


@contextmanager
def loaded(folder: Path, threads: int) -> Iterator[list[Arm]]:
    """The model on the CPU provider and, where another is installed, on that."""
    arms: list[Arm] = []
    try:
        for provider in ("cpu", "auto"):
            before_bytes, began_s = psutil.Process().memory_info().rss, time.perf_counter()
            model = open_model(
                folder,
                provider=ProviderRequest(provider),
                threads=threads,
                context=CONTEXT * 2,
                lanes=1,
            )
            load_s = time.perf_counter() - began_s
            taken_bytes = psutil.Process().memory_info().rss - before_bytes
            arms.append(Arm(model, load_s, taken_bytes, model.new_cache()))
            if provider == "auto" and model.spec.provider == "cpu":
                arms.pop().model.close()
        yield arms
    finally:
        for arm in arms:
            arm.model.close()


def some_tokens(vocab_size: int, count: int) -> list[int]:
    return [int(one) for one in np.random.default_rng(0).integers(0, vocab_size, count)]


def prefill(arm: Arm, tokens: Sequence[int]) -> None:
    """Fill the cache; the second time is measured."""
    for _ in range(2):
        arm.cache.rewind_to(0)
        chunks = [tokens[i : i + PREFILL_ROWS] for i in range(0, len(tokens), PREFILL_ROWS)]
        arm.prefill_ms = sum(arm.step_ms(one, logits_from=len(one)) for one in chunks)


def turn(arms: Sequence[Arm], tokens: Sequence[int]) -> None:
    """One step of each width on each arm, from the same past."""
    for rows in WIDTHS:
        for arm in arms:
            began_s = time.process_time()
            arm.steps_ms.setdefault(rows, []).append(arm.step_ms(tokens[:rows]))
            worked_ms = (time.process_time() - began_s) * 1000.0
            arm.work_ms[rows] = arm.work_ms.get(rows, 0.0) + worked_ms
            arm.cache.rewind_to(CONTEXT)


def curve(precision: str, arms: Sequence[Arm]) -> Table:
    table = Table(title=f"{precision}: ms for a step over so many rows")
    table.add_column("")
    for rows in WIDTHS:
        table.add_column(str(rows), justify="right")
    for arm in arms:
        medians = [statistics.median(arm.steps_ms[rows]) for rows in WIDTHS]
        table.add_row(arm.name, *(f"{one:.1f}" for one in medians))
        table.add_row("  relative", *(f"{one / medians[0]:.2f}" for one in medians))
        work = [arm.work_ms[rows] / len(arm.steps_ms[rows]) for rows in WIDTHS]
        table.add_row("  of CPU", *(f"{one:.1f}" for one in work))
        table.add_row("  least", *(f"{min(arm.steps_ms[rows]):.1f}" for rows in WIDTHS))
    return table


def described(arm: Arm, on_cpu: Model, tokens: Sequence[int]) -> str:
    exactness = compare(arm.model, tokens[:96], width=9)
    spec = arm.model.spec
    parts = [
        f"loaded in {arm.load_s:.1f} s, {arm.taken_bytes >> 20} MiB",
        f"{CONTEXT} tokens of prompt {arm.prefill_ms:.0f} ms",
        f"blocks: {'bit-identical' if spec.width_invariant else 'not bit-identical'}, logits "
        f"{exactness.max_logit_diff:.1g} apart, {exactness.near_tie_flips} of {exactness.rows} "
        f"tokens differ, {'' if exactness.block_causal else 'not '}block-causal",
    ]
    if arm.model is not on_cpu:
        prompt = list(tokens[:32])
        said = greedy(arm.model, prompt)
        own = logits_in_blocks(on_cpu, [*prompt, *said[:-1]], [PREFILL_ROWS])
        other = own[len(prompt) - 1 :].argmax(axis=1) != np.array(said)
        parts.append(f"{int(other.sum())} of {len(said)} greedy tokens are not the CPU's")
    if spec.layout_reason:
        parts.append(spec.layout_reason)
    return f"{arm.name}: " + "; ".join(parts)


def greedy(model: Model, prompt: Sequence[int]) -> list[int]:
    cache, new = model.new_cache(), list(prompt)
    said: list[int] = []
    while len(said) < GREEDY_TOKENS:
        (logits,) = model.step([Rows(cache, new, len(new) - 1)])
        said.append(int(whole(logits)[-1].argmax()))
        new = said[-1:]
    return said


if __name__ == "__main__":
    raise SystemExit(main())
