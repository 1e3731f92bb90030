"""From what a request says to the token ids its answer starts from."""

from __future__ import annotations

from homespecd.bundle.chat import ChatTemplate
from homespecd.bundle.chat_encoding import encode_chat
from homespecd.bundle.tokenizer import Tokenizer
from homespecd.errors import RequestError
from homespecd.worker.messages import GenerationRequest


def prompt_ids(
    request: GenerationRequest, *, tokenizer: Tokenizer, template: ChatTemplate, context: int
) -> tuple[int, ...]:
    """The prompt as token ids, at least one, and short enough that an answer can follow.

    Raises:
        RequestError: the template refuses the messages, an id is unknown, or the prompt leaves no
            room in the context (code `context_length_exceeded`, naming both lengths).
    """
    param = "prompt" if request.messages is None else "messages"
    if request.messages is not None:
        ids = tuple(encode_chat(tokenizer, template, request.messages, request.tools))
    elif isinstance(request.prompt, str):
        # A raw prompt is the caller's own template: control tokens in it are meant.
        ids = tuple(tokenizer.encode(request.prompt, parse_special=True, add_bos=tokenizer.add_bos))
    else:
        assert request.prompt is not None
        ids = request.prompt
        for token in ids:
            if not 0 <= token < tokenizer.vocab_size:
                raise RequestError(
                    f"token id {token} is not in the vocabulary (0 … {tokenizer.vocab_size - 1})",
                    param=param,
                )
    if not ids:
        start = (
            tokenizer.bos_id if tokenizer.bos_id is not None else min(tokenizer.eos_ids, default=0)
        )
        ids = (start,)
    if len(ids) >= context:
        raise RequestError(
            f"the prompt has {len(ids)} tokens and the context holds {context}, "
            "of which an answer needs at least one",
            code="context_length_exceeded",
            param=param,
            hint="shorten the prompt, or raise `context` of this model in the configuration",
        )
    return ids
