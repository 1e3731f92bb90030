"""Warm A/B on the loaded model: plain against speculative, interleaved, one request at a time.

Every repeat runs each prompt in every mode before the next prompt, and every other repeat in the
reverse order, so that a machine that drifts drifts for all of them. Slots forget between runs: no
mode profits from the cache of the one before.
"""

from __future__ import annotations

import platform
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from homespecd import __version__
from homespecd.decoding.params import SamplingParams
from homespecd.governor.protocol import SpeculationMode
from homespecd.worker.jobs import Run, run_one, shipped_that_fit, whole_number
from homespecd.worker.machine import describe_machine
from homespecd.worker.messages import GenerationRequest
from homespecd.worker.prompt_set import BenchPrompt, parse_prompts

if TYPE_CHECKING:
    from homespecd.worker.engine import Engine, Job


@dataclass(frozen=True)
class Arm:
    """One way to answer. `auto` is what clients get; `on` with one drafter shows that drafter."""

    mode: str
    speculation: SpeculationMode
    drafter: str | None = None


PLAIN = Arm("plain", SpeculationMode.OFF)
AUTO = Arm("speculative", SpeculationMode.AUTO)


def bench_job(options: Mapping[str, Any]) -> Job:
    """The job for a bench frame. Options: prompts, max_tokens, repeats, each_drafter, and seed
    (sampled at temperature 1 with that seed instead of greedily; the texts are the same in every
    mode all the same)."""

    def job(engine: Engine) -> dict[str, Any]:
        given = options.get("prompts")
        max_tokens = whole_number(options, "max_tokens", default=128, most=4096)
        left_out: list[str] = []
        if given is None:
            prompts, left_out = shipped_that_fit(engine, max_tokens=max_tokens)
        else:
            prompts = parse_prompts(given)
        repeats = whole_number(options, "repeats", default=3, most=100)
        seed = options.get("seed")
        if seed is not None:
            seed = whole_number(options, "seed", default=0, least=0, most=1 << 63)
        arms = [PLAIN, AUTO]
        if options.get("each_drafter"):
            arms += [
                Arm(f"only {name}", SpeculationMode.ON, name)
                for name, draft in engine.loaded.drafts.items()
                if draft.usable
            ]
        categories = tuple(dict.fromkeys(prompt.category for prompt in prompts))
        runs = _interleave(engine, prompts, arms, max_tokens=max_tokens, repeats=repeats, seed=seed)
        speculation = engine.snapshot()["speculation"]
        spec = engine.loaded.target.spec
        return {
            "model": engine.loaded.settings.name,
            "precision": engine.loaded.identity.precision,
            "provider": spec.provider,
            "threads": spec.threads,
            "machine": describe_machine(),
            "versions": {
                "homespecd": __version__,
                "python": platform.python_version(),
                **spec.versions,
            },
            "max_tokens": max_tokens,
            "repeats": repeats,
            "seed": seed,
            "left_out": left_out,
            "rows": [_row(name, arm, runs[name, arm]) for name in categories for arm in arms],
            "speedups": [
                _speedup(name, arm, runs[name, PLAIN], runs[name, arm])
                for name in categories
                for arm in arms
                if arm is not PLAIN
            ],
            "overall": [
                _overall(arm, [(runs[name, PLAIN], runs[name, arm]) for name in categories])
                for arm in arms
                if arm is not PLAIN
            ],
            "step_ms": speculation["step_ms"],
            "drafters": speculation["drafters"],
        }

    return job


def _interleave(
    engine: Engine,
    prompts: Sequence[BenchPrompt],
    arms: Sequence[Arm],
    *,
    max_tokens: int,
    repeats: int,
    seed: int | None,
) -> dict[tuple[str, Arm], list[Run]]:
    runs: dict[tuple[str, Arm], list[Run]] = {
        (p.category, arm): [] for p in prompts for arm in arms
    }
    # One round trip that is not counted: caches of the machine, not of the model.
    warm_up = _request(prompts[0], PLAIN, max_tokens=min(16, max_tokens), seed=seed)
    run_one(engine, warm_up, cold=True)
    for repeat in range(repeats):
        for prompt in prompts:
            for arm in arms if repeat % 2 == 0 else reversed(arms):
                request = _request(prompt, arm, max_tokens=max_tokens, seed=seed)
                run = run_one(engine, request, cold=True)
                runs[prompt.category, arm].append(run)
    return runs


