"""The shapes of Ollama's answers: one JSON object, or one a line when streamed."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import Any, Literal

from homespecd.api.gathering import Gathered, gather
from homespecd.api.lines import one_line
from homespecd.api.service import Delta, Done
from homespecd.errors import RequestError

HEADERS = {"Content-Type": "application/x-ndjson", "X-Accel-Buffering": "no"}


@dataclass(frozen=True)
class OllamaShape:
    """How the answer to one request is written down."""

    kind: Literal["chat", "generate"]
    model: str

    def part(self, gathered: Gathered) -> dict[str, Any]:
        """Some of the answer, or all of it; without what ends it."""
        part: dict[str, Any] = {"model": self.model, "created_at": now()}
        if self.kind == "chat":
            part["message"] = {"role": "assistant", **_content(gathered)}
        else:
            part["response"] = gathered.text
        if gathered.logprobs:
            part["logprobs"] = list(gathered.logprobs)
        return {**part, "done": False}

    def whole(self, gathered: Gathered, done: Done) -> dict[str, Any]:
        """The answer and its end in one; times in nanoseconds."""
        report = done.homespec
        prefill_ms, decode_ms = report.get("prefill_ms", 0.0), report.get("decode_ms", 0.0)
        reason = done.finish_reasons[0]
        return {
            **self.part(gathered),
            "done": True,
            "done_reason": "stop" if reason == "tool_calls" else reason,
            "total_duration": _ns(report.get("ttft_ms", 0.0) + decode_ms),
            "load_duration": 0,
            "prompt_eval_count": done.usage["prompt_tokens"],
            "prompt_eval_duration": _ns(prefill_ms),
            "eval_count": done.usage["completion_tokens"],
            "eval_duration": _ns(decode_ms),
            "homespec": dict(report),
        }

    def nothing(self, reason: Literal["load", "unload"]) -> dict[str, Any]:
        """The answer to a request that had nothing to generate."""
        return {**self.part(Gathered()), "done": True, "done_reason": reason}


class Lines:
    """The stream of one answer as bytes."""

    headers = HEADERS
    keep_alive = b""  # readers take every line for JSON

    def __init__(self, shape: OllamaShape) -> None:
        self._shape = shape
        self._calls = Gathered()  # readers want calls whole

    def opening(self) -> bytes:
        """What comes before the first text: nothing."""
        return b""

    def of(self, deltas: Sequence[Delta]) -> bytes:
        """What has come in since the last call."""
        for delta in deltas:
            if delta.tool_calls:
                self._calls.add(Delta("", 0, tool_calls=delta.tool_calls))
        [gathered] = gather([replace(one, tool_calls=None) for one in deltas], 1)
        if gathered.plain and not gathered.text:
            return b""
        return line(self._shape.part(gathered))

    def ending(self, done: Done) -> bytes:
        """Why it ended, and what it cost."""
        calls = b"" if self._calls.plain else line(self._shape.part(self._calls))
        return calls + line(self._shape.whole(Gathered(), done))

    def failure(self, error: RequestError) -> bytes:
        """What a stream that has begun ends with when it fails."""
        return line({"error": str(error)})


def line(data: Mapping[str, Any]) -> bytes:
    return f"{one_line(data)}\n".encode()


def now() -> str:
    return datetime.now(UTC).isoformat().replace("+00:00", "Z")


def _content(gathered: Gathered) -> dict[str, Any]:
    """Text and calls. Here a call's arguments are an object; one that was cut off, or written down
    wrongly, is left as text."""
    text, calls = gathered.text, []
    for call in gathered.tool_calls:
        try:
            arguments = json.loads(call["arguments"])
        except (ValueError, RecursionError):
            text += f'{{"name": {json.dumps(call["name"])}, "arguments": {call["arguments"]}'
            continue
        function = {"name": call["name"], "arguments": arguments}
        calls.append({"id": call["id"], "function": function})
    return {"content": text, **({"tool_calls": calls} if calls else {})}


def _ns(milliseconds: float) -> int:
    return round(milliseconds * 1e6)
