"""A worker that is killed or stopped, and started again, knows what it had measured and learned."""

from __future__ import annotations

import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from homespecd.decoding.params import SamplingParams
from homespecd.worker.messages import (
    DrafterSettings,
    GenerationRequest,
    Unpacker,
    WorkerSettings,
    pack,
)
from tests.integration.running_service import PATIENCE_S, ROOT
from tests.oracle import Toy, encode, say
from tests.tiny_onnx import make_toy

pytestmark = pytest.mark.integration


class Killable:
    """A worker process (a module that is one), spoken to as the supervisor would."""

    def __init__(self, settings: WorkerSettings, program: str) -> None:
        self._socket, theirs = socket.socketpair()
        self._socket.settimeout(PATIENCE_S)
        fd = theirs.fileno()
        self._process = subprocess.Popen(
            [sys.executable, "-m", program, str(fd)], pass_fds=(fd,), cwd=ROOT
        )
        theirs.close()
        self._unpacker = Unpacker()
        self._frames: list[dict[str, Any]] = []
        self._socket.sendall(pack({"type": "load", "settings": settings.to_frame()}))

    def wait_for(self, kind: str) -> dict[str, Any]:
        while True:
            while self._frames:
                frame = self._frames.pop(0)
                if frame["type"] == kind:
                    return frame
            data = self._socket.recv(1 << 16)
            assert data, "the worker is gone"
            self._frames += self._unpacker.feed(data)

    def answer(self, prompt: list[int], tokens: int) -> dict[str, Any]:
        """What the worker says of a greedy answer: the response's `homespec` object."""
        sampling = SamplingParams(temperature=0.0)
        asked = GenerationRequest(prompt=tuple(prompt), sampling=sampling, max_tokens=tokens)
        self._socket.sendall(pack({"type": "generate", "id": 1, "request": asked.to_frame()}))
        said: dict[str, Any] = self.wait_for("done")["homespec"]
        return said

    def stop(self) -> None:
        """As the supervisor would: it writes down what it knows and ends."""
        self._socket.sendall(pack({"type": "stop"}))
        assert self._process.wait(PATIENCE_S) == 0

    def kill(self) -> None:
        self._process.send_signal(signal.SIGKILL)
        self._process.wait(PATIENCE_S)
        self._socket.close()


@contextmanager
def started(settings: WorkerSettings, program: str = "homespecd.worker") -> Iterator[Killable]:
    worker = Killable(settings, program)
    try:
        yield worker
    finally:
        worker.kill()


def test_what_was_measured_outlives_a_kill(tmp_path: Path) -> None:
    draft = make_toy(tmp_path / "draft", Toy(behaviour="every_third"))
    state = tmp_path / "state"
    settings = WorkerSettings(
        name="toy",
        path=str(make_toy(tmp_path / "target", Toy(layout="lanes"))),
        context=256,
        threads=1,
        state_dir=str(state),
        drafters=(DrafterSettings(name="third", kind="model", path=str(draft)),),
    )
    with started(settings) as worker:
        measured = worker.wait_for("ready")["info"]["speculation"]["step_ms"]
        deadline_s = time.monotonic() + PATIENCE_S
        while not list(state.glob("governor-*.json")):
            assert time.monotonic() < deadline_s, "nothing was saved"
            time.sleep(0.05)

    with started(settings) as again:
        remembered = again.wait_for("ready")["info"]["speculation"]["step_ms"]

    assert len(measured) >= 5
    assert remembered == measured  # to the last decimal: nothing was measured again


def test_the_first_answer_after_a_restart_is_decoded_as_the_last_one_before(tmp_path: Path) -> None:
    """A text that repeats itself is what a lookup is for: found out once, and known ever after.

    Steps take what they are said to take: what pays does not depend on the machine of the moment.
    """
    prompt = encode("again: ")
    toy = Toy(layout="lanes", script=say("one two three " * 40, end=None, start=len(prompt)))
    settings = WorkerSettings(
        name="toy",
        path=str(make_toy(tmp_path / "target", toy)),
        context=512,
        threads=1,
        state_dir=str(tmp_path / "state"),
        drafters=(DrafterSettings(name="ngram", kind="ngram"),),
    )
    with started(settings, "tests.paced_worker") as worker:
        first, *_, last = [worker.answer(prompt, 120) for _ in range(4)]
        worker.stop()

    with started(settings, "tests.paced_worker") as again:
        now = again.answer(prompt, 120)

    assert first["reason"] == "warming_up"
    assert (last["reason"], last["mode"]) == ("speculating", "mixed")
    assert (now["reason"], now["mode"]) == (last["reason"], last["mode"])
    assert now["draft_tokens_accepted"] >= 60
    assert now["rounds"] <= 40
