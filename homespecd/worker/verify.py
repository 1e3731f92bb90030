"""The exactness self-test that `homespecctl verify` runs on a loaded model.

Four questions, on the model as it is served: are a block's logits those of single steps, bit by bit;
does greedy text stay the same with speculation; does a row's logits ignore the rows after it; and is
a sampled, speculated token distributed as the target says.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import TYPE_CHECKING, Any

import numpy as np

from homespecd.decoding.params import SamplingParams
from homespecd.decoding.sampling import Sampler
from homespecd.decoding.verify import verify_block
from homespecd.errors import RequestError
from homespecd.governor.protocol import SpeculationMode
from homespecd.runtime.step import Rows
from homespecd.worker.checks import is_block_causal, logits_in_blocks
from homespecd.worker.jobs import run_one
from homespecd.worker.messages import GenerationRequest
from homespecd.worker.prepare import prompt_ids
from homespecd.worker.prompt_set import BenchPrompt, shipped_prompts

if TYPE_CHECKING:
    from homespecd.worker.engine import Engine, Job

WIDTHS = (2, 3, 4, 5, 6, 7, 8, 9, 16, 17, 64)
# Below this a fair sampler fails about once in a thousand runs.
CHI_SQUARE_P = 0.001
# Cells expected fewer times than this are pooled, as the chi-square approximation wants.
SMALLEST_CELL = 5.0


def verify_job(options: Mapping[str, Any]) -> Job:
    """The job for a verify frame. Options: max_tokens (per prompt), samples, seed."""
    max_tokens = int(options.get("max_tokens") or 96)
    samples = int(options.get("samples") or 4000)
    seed = int(options.get("seed") or 0)

    def job(engine: Engine) -> dict[str, Any]:
        if engine.loaded.target.spec.logits_last_only:
            raise RequestError("this export has logits for the last position only: nothing to verify")
        widths = _widths(engine)
        parity = _greedy_parity(engine, shipped_prompts(), max_tokens=max_tokens)
        chi_square = _chi_square(engine, samples=samples, seed=seed)
        bit_identical = widths["max_logit_diff"] == 0.0
        return {
            "model": engine.loaded.settings.name,
            "passed": bool(
                widths["block_causal"]
                and chi_square["p_value"] > CHI_SQUARE_P
                and (not bit_identical or parity["greedy_identical"] == parity["prompts"])
            ),
            "bit_identical": bit_identical,
            "chi_square": chi_square,
        } | widths | parity

    return job


def _widths(engine: Engine) -> dict[str, Any]:
    """Every block width against single steps, over the tokens of one real prompt."""
    target = engine.loaded.target
    tokens = _tokens(engine, shipped_prompts()[1])[: min(128, target.spec.context - 1)]
    single = logits_in_blocks(target, tokens, [1])
    largest, flips = 0.0, 0
    widths = [width for width in WIDTHS if width <= len(tokens)] + [len(tokens)]
    for width in widths:
        block = logits_in_blocks(target, tokens, [width])
        largest = max(largest, float(np.abs(single - block).max()))
        flips += int((single.argmax(axis=1) != block.argmax(axis=1)).sum())
    return {
        "widths": widths,
        "max_logit_diff": largest,
        "near_tie_flips": flips,
        "rows_compared": len(tokens) * len(widths),
        "block_causal": is_block_causal(target, tokens[:32]),
    }


def _greedy_parity(
    engine: Engine, prompts: Sequence[BenchPrompt], *, max_tokens: int
) -> dict[str, int]:
    """The same prompts plain and with speculation forced on: how many answers are the same ids."""
    identical = tokens = 0
    for prompt in prompts:
        plain, speculative = (
            run_one(
                engine,
                GenerationRequest(
                    messages=prompt.messages,
                    sampling=SamplingParams(temperature=0.0),
                    max_tokens=max_tokens,
                    ignore_eos=True,
                    speculation=mode,
                ),
                cold=True,
            )
            for mode in (SpeculationMode.OFF, SpeculationMode.ON)
        )
        identical += plain.tokens == speculative.tokens
        tokens += len(plain.tokens)
    return {"prompts": len(prompts), "tokens": tokens, "greedy_identical": identical}


def _chi_square(engine: Engine, *, samples: int, seed: int) -> dict[str, Any]:
    """Two tokens as a speculative round emits them, against the target's own probabilities.

    The draft is a distorted copy of the target (temperature 2.5 on its logits), so that proposals
    are accepted and rejected about equally often. top_k 8 keeps the pairs to 64 cells.
    """
    target = engine.loaded.target
    prompt = _tokens(engine, shipped_prompts()[0])[: target.spec.context - 2]
    cache = target.new_cache()
    target.step([Rows(cache, prompt[:-1], logits_from=len(prompt) - 1)]) if len(prompt) > 1 else None

    def sampler(temperature: float) -> Sampler:
        params = SamplingParams(temperature=temperature, top_k=8)
        return Sampler(params, vocab_size=engine.loaded.vocab_size, prompt_length=len(prompt))

    honest, distorted = sampler(1.0), sampler(2.5)

    @lru_cache(maxsize=None)
    def logits(*after: int) -> Any:
        """Logits [vocab] after the prompt and `after`."""
        cache.rewind_to(len(prompt) - 1)
        rows = [prompt[-1], *after]
        return np.array(target.step([Rows(cache, rows, logits_from=len(rows) - 1)])[0][0])

    rng = np.random.default_rng(seed)
    q = distorted.probabilities(logits(), prompt)
    p_first = honest.probabilities(logits(), prompt)
    p_second = lru_cache(maxsize=None)(
        lambda first: honest.probabilities(logits(first), [*prompt, first])
    )
    counts: dict[tuple[int, int], int] = {}
    for _ in range(samples):
        proposed = distorted.sample(q, rng)
        verdict = verify_block(
            lambda i, x=proposed: p_first if i == 0 else p_second(x), (proposed,), q[None, :], rng
        )
        pair = (
            (proposed, verdict.final)
            if verdict.accepted
            else (verdict.final, honest.sample(p_second(verdict.final), rng))
        )
        counts[pair] = counts.get(pair, 0) + 1
    expected = {
        (int(a), int(b)): samples * p_first[a] * p_second(int(a))[b]
        for a in np.flatnonzero(p_first)
        for b in np.flatnonzero(p_second(int(a)))
    }
    statistic, dof = pooled_chi_square(counts, expected)
    return {
        "statistic": statistic,
        "dof": dof,
        "p_value": chi_square_tail(statistic, dof),
        "samples": samples,
    }


def pooled_chi_square(
    counts: Mapping[tuple[int, int], int], expected: Mapping[tuple[int, int], float]
) -> tuple[float, int]:
    """Statistic and degrees of freedom, rare cells pooled. An impossible pair is infinitely bad."""
    if any(pair not in expected for pair in counts):
        return math.inf, 1
    cells, rare_count, rare_expected = [], 0.0, 0.0
    for pair, mean in expected.items():
        if mean < SMALLEST_CELL:
            rare_count += counts.get(pair, 0)
            rare_expected += mean
        else:
            cells.append((counts.get(pair, 0), mean))
    if rare_expected >= SMALLEST_CELL:
        cells.append((rare_count, rare_expected))
    statistic = sum((count - mean) ** 2 / mean for count, mean in cells)
    return float(statistic), max(1, len(cells) - 1)


def chi_square_tail(statistic: float, dof: int) -> float:
    """P(χ² ≥ statistic), by Wilson and Hilferty's cube-root normal approximation (1931).

    Good to about 1e-3 from three degrees of freedom on, which is all a pass mark needs.
    """
    if math.isinf(statistic):
        return 0.0
    spread = 2.0 / (9.0 * dof)
    z = ((statistic / dof) ** (1.0 / 3.0) - (1.0 - spread)) / math.sqrt(spread)
    return 0.5 * math.erfc(z / math.sqrt(2.0))


def _tokens(engine: Engine, prompt: BenchPrompt) -> list[int]:
    return list(
        prompt_ids(
            GenerationRequest(messages=prompt.messages),
            tokenizer=engine.loaded.tokenizer,
            template=engine.loaded.template,
            context=engine.loaded.target.spec.context,
        )
    )
