"""The arm `genai`: onnxruntime-genai's own generator, greedy."""

from __future__ import annotations

import sys
import time
from collections.abc import Sequence

import onnxruntime_genai as og

from bench.arms import serve_lines


class Genai:
    """One model; a generator for each prompt."""

    def __init__(self, folder: str, *, context: int) -> None:
        self._model = og.Model(folder)
        self._context = context

    def decode(self, prompt: Sequence[int], count: int) -> tuple[list[int], float]:
        parameters = og.GeneratorParams(self._model)
        parameters.set_search_options(
            do_sample=False, max_length=self._context, past_present_share_buffer=True
        )
        generator = og.Generator(self._model, parameters)
        generator.append_tokens(list(prompt))
        generator.generate_next_token()
        started = time.perf_counter()
        for _ in range(count - 1):
            generator.generate_next_token()
        elapsed = time.perf_counter() - started
        tokens = [int(token) for token in generator.get_sequence(0)[len(prompt) :]]
        return tokens, elapsed / (count - 1) * 1e3


if __name__ == "__main__":
    serve_lines(Genai(sys.argv[1], context=int(sys.argv[2])).decode)
