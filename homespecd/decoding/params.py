"""What a request says about how its tokens are chosen."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True)
class SamplingParams:
    """Sampling parameters, already checked to be in range.

    temperature 0 is greedy. top_k 0, top_p 1 and min_p 0 switch those filters off. They apply in
    this order: penalties and bias on logits, temperature, top_k, top_p, min_p.
    seed: None draws from the operating system's entropy; a seed makes the text a function of the
    target, the prompt and the seed alone.
    """

    temperature: float = 1.0
    top_k: int = 0
    top_p: float = 1.0
    min_p: float = 0.0
    seed: int | None = None
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    repetition_penalty: float = 1.0
    logit_bias: Mapping[int, float] = field(default_factory=dict)

    @property
    def greedy(self) -> bool:
        return self.temperature == 0.0

    @property
    def replayable(self) -> bool:
        """The target's own draw at each position is fixed before any draft is looked at."""
        return self.greedy or self.seed is not None
