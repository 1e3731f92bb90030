"""A bundle's graph driven by bare onnxruntime: what the runtime's own loop is held against."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
import numpy.typing as npt
import onnxruntime as ort

from homespecd.bundle.manifest import graph_file, read_manifest


class RawLanes:
    """One graph with one buffer per lane, bound as past and present alike."""

    def __init__(
        self,
        folder: Path,
        lanes: int,
        *,
        capacity: int = 512,
        threads: int = 1,
        graph: Path | None = None,
    ) -> None:
        ort.disable_telemetry_events()
        manifest = read_manifest(folder)
        options = ort.SessionOptions()
        options.intra_op_num_threads = threads
        options.log_severity_level = 3
        self.lanes = lanes
        self.vocab = manifest.vocab
        self.session = ort.InferenceSession(
            graph or folder / graph_file(lanes), options, providers=["CPUExecutionProvider"]
        )
        shape = (1, manifest.kv_heads, capacity, manifest.head_dim)
        self._buffers = [
            [
                (f"{layer}.{part}.{lane}", ort.OrtValue.ortvalue_from_numpy(np.zeros(shape, "f4")))
                for layer in range(manifest.layers)
                for part in ("key", "value")
            ]
            for lane in range(lanes)
        ]
        self.lengths = np.zeros(lanes, dtype=np.int32)

    def step(
        self,
        rows: Mapping[int, Sequence[int]],
        wanted: Sequence[int] | None = None,
    ) -> npt.NDArray[np.float32]:
        """Feed tokens to lanes; logits [wanted, vocab] of the given rows (all, when None)."""
        counts = np.array([len(rows.get(lane, ())) for lane in range(self.lanes)], dtype=np.int64)
        ids = [token for lane in range(self.lanes) for token in rows.get(lane, ())]
        logit_rows = np.arange(len(ids)) if wanted is None else np.array(wanted, dtype=np.int64)
        binding = self.session.io_binding()
        binding.bind_cpu_input("input_ids", np.array([ids], dtype=np.int64))
        binding.bind_cpu_input("lane_rows", counts)
        binding.bind_cpu_input("past_lengths", self.lengths.copy())
        binding.bind_cpu_input("logit_rows", logit_rows.astype(np.int64))
        binding.bind_output("logits", "cpu")
        for buffers in self._buffers:
            for name, buffer in buffers:
                binding.bind_ortvalue_input(f"past_key_values.{name}", buffer)
                binding.bind_ortvalue_output(f"present.{name}", buffer)
        self.session.run_with_iobinding(binding)
        self.lengths += counts.astype(np.int32)
        logits: npt.NDArray[np.float32] = binding.get_outputs()[0].numpy()
        return logits

    def logits(self, tokens: Sequence[int], width: int) -> npt.NDArray[np.float32]:
        """All logits of a sequence fed to lane 0 from an empty cache, `width` rows at a time."""
        self.lengths[:] = 0
        steps = [
            self.step({0: tokens[start : start + width]}) for start in range(0, len(tokens), width)
        ]
        return np.concatenate(steps)
