"""Penalties for tokens that were used before, as if each token were produced alone.

Inside a verification block every position is judged with the sequence that precedes it, the
proposal included, and the next call may come with a shorter or another tail. So the counts follow
whatever sequence they are given; nothing has to be told what was accepted.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from homespecd.decoding.params import SamplingParams
from homespecd.decoding.sequences import common_prefix


class Penalties:
    """Repetition, presence and frequency penalties of one request.

    repetition_penalty looks at prompt and output: a positive logit is divided by it, another is
    multiplied (Keskar et al. 2019, arXiv 1909.05858, in the form that Hugging Face made common).
    presence_penalty and frequency_penalty look at the output only, as in OpenAI's API:
    logit −= presence + frequency · count. Repetition comes first.
    """

    def __init__(self, params: SamplingParams, *, vocab_size: int, prompt_length: int) -> None:
        self._repetition = params.repetition_penalty
        self._presence = params.presence_penalty
        self._frequency = params.frequency_penalty
        self._prompt_length = prompt_length
        self.active = self._repetition != 1.0 or self._presence != 0.0 or self._frequency != 0.0
        size = vocab_size if self.active else 0
        self._counted: list[int] = []
        self._anywhere = np.zeros(size, dtype=np.int32)  # [vocab] times in prompt and output
        self._in_output = np.zeros(size, dtype=np.int32)  # [vocab] times in the output

    def apply(self, logits: npt.NDArray[np.float64], tokens: Sequence[int]) -> None:
        """Change `logits` (float64 [vocab_size]) in place for the token that follows `tokens`."""
        self._follow(tokens)
        if self._repetition != 1.0:
            ids = np.flatnonzero(self._anywhere != 0)
            used = logits[ids]
            logits[ids] = np.where(used > 0, used / self._repetition, used * self._repetition)
        if self._presence != 0.0 or self._frequency != 0.0:
            ids = np.flatnonzero(self._in_output != 0)
            logits[ids] -= self._presence + self._frequency * self._in_output[ids]

    def _follow(self, tokens: Sequence[int]) -> None:
        keep = common_prefix(self._counted, tokens)
        self._count(self._counted[keep:], start=keep, by=-1)
        del self._counted[keep:]
        added = list(tokens[keep:])
        self._count(added, start=keep, by=1)
        self._counted += added

    def _count(self, tokens: Sequence[int], *, start: int, by: int) -> None:
        ids = np.asarray(tokens, dtype=np.int64)
        output = ids[max(0, self._prompt_length - start) :]
        # An id that cannot be emitted has no logit to change.
        np.add.at(self._anywhere, ids[ids < self._anywhere.size], by)
        np.add.at(self._in_output, output[output < self._in_output.size], by)
