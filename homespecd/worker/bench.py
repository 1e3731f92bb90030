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
from homespecd.worker.jobs import Run, run_one, whole_number
from homespecd.worker.machine import describe_machine
from homespecd.worker.messages import GenerationRequest
from homespecd.worker.prompt_set import BenchPrompt, parse_prompts, shipped_prompts

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
    """The job for a bench frame. Options: prompts, max_tokens, repeats, each_drafter, seed."""

    def job(engine: Engine) -> dict[str, Any]:
        given = options.get("prompts")
        prompts = shipped_prompts() if given is None else parse_prompts(given)
        max_tokens = whole_number(options, "max_tokens", default=128, most=4096)
        repeats = whole_number(options, "repeats", default=3, most=100)
        arms = [PLAIN, AUTO]
        if options.get("each_drafter"):
            arms += [
                Arm(f"only {name}", SpeculationMode.ON, name)
                for name, draft in engine.loaded.drafts.items()
                if draft.usable
            ]
        runs = _interleave(engine, prompts, arms, max_tokens=max_tokens, repeats=repeats)
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
            "rows": [_row(p.category, arm, runs[p.category, arm]) for p in prompts for arm in arms],
            "speedups": [
                _speedup(p.category, arm, runs[p.category, PLAIN], runs[p.category, arm])
                for p in prompts
                for arm in arms
                if arm is not PLAIN
            ],
            "step_ms": engine.snapshot()["speculation"]["step_ms"],
        }

    return job


def _interleave(
    engine: Engine,
    prompts: Sequence[BenchPrompt],
    arms: Sequence[Arm],
    *,
    max_tokens: int,
    repeats: int,
) -> dict[tuple[str, Arm], list[Run]]:
    runs: dict[tuple[str, Arm], list[Run]] = {
        (p.category, arm): [] for p in prompts for arm in arms
    }
    # One round trip that is not counted: caches of the machine, not of the model.
    run_one(engine, _request(prompts[0], PLAIN, max_tokens=min(16, max_tokens)), cold=True)
    for repeat in range(repeats):
        for prompt in prompts:
            for arm in arms if repeat % 2 == 0 else reversed(arms):
                request = _request(prompt, arm, max_tokens=max_tokens)
                run = run_one(engine, request, cold=True)
                runs.setdefault((prompt.category, arm), []).append(run)
    return runs


def _request(prompt: BenchPrompt, arm: Arm, *, max_tokens: int) -> GenerationRequest:
    return GenerationRequest(
        messages=prompt.messages,
        sampling=SamplingParams(temperature=0.0),
        max_tokens=max_tokens,
        # Equal lengths in every mode and category: an early end would compare unlike work.
        ignore_eos=True,
        speculation=arm.speculation,
        drafter=arm.drafter,
    )


def _row(category: str, arm: Arm, runs: Sequence[Run]) -> dict[str, Any]:
    speeds = [_tok_s(run) for run in runs]
    reports = [run.report for run in runs]

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
        "acceptance_length": median("acceptance_length"),
        "draft_ms": median("draft_ms"),
        "verify_ms": median("verify_ms"),
        "peak_memory_bytes": max(report["peak_memory_bytes"] for report in reports),
    }


def _speedup(category: str, arm: Arm, plain: Sequence[Run], other: Sequence[Run]) -> dict[str, Any]:
    """Pair by pair, in the order they ran: what drifts between pairs cancels within one."""
    ratios = [_tok_s(b) / _tok_s(a) for a, b in zip(plain, other, strict=True)]
    return {
        "category": category,
        "mode": arm.mode,
        "speedup": round(statistics.median(ratios), 3),
        "speedup_min": round(min(ratios), 3),
        "speedup_max": round(max(ratios), 3),
        "identical": all(a.tokens == b.tokens for a, b in zip(plain, other, strict=True)),
    }


def _tok_s(run: Run) -> float:
    """Decoding speed; an answer of a single round counts from its start."""
    if run.account.decode_tok_s is not None:
        return run.account.decode_tok_s
    elapsed_s = run.account.ended_s - run.account.started_s
    return run.account.completion_tokens / max(elapsed_s, 1e-9)
