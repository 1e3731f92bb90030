"""What the HTTP routes need from the rest of the program; the daemon implements it.

The routes translate; everything that decides (which model, is there room, may this peer) is behind
`Service`. An answer arrives as batches of events, so that what has piled up costs one write.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from homespecd.errors import RequestError
from homespecd.worker.messages import GenerationRequest

_Entries = Sequence[Mapping[str, Any]]


@dataclass(frozen=True)
class Peer:
    """Who is at the other end, as the kernel says; all None/"" for a TCP peer."""

    uid: int | None = None
    gid: int | None = None
    pid: int | None = None
    comm: str = ""


@dataclass(frozen=True, slots=True)
class Delta:
    """What a choice has come to since its last delta.

    text: what can be sent; may be empty. tokens: how many were committed.
    logprobs: one entry per token in the form of OpenAI's chats, None when not asked for.
    tool_calls: pieces of calls, `{"index", "arguments"}`, and "id" and "name" in the first of each;
    their arguments joined are the call's. None when there are none.
    """

    text: str
    tokens: int
    index: int = 0
    logprobs: _Entries | None = None
    tool_calls: _Entries | None = None


def joined(first: Delta, then: Delta) -> Delta:
    """Two deltas of one choice as one."""
    return Delta(
        first.text + then.text,
        first.tokens + then.tokens,
        first.index,
        _both(first.logprobs, then.logprobs),
        _pieces(first.tool_calls, then.tool_calls),
    )


def _both(first: _Entries | None, then: _Entries | None) -> _Entries | None:
    if first is None or then is None:
        return then if first is None else first
    return [*first, *then]


def _pieces(first: _Entries | None, then: _Entries | None) -> _Entries | None:
    """Pieces of calls, those that follow each other in one call as one."""
    if not first or not then:
        return first or then
    last, next_ = first[-1], then[0]
    if last["index"] != next_["index"]:
        return [*first, *then]
    whole = {**last, "arguments": last["arguments"] + next_["arguments"]}
    return [*first[:-1], whole, *then[1:]]


@dataclass(frozen=True, slots=True)
class Done:
    """The answer is complete.

    finish_reasons: one per choice.
    usage: prompt_tokens, completion_tokens, cached_tokens. homespec: the response's own object.
    """

    finish_reasons: Sequence[str]
    usage: Mapping[str, int]
    homespec: Mapping[str, Any]


Event = Delta | Done | RequestError


class Answer(Protocol):
    """The events of one request, in order: deltas, then one `Done` or one `RequestError`.

    id: what the log calls this request, and the end of the id that its client is told.
    """

    @property
    def id(self) -> str: ...

    async def events(self) -> Sequence[Event]:
        """Everything that has arrived since the last call; waits for at least one event."""
        ...

    def close(self) -> None:
        """The asker needs no more: stops the generation if it still runs. Idempotent."""
        ...


@dataclass(frozen=True)
class ModelCard:
    """A configured model, loaded or not."""

    name: str
    created_s: int
    state: str


@dataclass(frozen=True)
class Reloaded:
    """changes: a line each; () when what the files say is in use already.

    warnings: what is no error and may not be meant, a line each with its place.
    """

    changes: Sequence[str]
    warnings: Sequence[str] = ()


class Service(Protocol):
    """Everything behind the routes. Methods raise `RequestError` for what the asker did wrong."""

    @property
    def max_body_bytes(self) -> int: ...

    @property
    def api_keys(self) -> Sequence[str]:
        """Keys of which a TCP peer must know one; empty = none is asked for."""
        ...

    async def generate(self, model: str, request: GenerationRequest, peer: Peer) -> Answer:
        """Begin an answer, loading the model if need be. Cancelling the call cancels no load."""
        ...

    def models(self) -> Sequence[ModelCard]: ...

    def not_ready(self) -> Sequence[str]:
        """Pinned models that cannot answer yet; empty = ready."""
        ...

    async def status(self) -> Mapping[str, Any]:
        """The snapshot of the outside contract."""
        ...

    async def reload(self) -> Reloaded:
        """Read the configuration again. Raises ConfigError."""
        ...

    async def load(self, model: str) -> None: ...

    async def unload(self, model: str) -> None: ...

    def permit(self, model: str, peer: Peer) -> None:
        """Raises RequestError: there is no such model (404), or not for this peer (403)."""
        ...

    def permit_control(self, model: str | None, peer: Peer) -> None:
        """As `permit`, for loads, unloads and jobs; None = for what concerns the whole service."""
        ...

    def keep_alive(self, model: str, seconds: float | None) -> None:
        """How long the model stays in memory without work, until it goes; None = as configured."""
        ...

    async def call(self, model: str, kind: str, options: Mapping[str, Any]) -> Mapping[str, Any]:
        """A job of the model's worker: "verify", "bench", "tokenize" or "detokenize"."""
        ...
