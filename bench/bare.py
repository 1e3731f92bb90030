"""The arm `bare`: the least Python that can decode the one-lane graph with onnxruntime."""

from __future__ import annotations

import sys
import time
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from bench.arms import serve_lines
from homespecd.runtime.session import load_onnxruntime

CHUNK = 64


class BareLoop:
    """One session, one cache, everything bound once."""

    def __init__(self, graph: Path, *, threads: int, context: int) -> None:
        ort = load_onnxruntime()
        options = ort.SessionOptions()
        options.intra_op_num_threads = threads
        options.enable_mem_pattern = False
        self._session = ort.InferenceSession(
            str(graph), options, providers=["CPUExecutionProvider"]
        )
        self._binding = self._session.io_binding()
        for given in self._session.get_inputs():
            if given.name.startswith("past_key_values."):
                _, heads, _, dim = given.shape
                cache = ort.OrtValue.ortvalue_from_numpy(
                    np.zeros((1, heads, context + 1, dim), dtype=np.float32)
                )
                self._binding.bind_ortvalue_input(given.name, cache)
                self._binding.bind_ortvalue_output(
                    given.name.replace("past_key_values", "present"), cache
                )
        self._vocab = next(o.shape[-1] for o in self._session.get_outputs() if o.name == "logits")

    def _step(self, tokens: Sequence[int], past: int, *, wanted: bool) -> int:
        rows = np.array([[len(tokens) - 1] if wanted else []], dtype=np.int64).reshape(-1)
        logits = np.empty((len(rows), self._vocab), dtype=np.float32)
        bind = self._binding.bind_cpu_input
        bind("input_ids", np.array([tokens], dtype=np.int64))
        bind("lane_rows", np.array([len(tokens)], dtype=np.int64))
        bind("past_lengths", np.array([past], dtype=np.int32))
        bind("logit_rows", rows)
        self._binding.bind_output("logits", "cpu", 0, np.float32, logits.shape, logits.ctypes.data)
        self._session.run_with_iobinding(self._binding)
        return int(logits[0].argmax()) if wanted else -1

    def decode(self, prompt: Sequence[int], count: int) -> tuple[list[int], float]:
        past = 0
        while len(prompt) - past > CHUNK:
            self._step(prompt[past : past + CHUNK], past, wanted=False)
            past += CHUNK
        tokens = [self._step(prompt[past:], past, wanted=True)]
        past = len(prompt)
        started = time.perf_counter()
        for _ in range(count - 1):
            tokens.append(self._step(tokens[-1:], past, wanted=True))
            past += 1
        return tokens, (time.perf_counter() - started) / (count - 1) * 1e3


if __name__ == "__main__":
    loop = BareLoop(Path(sys.argv[1]), threads=int(sys.argv[2]), context=int(sys.argv[3]))
    serve_lines(loop.decode)
