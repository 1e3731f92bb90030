"""Ways of decoding the same tokens with the same weights, each in a process of its own.

An arm is asked to decode N greedy tokens after a prompt and says how many milliseconds each of them
took after the first. Arms sit idle while another one runs, so they can be measured in turns.

    bare    a loop over onnxruntime: bound buffers, argmax, nothing else
    socket  the same tokens from a running homespecd, streamed, speculation off
    served  the same, as apps are served: speculation where it is measured faster
    genai   onnxruntime-genai on the same graph (see `bench.genai_model`)
"""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Protocol

from homespecd.cli.client import Client

TIMEOUT_S = 600.0


class Arm(Protocol):
    """One way of decoding."""

    name: str

    def decode(self, prompt: Sequence[int], count: int) -> tuple[list[int], float]:
        """The tokens (empty where the arm cannot tell) and ms per token after the first."""
        ...

    def close(self) -> None: ...


class ChildArm:
    """An arm that is a module of this package, spoken to in lines of JSON."""

    def __init__(self, name: str, *arguments: str) -> None:
        self.name = name
        self._process = subprocess.Popen(
            [sys.executable, "-m", f"bench.{name}", *arguments],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        self._read()

    def decode(self, prompt: Sequence[int], count: int) -> tuple[list[int], float]:
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps({"prompt": list(prompt), "count": count}) + "\n")
        self._process.stdin.flush()
        reply = json.loads(self._read())
        return reply["tokens"], reply["ms_per_token"]

    def _read(self) -> str:
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            raise RuntimeError(f"the arm {self.name!r} ended with {self._process.wait()}")
        return line

    def close(self) -> None:
        assert self._process.stdin is not None
        self._process.stdin.close()
        self._process.wait(timeout=TIMEOUT_S)


class SocketArm:
    """A running homespecd, asked like any app would ask it. Timed where the text arrives."""

    def __init__(self, name: str, socket: Path, *, model: str, speculation: str) -> None:
        self.name = name
        self._client = Client(socket)
        self._model = model
        self._speculation = speculation

    def decode(self, prompt: Sequence[int], count: int) -> tuple[list[int], float]:
        body = {
            "model": self._model,
            "prompt": list(prompt),
            "max_tokens": count,
            "temperature": 0,
            "ignore_eos": True,
            "stream": True,
            "stream_options": {"include_usage": True},
            "homespec": {"speculation": self._speculation},
        }
        first = last = 0.0
        report: dict[str, float] = {}
        for event in self._client.stream("/v1/completions", body, timeout_s=TIMEOUT_S):
            if event["choices"] and event["choices"][0]["text"]:
                last = time.perf_counter()
                first = first or last
            if event.get("usage"):
                assert event["usage"]["completion_tokens"] == count
                report = event["homespec"]
        # A first round may bring several tokens at once; those are not counted.
        tokens = report["decode_tok_s"] * report["decode_ms"] / 1e3
        return [], (last - first) / tokens * 1e3

    def close(self) -> None:
        """The service is ended by whoever started it."""


def serve_lines(decode: object) -> None:
    """The other end of a ChildArm: say "ready", then answer each line of standard input."""
    print("ready", flush=True)
    for line in sys.stdin:
        request = json.loads(line)
        tokens, ms_per_token = decode(request["prompt"], request["count"])  # type: ignore[operator]
        print(json.dumps({"tokens": tokens, "ms_per_token": ms_per_token}), flush=True)
