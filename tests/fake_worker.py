"""A worker without a model: speaks the worker's frames, and does what a file tells it to.

Started as `fake_worker.py FOLDER FD`. FOLDER/NAME.json has the knobs of model NAME (see `Knobs`),
read when the process starts; FOLDER/NAME.log gets one JSON line for everything that happens.
"""

from __future__ import annotations

import asyncio
import json
import os
import signal
import socket
import sys
from collections import deque
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from homespecd.worker.messages import GenerationRequest, Unpacker, WorkerSettings, pack

CONTEXT_CHARACTERS = 2000


@dataclass(frozen=True)
class Knobs:
    """token_s: how long a token takes. tokens: length of an answer without max_tokens.

    fail: the message of a failed load. die_in_load: exit without a word.
    load_gate: no load ends before FOLDER/load exists.
    gate: no answer goes past its first token before FOLDER/gate exists. endless_jobs: no job ends.
    """

    token_s: float = 0.0
    tokens: int = 5
    fail: str = ""
    die_in_load: bool = False
    load_gate: bool = False
    deaf_to_stop: bool = False
    gate: bool = False
    endless_jobs: bool = False


class FakeWorker:
    def __init__(self, folder: Path, sock: socket.socket) -> None:
        self.folder = folder
        self.sock = sock
        self.unpacker = Unpacker()
        self.running: dict[int, asyncio.Task[None]] = {}
        self.waiting: deque[tuple[int, GenerationRequest]] = deque()
        self.stop = asyncio.Event()

    def note(self, event: str, **more: Any) -> None:
        with (self.folder / f"{self.settings.name}.log").open("a") as log:
            log.write(json.dumps({"event": event, "pid": os.getpid(), **more}) + "\n")

    def send(self, frame: dict[str, Any]) -> None:
        self.writer.write(pack(frame))

    async def run(self) -> int:
        self.reader, self.writer = await asyncio.open_unix_connection(sock=self.sock)
        frames = self.frames()
        first = await anext(frames)
        self.settings = WorkerSettings.from_frame(first["settings"])
        file = self.folder / f"{self.settings.name}.json"
        self.knobs = Knobs(**json.loads(file.read_text())) if file.exists() else Knobs()
        self.note("load", context=self.settings.context)
        self.send({"type": "loading", "what": "weights"})
        while self.knobs.load_gate and not (self.folder / "load").exists():
            await asyncio.sleep(0.01)
        if self.knobs.die_in_load:
            return 3
        if self.knobs.fail:
            error = {"message": self.knobs.fail, "where": self.settings.path, "hint": "mend it"}
            self.send({"type": "failed", "error": error})
            await self.writer.drain()
            return 1
        self.send({"type": "ready", "info": self.snapshot()})
        async for frame in frames:
            if frame["type"] == "stop" and not self.knobs.deaf_to_stop:
                self.note("stop")
                return 0
            self.handle(frame)
        return 0

    async def frames(self) -> Any:
        while data := await self.reader.read(65536):
            for frame in self.unpacker.feed(data):
                yield frame

    def handle(self, frame: dict[str, Any]) -> None:
        kind = frame["type"]
        if kind == "generate":
            self.waiting.append((frame["id"], GenerationRequest.from_frame(frame["request"])))
            self.admit()
        elif kind == "cancel":
            self.note("cancel", id=frame["id"])
            self.waiting = deque(one for one in self.waiting if one[0] != frame["id"])
            if frame["id"] in self.running:
                self.running.pop(frame["id"]).cancel()
            self.admit()
        elif kind == "snapshot":
            self.send({"type": "snapshot", "snapshot": self.snapshot()})
        elif kind == "ping":
            self.send({"type": "pong", "turn": 0, "doing": "idle", "predicted_s": None})
        elif kind == "drafters":
            self.settings = WorkerSettings.from_frame(frame["settings"])
            names = [one.name for one in self.settings.drafters]
            self.note("drafters", names=names, withheld=self.settings.withhold_drafts)
            self.send({"type": "snapshot", "snapshot": self.snapshot()})
            self.send({"type": "drafters"})
        elif kind in ("verify", "bench"):
            self.note(kind, id=frame["id"])
            if self.knobs.endless_jobs:
                return
            result = {"kind": kind, "options": frame["options"]}
            self.send({"type": "result", "id": frame["id"], "result": result})

    def admit(self) -> None:
        while self.waiting and len(self.running) < self.settings.slots:
            request_id, request = self.waiting.popleft()
            self.running[request_id] = asyncio.create_task(self.answer(request_id, request))

    async def answer(self, request_id: int, request: GenerationRequest) -> None:
        prompt = str(request.prompt or "".join(m["content"] for m in request.messages or ()))
        self.note("generate", id=request_id, prompt=prompt, request=request.to_frame())
        if len(prompt) > CONTEXT_CHARACTERS:
            message = f"the prompt has {len(prompt)} tokens, the context {CONTEXT_CHARACTERS}"
            self.fail(request_id, 400, message, code="context_length_exceeded", param="messages")
            return
        limit = request.max_tokens or self.knobs.tokens
        for index in range(min(limit, self.knobs.tokens)):
            if "explode" in prompt and index == 2:
                self.fail(request_id, 500, "the graph failed", code="model_error")
                return
            if self.knobs.token_s:
                await asyncio.sleep(self.knobs.token_s)
            while index == 1 and self.knobs.gate and not (self.folder / "gate").exists():
                await asyncio.sleep(0.01)
            delta = {"id": request_id, "index": 0, "text": f'"é{index}\n', "tokens": 1}
            self.send({"type": "delta", **delta})
        made = min(limit, self.knobs.tokens)
        usage = {"prompt_tokens": len(prompt), "completion_tokens": made, "cached_tokens": 1}
        self.send(
            {
                "type": "done",
                "id": request_id,
                "finish_reasons": [
                    "stop" if made < limit or request.max_tokens is None else "length"
                ],
                "usage": usage,
                "homespec": {
                    "mode": "mixed",
                    "drafter": "ngram",
                    "reason": "speculating",
                    "ttft_ms": 1.0,
                    "decode_tok_s": None,
                    "rounds": made,
                    "draft_tokens_proposed": 4,
                    "draft_tokens_accepted": 3,
                },
            }
        )
        self.ended(request_id)

    def fail(
        self, request_id: int, status: int, message: str, *, code: str, param: str | None = None
    ) -> None:
        error = {"message": message, "status": status, "code": code, "param": param}
        self.send({"type": "error", "id": request_id, "error": {**error, "retry_after_s": None}})
        self.ended(request_id)

    def ended(self, request_id: int) -> None:
        self.running.pop(request_id, None)
        self.admit()

    def snapshot(self) -> dict[str, Any]:
        return {
            "pid": os.getpid(),
            "provider": "cpu",
            "requested_provider": self.settings.provider,
            "provider_reason": "",
            "context": self.settings.context,
            "precision": "fp32",
            "digest": "sha256:0",
            "lanes": self.settings.slots,
            "memory_bytes": 1,
            "kv_bytes": 0,
            "speculation": {"mode": "plain", "reason": "warming_up", "drafters": []},
        }


def main() -> int:
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    folder, fd = Path(sys.argv[1]), int(sys.argv[2])

    async def run() -> int:
        return await FakeWorker(folder, socket.socket(fileno=fd)).run()

    return asyncio.run(run())


if __name__ == "__main__":
    sys.exit(main())
