"""The shapes of OpenAI's answers, whole and in chunks."""

from __future__ import annotations

import secrets
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from homespecd.api import logprobs, sse
from homespecd.api.errors import error_body
from homespecd.api.gathering import Gathered, gather
from homespecd.api.service import Delta, Done, ModelCard
from homespecd.api.sse import TextTemplate
from homespecd.errors import RequestError

Kind = Literal["chat", "completion"]

_ID_PREFIX = {"chat": "chatcmpl-", "completion": "cmpl-"}
_OBJECT = {"chat": "chat.completion", "completion": "text_completion"}
_CHUNK_OBJECT = {"chat": "chat.completion.chunk", "completion": "text_completion"}


@dataclass(frozen=True)
class Shape:
    """How the answer to one request is written down."""

    kind: Kind
    model: str
    include_usage: bool
    choices: int
    id: str
    created_s: int

    @classmethod
    def new(
        cls,
        kind: Kind,
        *,
        model: str,
        include_usage: bool = False,
        choices: int = 1,
        request_id: str = "",
    ) -> Shape:
        """With the time of now, and an id of its own unless there is one."""
        return cls(
            kind=kind,
            model=model,
            include_usage=include_usage,
            choices=choices,
            id=_ID_PREFIX[kind] + (request_id or secrets.token_hex(12)),
            created_s=int(time.time()),
        )

    def whole(self, gathered: Sequence[Gathered], done: Done) -> dict[str, Any]:
        """The body of an answer that was not streamed."""
        return {
            **self._head(_OBJECT[self.kind]),
            "choices": [
                self._choice(index, one, reason)
                for index, (one, reason) in enumerate(
                    zip(gathered, done.finish_reasons, strict=True)
                )
            ],
            "usage": usage(done.usage),
            "homespec": dict(done.homespec),
        }

    def first_chunk(self, index: int) -> dict[str, Any] | None:
        """Chats begin with who speaks; text completions with the text."""
        if self.kind == "completion":
            return None
        return self._chunk(index, {"delta": {"role": "assistant", "content": ""}})

    def text_chunks(self, index: int = 0) -> TextTemplate:
        return TextTemplate(self._chunk(index, self._text_part(TextTemplate.HOLE)))

    def chunk(self, index: int, gathered: Gathered, *, offset: int) -> dict[str, Any]:
        """A chunk that has more than text; its first token begins at `offset` of the text."""
        part = self._text_part(gathered.text)
        if gathered.tool_calls:
            part = {"delta": {"tool_calls": [_piece(one) for one in gathered.tool_calls]}}
            if gathered.text:
                part["delta"]["content"] = gathered.text
        return self._chunk(index, part, logprobs=self._logprobs(gathered, offset))

    def last_chunk(self, index: int, done: Done) -> dict[str, Any]:
        """Why a choice ended; the last one says what the answer cost."""
        part: dict[str, Any] = {"delta": {}} if self.kind == "chat" else {"text": ""}
        chunk = self._chunk(index, part, finish_reason=done.finish_reasons[index])
        return {**chunk, "homespec": dict(done.homespec)} if index == self.choices - 1 else chunk

    def usage_chunk(self, done: Done) -> dict[str, Any]:
        """The chunk that `stream_options.include_usage` asks for: totals, and no choices."""
        return {
            **self._head(_CHUNK_OBJECT[self.kind]),
            "choices": [],
            "usage": usage(done.usage),
            "homespec": dict(done.homespec),
        }

    def _choice(self, index: int, gathered: Gathered, reason: str) -> dict[str, Any]:
        choice: dict[str, Any] = {"index": index}
        if self.kind == "chat":
            choice["message"] = {"role": "assistant", "content": gathered.text, "refusal": None}
            if gathered.tool_calls:
                choice["message"]["content"] = gathered.text or None
                choice["message"]["tool_calls"] = [_call(one) for one in gathered.tool_calls]
        else:
            choice["text"] = gathered.text
        return {**choice, "logprobs": self._logprobs(gathered, 0), "finish_reason": reason}

    def _logprobs(self, gathered: Gathered, offset: int) -> dict[str, Any] | None:
        if not gathered.logprobs:
            return None
        if self.kind == "chat":
            return logprobs.of_chat(gathered.logprobs)
        return logprobs.of_completion(gathered.logprobs, offset=offset)

    def _text_part(self, text: str) -> dict[str, Any]:
        return {"delta": {"content": text}} if self.kind == "chat" else {"text": text}

    def _chunk(
        self,
        index: int,
        part: Mapping[str, Any],
        *,
        finish_reason: str | None = None,
        logprobs: Mapping[str, Any] | None = None,
    ) -> dict[str, Any]:
        choice = {"index": index, **part, "logprobs": logprobs, "finish_reason": finish_reason}
        chunk = {**self._head(_CHUNK_OBJECT[self.kind]), "choices": [choice]}
        return {**chunk, "usage": None} if self.include_usage else chunk

    def _head(self, object_name: str) -> dict[str, Any]:
        return {
            "id": self.id,
            "object": object_name,
            "created": self.created_s,
            "model": self.model,
        }


