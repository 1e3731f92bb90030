"""What the supervisor and a worker say to each other, and how it is framed.

A frame is a 4-byte big-endian length and that many bytes of UTF-8 JSON: one object with a `type`.
Both ends are this program at one version, so there is no negotiation; frames are small, and the
token loop itself never crosses the boundary.

supervisor → worker: load, generate, cancel, snapshot, verify, bench, drafters, ping, stop
worker → supervisor: loading, ready, failed, delta, done, error, snapshot, result, drafters, pong,
ending

"pong" says what the engine is doing (`worker.progress`), whatever that is.
"ending" says why a worker ends by itself, which it then does.
"drafters" carries settings that differ in drafters and speculation alone; its answer says that the
change is complete.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

from homespecd.decoding.constraint import GrammarSpec
from homespecd.decoding.params import SamplingParams
from homespecd.decoding.tool_calls import ToolChoice
from homespecd.governor.protocol import SpeculationMode

MAX_FRAME_BYTES = 64 * 1024 * 1024
_LENGTH = struct.Struct(">I")

Frame = Mapping[str, Any]


def pack(frame: Frame) -> bytes:
    """One frame as bytes."""
    body = json.dumps(frame, ensure_ascii=False, separators=(",", ":")).encode()
    return _LENGTH.pack(len(body)) + body


class Unpacker:
    """Bytes in any pieces to whole frames."""

    def __init__(self) -> None:
        self._buffer = bytearray()

    def feed(self, data: bytes) -> Iterator[dict[str, Any]]:
        """Yield every frame that `data` completes. Raises ValueError on a frame over the limit."""
        self._buffer += data
        while len(self._buffer) >= _LENGTH.size:
            (length,) = _LENGTH.unpack_from(self._buffer)
            if length > MAX_FRAME_BYTES:
                raise ValueError(f"frame of {length} bytes, more than {MAX_FRAME_BYTES}")
            if len(self._buffer) < _LENGTH.size + length:
                return
            body = bytes(self._buffer[_LENGTH.size : _LENGTH.size + length])
            del self._buffer[: _LENGTH.size + length]
            yield json.loads(body)


@dataclass(frozen=True)
class DrafterSettings:
    """One drafter as a worker needs it. `path` is "" for kinds without a model."""

    name: str
    kind: str  # "ngram" | "model"
    path: str = ""
    variant: str = ""
    provider: str = "auto"
    provider_options: Mapping[str, Any] = field(default_factory=dict)
    max_draft_tokens: int = 8


@dataclass(frozen=True)
class SpeculationSettings:
    enabled: bool = True
    min_speedup: float = 1.0
    max_draft_tokens: int = 16
    probe_budget: float = 0.02


@dataclass(frozen=True)
class WorkerSettings:
    """All that one worker must know; absolute paths, resolved sizes, no reference to a file.

    provider_options: of `provider`, as it takes them; for "auto", a table of these per provider.
    device_memory_bytes: of a device that has its own, how much a session may take; None = all.
    withhold_drafts: why draft models are not to be in memory now; "" = they may.
    """

    name: str
    path: str
    variant: str = ""
    provider: str = "auto"
    provider_options: Mapping[str, Any] = field(default_factory=dict)
    provider_required: bool = False
    device_memory_bytes: int | None = None
    threads: int = 0
    context: int = 4096
    slots: int = 2
    state_dir: str = ""
    speculation: SpeculationSettings = field(default_factory=SpeculationSettings)
    drafters: tuple[DrafterSettings, ...] = ()
    withhold_drafts: str = ""

    def to_frame(self) -> dict[str, Any]:
        return asdict(self)

    @classmethod
    def from_frame(cls, frame: Frame) -> WorkerSettings:
        return cls(
            **{
                **frame,
                "speculation": SpeculationSettings(**frame["speculation"]),
                "drafters": tuple(DrafterSettings(**one) for one in frame["drafters"]),
            }
        )


@dataclass(frozen=True)
class GenerationRequest:
    """One answer to produce. Exactly one of `messages` and `prompt` is given.

    messages: OpenAI chat messages (content already joined to text), rendered by the model's own
    template with `tools` if any; tool_choice says whether one of those must be called. prompt: raw
    text, or token ids.
    max_tokens None = as far as the context goes. stop: strings to cut at. drafter: only this one.
    max_draft_tokens: an upper bound on k for this request, None = the configuration's.
    min_tokens: end-of-text ids are not allowed before so many tokens.
    grammar: what the text must be; None = anything.
    peer: the user who asks, None = over TCP, or nobody in particular.
    choices: how many answers; each after the first has noise of its own derived from the seed.
    """

    messages: tuple[Mapping[str, Any], ...] | None = None
    prompt: str | tuple[int, ...] | None = None
    tools: tuple[Mapping[str, Any], ...] = ()
    tool_choice: ToolChoice = field(default_factory=ToolChoice)
    sampling: SamplingParams = field(default_factory=SamplingParams)
    max_tokens: int | None = None
    min_tokens: int = 0
    stop: tuple[str, ...] = ()
    ignore_eos: bool = False
    logprobs: int | None = None  # None = none; N = with the N most likely alternatives
    choices: int = 1
    peer: int | None = None
    grammar: GrammarSpec | None = None
    speculation: SpeculationMode = SpeculationMode.AUTO
    drafter: str | None = None
    max_draft_tokens: int | None = None

    def to_frame(self) -> dict[str, Any]:
        return asdict(self)

    @classmethod
    def from_frame(cls, frame: Frame) -> GenerationRequest:
        sampling = dict(frame["sampling"])
        # JSON turns integer keys into strings.
        sampling["logit_bias"] = {int(k): v for k, v in sampling["logit_bias"].items()}
        prompt = frame["prompt"]
        return cls(
            **{
                **frame,
                "messages": None if frame["messages"] is None else tuple(frame["messages"]),
                "prompt": tuple(prompt) if isinstance(prompt, list) else prompt,
                "tools": tuple(frame["tools"]),
                "tool_choice": ToolChoice(**frame["tool_choice"]),
                "stop": tuple(frame["stop"]),
                "sampling": SamplingParams(**sampling),
                "grammar": None if frame["grammar"] is None else GrammarSpec(**frame["grammar"]),
                "speculation": SpeculationMode(frame["speculation"]),
            }
        )
