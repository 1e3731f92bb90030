"""Is what a speculative round emits distributed as the target says? A chi-square on real logits."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache

import numpy as np

from homespecd.decoding.params import SamplingParams
from homespecd.decoding.sampling import Sampler
from homespecd.decoding.verify import Dice, Probabilities, verify_block
from homespecd.runtime.step import Logits, Model, Rows, whole

# Cells expected fewer times than this are pooled, as the chi-square approximation wants.
SMALLEST_CELL = 5.0
# Pairs of tokens then fall into 64 cells, which a few thousand samples fill.
TOP_K = 8
# The draft is the target's own logits at this temperature: like enough that proposals are often
# accepted, and unlike enough that they are often rejected.
DRAFT_TEMPERATURE = 2.5

Pair = tuple[int, int]


@dataclass(frozen=True)
class ChiSquare:
    """p_value: how likely a fair sampler is to be this far off or further."""

    statistic: float
    dof: int
    p_value: float
    samples: int


class _TwoTokens:
    """The target's distributions for the two tokens that follow a prompt; steps are remembered."""

    def __init__(self, model: Model, prompt: Sequence[int], *, vocab_size: int) -> None:
        self._model = model
        self._prompt = list(prompt)
        self._cache = model.new_cache()
        if len(prompt) > 1:
            model.step([Rows(self._cache, prompt[:-1], logits_from=len(prompt) - 1)])
        self._target = self._sampler(1.0, vocab_size)
        self._draft = self._sampler(DRAFT_TEMPERATURE, vocab_size)
        first = self._logits([])
        self.first: Probabilities = self._target.probabilities(first, self._prompt)
        self.draft: Probabilities = self._draft.probabilities(first, self._prompt)
        self.second = cache(self._second)

    def _sampler(self, temperature: float, vocab_size: int) -> Sampler:
        params = SamplingParams(temperature=temperature, top_k=TOP_K)
        return Sampler(params, vocab_size=vocab_size, prompt_length=len(self._prompt))

    def _logits(self, after: list[int]) -> Logits:
        self._cache.rewind_to(len(self._prompt) - 1)
        rows = [self._prompt[-1], *after]
        (logits,) = self._model.step([Rows(self._cache, rows, logits_from=len(rows) - 1)])
        return np.array(whole(logits)[0])

    def _second(self, first: int) -> Probabilities:
        return self._target.probabilities(self._logits([first]), [*self._prompt, first])


def speculated_pairs(
    model: Model, prompt: Sequence[int], *, vocab_size: int, samples: int, seed: int
) -> ChiSquare:
    """Emit `samples` pairs of tokens through the verifier and compare them with the target's."""
    tokens = _TwoTokens(model, prompt, vocab_size=vocab_size)
    dice = Dice(np.random.default_rng(seed).random)
    counts: Counter[Pair] = Counter()
    for _ in range(samples):
        proposed = dice.pick(tokens.draft)
        after = (tokens.first, tokens.second(proposed))
        verdict = verify_block(after.__getitem__, (proposed,), tokens.draft[None, :], dice)
        if verdict.accepted:
            counts[proposed, verdict.final] += 1
        else:
            counts[verdict.final, dice.pick(tokens.second(verdict.final))] += 1
    expected = {
        (int(a), int(b)): samples * float(tokens.first[a] * tokens.second(int(a))[b])
        for a in np.flatnonzero(tokens.first)
        for b in np.flatnonzero(tokens.second(int(a)))
    }
    statistic, dof = pooled_statistic(counts, expected)
    return ChiSquare(statistic, dof, upper_tail(statistic, dof), samples)


def pooled_statistic(
    counts: Mapping[Pair, int], expected: Mapping[Pair, float]
) -> tuple[float, int]:
    """Statistic and degrees of freedom, rare cells pooled. An impossible pair is infinitely bad."""
    if any(pair not in expected for pair in counts):
        return math.inf, 1
    cells: list[tuple[float, float]] = []
    rare_count = rare_expected = 0.0
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


def upper_tail(statistic: float, dof: int) -> float:
    """P(χ² ≥ statistic), by Wilson and Hilferty's cube-root normal approximation (1931).

    Good to about 1e-3 from three degrees of freedom on, which is all a pass mark needs.
    """
    if math.isinf(statistic):
        return 0.0
    spread = 2.0 / (9.0 * dof)
    z = ((statistic / dof) ** (1.0 / 3.0) - (1.0 - spread)) / math.sqrt(spread)
    return 0.5 * math.erfc(z / math.sqrt(2.0))