class Chunks:
    """The stream of one answer as bytes. What is the same in every chunk is encoded once."""

    headers = sse.HEADERS
    keep_alive = sse.KEEP_ALIVE

    def __init__(self, shape: Shape) -> None:
        self._shape = shape
        self._templates = [shape.text_chunks(index) for index in range(shape.choices)]
        self._offsets = [0] * shape.choices

    def opening(self) -> bytes:
        """What comes before the first text."""
        firsts = [self._shape.first_chunk(index) for index in range(self._shape.choices)]
        return b"".join([sse.event(one) for one in firsts if one is not None])

    def of(self, deltas: Sequence[Delta]) -> bytes:
        """What has come in since the last call."""
        gathered = gather(deltas, self._shape.choices)
        return b"".join([self._of_choice(index, one) for index, one in enumerate(gathered)])

    def ending(self, done: Done) -> bytes:
        """Why each choice ended, the usage if it was asked for, and the end of the stream."""
        shape = self._shape
        ends = [sse.event(shape.last_chunk(index, done)) for index in range(shape.choices)]
        if shape.include_usage:
            ends.append(sse.event(shape.usage_chunk(done)))
        return b"".join([*ends, sse.DONE])

    def failure(self, error: RequestError) -> bytes:
        """What a stream that has begun ends with when it fails: no finish_reason, no `[DONE]`."""
        return sse.error_event(error_body(error))

    def _of_choice(self, index: int, gathered: Gathered) -> bytes:
        if gathered.plain:
            text = gathered.text
            return self._templates[index].fill(text) if text else b""
        chunk = self._shape.chunk(index, gathered, offset=self._offsets[index])
        self._offsets[index] += logprobs.length_of(gathered.logprobs)
        return sse.event(chunk)


def _call(call: Mapping[str, Any]) -> dict[str, Any]:
    function = {"name": call["name"], "arguments": call["arguments"]}
    return {"id": call["id"], "type": "function", "function": function}


def _piece(call: Mapping[str, Any]) -> dict[str, Any]:
    """What a chunk has of a call: all it is called by the first time, then arguments alone."""
    if "name" in call:
        return {"index": call["index"], **_call(call)}
    return {"index": call["index"], "function": {"arguments": call["arguments"]}}


def usage(counts: Mapping[str, int]) -> dict[str, Any]:
    """OpenAI's usage object from a worker's counts."""
    prompt, completion = counts["prompt_tokens"], counts["completion_tokens"]
    return {
        "prompt_tokens": prompt,
        "completion_tokens": completion,
        "total_tokens": prompt + completion,
        "prompt_tokens_details": {"cached_tokens": counts.get("cached_tokens", 0)},
    }


def model_object(card: ModelCard) -> dict[str, Any]:
    return {
        "id": card.name,
        "object": "model",
        "created": card.created_s,
        "owned_by": "homespecd",
        "homespec": {"state": card.state},
    }


def model_list(cards: Sequence[ModelCard]) -> dict[str, Any]:
    return {"object": "list", "data": [model_object(card) for card in cards]}
