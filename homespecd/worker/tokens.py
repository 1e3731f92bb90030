"""Text to token ids and back, for clients that count before they ask."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from homespecd.bundle.chat_encoding import encode_chat
from homespecd.errors import RequestError
from homespecd.worker.messages import GenerationRequest
from homespecd.worker.tools import check_tools

if TYPE_CHECKING:
    from homespecd.worker.engine import Engine, Job


def tokenize_job(options: Mapping[str, Any]) -> Job:
    """`content`, or `messages` (and `tools`) as the model's template renders them."""

    def job(engine: Engine) -> Mapping[str, Any]:
        loaded = engine.loaded
        if options.get("messages") is not None:
            said, tools = tuple(options["messages"]), tuple(options["tools"])
            check_tools(GenerationRequest(messages=said, tools=tools), loaded.template)
            ids = encode_chat(loaded.tokenizer, loaded.template, said, tools)
        else:
            ids = loaded.tokenizer.encode(
                options["content"],
                parse_special=True,
                add_bos=options["add_special"] and loaded.tokenizer.add_bos,
            )
        return {"tokens": ids, "count": len(ids), "max_model_len": loaded.target.spec.context}

    return job


def detokenize_job(options: Mapping[str, Any]) -> Job:
    """`tokens` to text, control tokens included."""

    def job(engine: Engine) -> Mapping[str, Any]:
        tokenizer = engine.loaded.tokenizer
        unknown = [token for token in options["tokens"] if not tokenizer.knows(token)]
        if unknown:
            raise RequestError(f"token id {unknown[0]} is not in the vocabulary", param="tokens")
        return {"content": tokenizer.decode(options["tokens"], skip_special=False)}

    return job
