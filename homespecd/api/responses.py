"""The shapes of OpenAI's answers, whole and in chunks."""

from __future__ import annotations

import secrets
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from homespecd.api.service import Done, ModelCard
from homespecd.api.sse import TextTemplate

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
    id: str
    created_s: int

    @classmethod
    def new(cls, kind: Kind, *, model: str, include_usage: bool = False) -> Shape:
        """With an id of its own and the time of now."""
        return cls(
            kind=kind,
            model=model,
            include_usage=include_usage,
            id=_ID_PREFIX[kind] + secrets.token_hex(12),
            created_s=int(time.time()),
        )

    def whole(self, text: str, done: Done) -> dict[str, Any]:
        """The body of an answer that was not streamed."""
        choice: dict[str, Any] = {"index": 0}
        if self.kind == "chat":
            choice["message"] = {"role": "assistant", "content": text, "refusal": None}
        else:
            choice["text"] = text
        choice |= {"logprobs": None, "finish_reason": done.finish_reason}
        return {
            **self._head(_OBJECT[self.kind]),
            "choices": [choice],
            "usage": usage(done.usage),
            "homespec": dict(done.homespec),
        }

    def first_chunk(self) -> dict[str, Any] | None:
        """Chats begin with who speaks; text completions with the text."""
        if self.kind == "completion":
            return None
        return self._chunk({"delta": {"role": "assistant", "content": ""}}, None)

    def text_chunks(self) -> TextTemplate:
        return TextTemplate(self._chunk(self._text_part(TextTemplate.HOLE), None))

    def last_chunk(self, done: Done) -> dict[str, Any]:
        """Why it ended, and what it cost."""
        part: dict[str, Any] = {"delta": {}} if self.kind == "chat" else {"text": ""}
        return {**self._chunk(part, done.finish_reason), "homespec": dict(done.homespec)}

    def usage_chunk(self, done: Done) -> dict[str, Any]:
        """The chunk that `stream_options.include_usage` asks for: totals, and no choices."""
        return {
            **self._head(_CHUNK_OBJECT[self.kind]),
            "choices": [],
            "usage": usage(done.usage),
            "homespec": dict(done.homespec),
        }

    def _text_part(self, text: str) -> dict[str, Any]:
        return {"delta": {"content": text}} if self.kind == "chat" else {"text": text}

    def _chunk(self, part: Mapping[str, Any], finish_reason: str | None) -> dict[str, Any]:
        choice = {"index": 0, **part, "logprobs": None, "finish_reason": finish_reason}
        chunk = {**self._head(_CHUNK_OBJECT[self.kind]), "choices": [choice]}
        return {**chunk, "usage": None} if self.include_usage else chunk

    def _head(self, object_name: str) -> dict[str, Any]:
        return {
            "id": self.id,
            "object": object_name,
            "created": self.created_s,
            "model": self.model,
        }


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