def _request(
    prompt: BenchPrompt, arm: Arm, *, max_tokens: int, seed: int | None
) -> GenerationRequest:
    greedy = SamplingParams(temperature=0.0)
    return GenerationRequest(
        messages=prompt.messages,
        sampling=greedy if seed is None else SamplingParams(temperature=1.0, seed=seed),
        max_tokens=max_tokens,
        # Equal lengths in every mode and category: an early end would compare unlike work.
        ignore_eos=True,
        speculation=arm.speculation,
        drafter=arm.drafter,
    )


def _row(category: str, arm: Arm, runs: Sequence[Run]) -> dict[str, Any]:
    speeds = [_tok_s(run) for run in runs]
    reports = [run.report for run in runs]
    tokens = [run.account.completion_tokens for run in runs]

    def median(key: str) -> float:
        return round(float(statistics.median(report[key] for report in reports)), 3)

    return {
        "category": category,
        "mode": arm.mode,
        "drafter": runs[-1].account.drafter,
        "reason": runs[-1].account.reason.value,
        "decode_tok_s": round(statistics.median(speeds), 2),
        "decode_tok_s_min": round(min(speeds), 2),
        "decode_tok_s_max": round(max(speeds), 2),
        "ttft_ms": median("ttft_ms"),
        "ttft_ms_min": round(min(report["ttft_ms"] for report in reports), 3),
        "ttft_ms_max": round(max(report["ttft_ms"] for report in reports), 3),
        "rounds": (rounds := median("rounds")),
        "draft_tokens_proposed": median("draft_tokens_proposed"),
        "draft_tokens_accepted": median("draft_tokens_accepted"),
        # Of the medians, so that the row agrees with itself: runs differ in their decisions.
        "acceptance_length": round(statistics.median(tokens) / rounds, 3),
        "draft_ms": median("draft_ms"),
        "verify_ms": median("verify_ms"),
        "peak_memory_bytes": max(report["peak_memory_bytes"] for report in reports),
    }


def _speedup(category: str, arm: Arm, plain: Sequence[Run], other: Sequence[Run]) -> dict[str, Any]:
    """Pair by pair, in the order they ran: what drifts between pairs cancels within one."""
    ratios = _ratios(plain, other)
    return {
        "category": category,
        "mode": arm.mode,
        "speedup": round(statistics.median(ratios), 3),
        "speedup_min": round(min(ratios), 3),
        "speedup_max": round(max(ratios), 3),
        "identical": all(a.tokens == b.tokens for a, b in zip(plain, other, strict=True)),
    }


def _overall(arm: Arm, pairs: Sequence[tuple[Sequence[Run], Sequence[Run]]]) -> dict[str, Any]:
    """All categories alike: the geometric mean of their speed-ups, and the least of them."""
    medians = [statistics.median(_ratios(plain, other)) for plain, other in pairs]
    return {
        "mode": arm.mode,
        "speedup": round(statistics.geometric_mean(medians), 3),
        "speedup_least": round(min(medians), 3),
    }


def _ratios(plain: Sequence[Run], other: Sequence[Run]) -> list[float]:
    return [_tok_s(b) / _tok_s(a) for a, b in zip(plain, other, strict=True)]


def _tok_s(run: Run) -> float:
    """Decoding speed; an answer of a single round counts from its start."""
    if run.account.decode_tok_s is not None:
        return run.account.decode_tok_s
    elapsed_s = run.account.ended_s - run.account.started_s
    return run.account.completion_tokens / max(elapsed_s, 1e-9)
