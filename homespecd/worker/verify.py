"""The exactness self-test that `homespecctl verify` runs on a loaded model.

Four questions, on the model as it is served: are a block's logits those of single steps, bit by
bit; does greedy text stay the same with speculation; does a row's logits ignore the rows after it;
and is a sampled, speculated token distributed as the target says.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

import numpy as np

from homespecd.decoding.params import SamplingParams
from homespecd.errors import RequestError
from homespecd.governor.protocol import SpeculationMode
from homespecd.worker.checks import is_block_causal, logits_in_blocks
from homespecd.worker.chi_square import speculated_pairs
from homespecd.worker.jobs import run_one, shipped_that_fit, whole_number
from homespecd.worker.messages import GenerationRequest
from homespecd.worker.prepare import prompt_ids
from homespecd.worker.prompt_set import BenchPrompt

if TYPE_CHECKING:
    from homespecd.worker.engine import Engine, Job

WIDTHS = (2, 3, 4, 5, 6, 7, 8, 9, 16, 17, 64)
# A fair sampler falls below this about once in a thousand runs.
CHI_SQUARE_P = 0.001


def verify_job(options: Mapping[str, Any]) -> Job:
    """The job for a verify frame. Options: max_tokens (per prompt), samples, seed."""
    max_tokens = whole_number(options, "max_tokens", default=96, most=4096)
    samples = whole_number(options, "samples", default=4000, most=1_000_000)
    seed = whole_number(options, "seed", default=1, most=1 << 31)

    def job(engine: Engine) -> dict[str, Any]:
        target = engine.loaded.target
        if target.spec.logits_last_only:
            raise RequestError(
                "this export has logits for the last position only: there are no blocks to verify"
            )
        prompts, left_out = shipped_that_fit(engine, max_tokens=max_tokens)
        widths = _widths(engine, prompts[-1])
        parity = _greedy_parity(engine, prompts, max_tokens=max_tokens)
        chi_square = speculated_pairs(
            target,
            _tokens(engine, prompts[0])[: target.spec.context - 2],
            vocab_size=engine.loaded.vocab_size,
            samples=samples,
            seed=seed,
        )
        bit_identical = widths["max_logit_diff"] == 0.0
        all_identical = parity["greedy_identical"] == parity["prompts"]
        passed = (
            widths["block_causal"]
            and chi_square.p_value > CHI_SQUARE_P
            and (all_identical or not bit_identical)
        )
        name, spec = engine.loaded.settings.name, target.spec
        return (
            {"model": name, "provider": spec.provider, "device": spec.device}
            | {"passed": bool(passed)}
            | {"bit_identical": bit_identical, "chi_square": asdict(chi_square)}
            | {"left_out": left_out}
            | widths
            | parity
        )

    return job


def _widths(engine: Engine, prompt: BenchPrompt) -> dict[str, Any]:
    """Every block width against single steps, over the tokens of one real prompt."""
    target = engine.loaded.target
    tokens = _tokens(engine, prompt)[: min(128, target.spec.context - 1)]
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


def _tokens(engine: Engine, prompt: BenchPrompt) -> list[int]:
    return list(
        prompt_ids(
            GenerationRequest(messages=prompt.messages),
            tokenizer=engine.loaded.tokenizer,
            template=engine.loaded.template,
            context=engine.loaded.target.spec.context,
        )
    )
