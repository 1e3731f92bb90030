"""What the comparisons share: how long they may take, how they ask, and paired ratios."""

from __future__ import annotations

import statistics
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from bench.drafts import imported
from bench.inprocess import Arm
from homespecd.cli.demo import model_file
from homespecd.decoding.params import SamplingParams
from homespecd.worker.jobs import Run
from homespecd.worker.messages import GenerationRequest
from homespecd.worker.prompt_set import BenchPrompt

CACHE = Path(__file__).resolve().parent.parent / ".cache" / "bench"


@dataclass(frozen=True)
class Limits:
    """tokens: per answer. minutes: for everything; a section repeats while its share lasts."""

    tokens: int
    minutes: float
    least_repeats: int
    threads: int

    def turns(self, share: float) -> Iterator[int]:
        """Turn numbers: as many as fit, but `least_repeats` at least."""
        end_s = time.monotonic() + share * self.minutes * 60.0
        turn, longest_s = 0, 0.0
        while turn < self.least_repeats or time.monotonic() + longest_s < end_s:
            began_s = time.monotonic()
            yield turn
            longest_s = max(longest_s, time.monotonic() - began_s)
            turn += 1


@dataclass(frozen=True)
class Ratio:
    """Of paired measurements: the median and the range."""

    median: float
    low: float
    high: float

    @classmethod
    def of(cls, ratios: Sequence[float]) -> Ratio:
        return cls(statistics.median(ratios), min(ratios), max(ratios))

    def __str__(self) -> str:
        return f"{self.median:.3f} ({self.low:.2f}–{self.high:.2f})"


def request_for(prompt: BenchPrompt, arm: Arm, tokens: int) -> GenerationRequest:
    return GenerationRequest(
        messages=prompt.messages,
        sampling=SamplingParams(temperature=0.0),
        max_tokens=tokens,
        ignore_eos=True,
        speculation=arm.speculation,
        drafter=arm.drafter,
    )


def ms_per_token(run: Run) -> float:
    speed = run.account.decode_tok_s
    assert speed is not None, "an answer of one round has no speed: ask for more tokens"
    return 1e3 / speed


def smollm2(precision: str) -> Path:
    return imported(model_file(), CACHE, name="smollm2", precision=precision)
