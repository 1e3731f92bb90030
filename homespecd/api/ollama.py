"""What a client may ask in Ollama's words.

As strict as `api.openai`: what is known and cannot be done is refused by name. Options that say how
a model is to be *run* (`num_ctx`, `num_gpu` and the like) are the exception: clients send them with
every request, and here the configuration says how a model runs, so they are checked for their type
and go no further.

Defaults are Ollama's: temperature 0.8, top_k 40, top_p 0.9, streaming on.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any, Literal

from pydantic import Field

from homespecd.api import fields
from homespecd.api.bodies import json_object
from homespecd.api.conversation import Schema, Tool
from homespecd.api.openai import MAX_LOGPROBS, validated
from homespecd.decoding.params import SamplingParams
from homespecd.errors import RequestError
from homespecd.worker.messages import GenerationRequest

# How a model is run: the configuration's to say.
_OF_THE_RUNTIME = (
    "num_ctx", "num_batch", "num_gpu", "main_gpu", "num_thread", "num_keep", "numa", "low_vram",
    "f16_kv", "use_mmap", "use_mlock", "vocab_only",
)  # fmt: skip

# Known, and not offered: option or parameter → the values that ask for nothing.
_UNSUPPORTED: dict[str, tuple[Any, ...]] = {
    "images": ([],),
    "suffix": ("",),
    "template": ("",),
    "context": ([],),
    "think": (False,),
    "truncate": (False,),
    "shift": (False,),
}
_UNSUPPORTED_OPTIONS: dict[str, tuple[Any, ...]] = {
    "mirostat": (0,),
    "mirostat_tau": (),
    "mirostat_eta": (),
    "tfs_z": (1, 1.0),
    "typical_p": (1, 1.0),
    "penalize_newline": (True,),
    "repeat_last_n": (-1,),
}


class OllamaOptions(Schema):
    temperature: float = Field(default=0.8, ge=0, le=2)
    top_k: int = Field(default=40, ge=0, le=2**31)
    top_p: float = Field(default=0.9, gt=0, le=1)
    min_p: float = Field(default=0.0, ge=0, le=1)
    seed: int | None = Field(default=None, ge=0, lt=2**63)
    num_predict: int = Field(default=-1, ge=-2, le=2**31)
    repeat_penalty: float = Field(default=1.0, ge=0.01, le=10)
    presence_penalty: float = Field(default=0.0, ge=-2, le=2)
    frequency_penalty: float = Field(default=0.0, ge=-2, le=2)
    stop: fields.Stop = ()


class OllamaFunction(Schema):
    name: str
    arguments: dict[str, Any]
    index: int | None = None


class OllamaCall(Schema):
    id: str | None = None
    type: Literal["function"] = "function"
    function: OllamaFunction


class OllamaMessage(Schema):
    role: Literal["system", "user", "assistant", "tool"]
    content: str = ""
    tool_name: str | None = None
    tool_call_id: str | None = None
    tool_calls: list[OllamaCall] | None = None

    def rendered(self) -> dict[str, Any]:
        """As a chat template gets it."""
        message: dict[str, Any] = {"role": self.role, "content": self.content}
        if self.tool_name is not None:
            message["name"] = self.tool_name
        if self.tool_call_id is not None:
            message["tool_call_id"] = self.tool_call_id
        if self.tool_calls:
            message["tool_calls"] = [
                {
                    "type": "function",
                    "function": {
                        "name": call.function.name,
                        "arguments": json.dumps(call.function.arguments, ensure_ascii=False),
                    },
                }
                for call in self.tool_calls
            ]
        return message


class _Common(Schema):
    model: str = Field(min_length=1)
    stream: bool = True
    format: fields.OllamaFormat = None
    options: OllamaOptions = Field(default_factory=OllamaOptions)
    keep_alive: fields.KeepAlive = None
    logprobs: bool = False
    top_logprobs: int = Field(default=0, ge=0, le=MAX_LOGPROBS)

    def generation(self, **what: Any) -> GenerationRequest:
        options = self.options
        return GenerationRequest(
            **what,
            sampling=SamplingParams(
                temperature=options.temperature,
                top_k=options.top_k,
                top_p=options.top_p,
                min_p=options.min_p,
                seed=options.seed,
                presence_penalty=options.presence_penalty,
                frequency_penalty=options.frequency_penalty,
                repetition_penalty=options.repeat_penalty,
            ),
            max_tokens=options.num_predict if options.num_predict > 0 else None,
            stop=options.stop,
            grammar=self.format,
            logprobs=self.top_logprobs if self.logprobs else None,
        )


class OllamaChatRequest(_Common):
    messages: list[OllamaMessage] = Field(default_factory=list)
    tools: list[Tool] = Field(default_factory=list)


class OllamaGenerateRequest(_Common):
    prompt: str = ""
    system: str = ""
    raw: bool = False


class OllamaShowRequest(Schema):
    model: str = Field(min_length=1)
    verbose: bool = False


@dataclass(frozen=True)
class OllamaAsked:
    """A request understood. generation None: the model is only to be loaded, or to go.

    keep_alive_s: how long the model stays without work afterwards, None = as configured.
    """

    model: str
    generation: GenerationRequest | None
    stream: bool
    keep_alive_s: float | None


def parse_chat(body: bytes) -> OllamaAsked:
    """The body of `POST /api/chat`. Raises RequestError (400) naming the parameter."""
    asked = validated(OllamaChatRequest, _prepared(body))
    generation = None
    if asked.messages:
        generation = asked.generation(
            messages=tuple(message.rendered() for message in asked.messages),
            tools=tuple(tool.model_dump(exclude_none=True) for tool in asked.tools),
        )
    return OllamaAsked(asked.model, generation, asked.stream, asked.keep_alive)


def parse_generate(body: bytes) -> OllamaAsked:
    """The body of `POST /api/generate`. Raises RequestError (400) naming the parameter."""
    asked = validated(OllamaGenerateRequest, _prepared(body))
    generation = None
    if asked.prompt and asked.raw:
        if asked.system:
            raise RequestError("a raw prompt has no system text", param="system")
        generation = asked.generation(prompt=asked.prompt)
    elif asked.prompt:
        said = [{"role": "user", "content": asked.prompt}]
        if asked.system:
            said.insert(0, {"role": "system", "content": asked.system})
        generation = asked.generation(messages=tuple(said))
    return OllamaAsked(asked.model, generation, asked.stream, asked.keep_alive)


def parse_show(body: bytes) -> str:
    """The model that `POST /api/show` asks about."""
    given = _object(body)
    if "name" in given:  # the older word
        given.setdefault("model", given["name"])
        del given["name"]
    return validated(OllamaShowRequest, given).model


def _prepared(body: bytes) -> dict[str, Any]:
    given = _without(_object(body), _UNSUPPORTED, "")
    options = given.get("options")
    if isinstance(options, dict):
        options = {key: value for key, value in options.items() if value is not None}
        options = _without(options, _UNSUPPORTED_OPTIONS, "options.")
        given["options"] = {
            key: value
            for key, value in options.items()
            if key not in _OF_THE_RUNTIME or not isinstance(value, int | float)
        }
    messages = given.get("messages")
    if isinstance(messages, list):
        given["messages"] = [
            _without(_without_nulls(one), {"images": ([],), "thinking": ("",)}, f"messages[{i}].")
            if isinstance(one, dict)
            else one
            for i, one in enumerate(messages)
        ]
    return given


def _object(body: bytes) -> dict[str, Any]:
    return _without_nulls(json_object(body))


def _without_nulls(given: dict[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in given.items() if value is not None}


def _without(
    given: dict[str, Any], unsupported: dict[str, tuple[Any, ...]], where: str
) -> dict[str, Any]:
    for name, neutral in unsupported.items():
        if name in given and not any(
            type(given[name]) is type(one) and given[name] == one for one in neutral
        ):
            raise RequestError(
                f"{where}{name} is not supported" + (" with this value" if neutral else ""),
                code="unsupported_parameter",
                param=f"{where}{name}",
            )
    return {key: value for key, value in given.items() if key not in unsupported}
