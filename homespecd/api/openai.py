"""What a client may ask, in OpenAI's words, and nothing else.

Strict on purpose: a parameter that does nothing would be a promise broken in silence. Null counts
as absent everywhere. A parameter of OpenAI's (or of a similar server) that this program knows and
cannot do is refused by name unless it is given in its neutral value.

Defaults are OpenAI's: temperature 1, and 16 tokens for text completions; a chat goes on to the end
of the context.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal, TypeVar

from pydantic import BaseModel, Field, ValidationError

from homespecd.api import fields, values
from homespecd.api.bodies import prepared
from homespecd.api.conversation import Message, Schema, Tool
from homespecd.api.faults import refused
from homespecd.decoding.constraint import GrammarSpec
from homespecd.decoding.params import SamplingParams
from homespecd.decoding.tool_calls import ToolChoice
from homespecd.errors import RequestError
from homespecd.governor.protocol import SpeculationMode
from homespecd.worker.messages import GenerationRequest

MAX_CHOICES = 16
MAX_LOGPROBS = 20
DEFAULT_COMPLETION_TOKENS = 16


class StreamOptions(Schema):
    include_usage: bool = False


class SpeculationOptions(Schema):
    """The `homespec` object of a request."""

    speculation: Literal["auto", "off", "on"] = "auto"
    drafter: str | None = None
    max_draft_tokens: int | None = Field(default=None, ge=1, le=64)


class _Common(Schema):
    model: str = Field(min_length=1)
    stream: bool = False
    stream_options: StreamOptions | None = None
    max_tokens: int | None = Field(default=None, ge=1, le=2**31)
    temperature: float = Field(default=1.0, ge=0, le=2)
    top_p: float = Field(default=1.0, gt=0, le=1)
    top_k: int = Field(default=0, ge=0, le=2**31)
    min_p: float = Field(default=0.0, ge=0, le=1)
    seed: int | None = Field(default=None, ge=0, lt=2**63)
    stop: fields.Stop = ()
    presence_penalty: float = Field(default=0.0, ge=-2, le=2)
    frequency_penalty: float = Field(default=0.0, ge=-2, le=2)
    repetition_penalty: float = Field(default=1.0, ge=0.01, le=10)
    logit_bias: fields.LogitBias = Field(default_factory=dict)
    response_format: fields.ResponseFormat = None
    grammar: str | None = Field(default=None, min_length=1)
    n: int = Field(default=1, ge=1, le=MAX_CHOICES)
    ignore_eos: bool = False
    min_tokens: int = Field(default=0, ge=0, le=2**31)
    user: str | None = None  # accepted: who asks is known from the socket
    homespec: SpeculationOptions = Field(default_factory=SpeculationOptions)

    def generation(self, **what: Any) -> GenerationRequest:
        return GenerationRequest(
            **what,
            sampling=SamplingParams(
                temperature=self.temperature,
                top_k=self.top_k,
                top_p=self.top_p,
                min_p=self.min_p,
                seed=self.seed,
                presence_penalty=self.presence_penalty,
                frequency_penalty=self.frequency_penalty,
                repetition_penalty=self.repetition_penalty,
                logit_bias=self.logit_bias,
            ),
            stop=self.stop,
            choices=self.n,
            grammar=self._grammar(),
            ignore_eos=self.ignore_eos,
            min_tokens=self.min_tokens,
            speculation=SpeculationMode(self.homespec.speculation),
            drafter=self.homespec.drafter,
            max_draft_tokens=self.homespec.max_draft_tokens,
        )

    def _grammar(self) -> GrammarSpec | None:
        spec = self.response_format
        if self.grammar is not None:
            if spec is not None:
                raise RequestError(
                    "response_format and grammar exclude each other", param="grammar"
                )
            spec = GrammarSpec("grammar", self.grammar, "grammar")
        if spec is None:
            return None
        self.check_end(spec.param)
        return spec

    def check_end(self, param: str) -> None:
        """A text that follows a grammar has an end, and it is the grammar that says where."""
        for name, given in (("ignore_eos", self.ignore_eos), ("min_tokens", self.min_tokens)):
            if given:
                raise RequestError(f"{name} cannot be had together with {param}", param=name)


class ChatRequest(_Common):
    messages: list[Message] = Field(min_length=1)
    max_completion_tokens: int | None = Field(default=None, ge=1, le=2**31)
    logprobs: bool = False
    top_logprobs: int | None = Field(default=None, ge=0, le=MAX_LOGPROBS)
    tools: list[Tool] = Field(default_factory=list)
    tool_choice: fields.ToolChoice = None
    parallel_tool_calls: bool = True

    def tool_use(self) -> dict[str, Any]:
        """`tools` and `tool_choice` of a GenerationRequest."""
        names = [tool.function.name for tool in self.tools]
        choice = self.tool_choice
        if not names:
            if choice not in (None, "none", "auto"):
                raise RequestError("tool_choice: there are no tools", param="tool_choice")
            return {}
        if len(set(names)) < len(names):
            raise RequestError("two tools have the same name", param="tools")
        if choice == "none":
            return {}
        if self.grammar is not None:
            raise RequestError("grammar and tools exclude each other", param="grammar")
        named = choice.name if isinstance(choice, values.NamedTool) else None
        if named is not None and named not in names:
            raise RequestError(f"tool_choice: there is no tool {named!r}", param="tool_choice")
        use = ToolChoice(
            must=named is not None or choice == "required",
            name=named,
            parallel=self.parallel_tool_calls,
        )
        # A tool that must come out right has an end, like any other grammar.
        strict = use.must or any(tool.function.strict for tool in self.tools)
        if strict or not use.parallel:
            self.check_end("tools")
        tools = tuple(tool.model_dump(exclude_none=True) for tool in self.tools)
        return {"tools": tools, "tool_choice": use}


class CompletionRequest(_Common):
    prompt: fields.Prompt
    logprobs: int | None = Field(default=None, ge=0, le=MAX_LOGPROBS)


@dataclass(frozen=True)
class Asked:
    """A request understood: which model, what to generate, and how to send it."""

    model: str
    generation: GenerationRequest
    stream: bool
    include_usage: bool


def parse_chat(body: bytes) -> Asked:
    """The body of `POST /v1/chat/completions`. Raises RequestError (400) naming the parameter."""
    chat = validated(ChatRequest, prepared(body))
    limits = {n for n in (chat.max_tokens, chat.max_completion_tokens) if n is not None}
    if len(limits) > 1:
        raise RequestError(
            "max_tokens and max_completion_tokens say different things",
            param="max_completion_tokens",
        )
    if chat.top_logprobs is not None and not chat.logprobs:
        raise RequestError("top_logprobs needs logprobs: true", param="top_logprobs")
    return _asked(
        chat,
        chat.generation(
            messages=tuple(message.rendered() for message in chat.messages),
            max_tokens=limits.pop() if limits else None,
            logprobs=(chat.top_logprobs or 0) if chat.logprobs else None,
            **chat.tool_use(),
        ),
    )


def parse_completion(body: bytes) -> Asked:
    """The body of `POST /v1/completions`. Raises RequestError (400) naming the parameter."""
    asked = validated(CompletionRequest, prepared(body))
    limit = DEFAULT_COMPLETION_TOKENS if asked.max_tokens is None else asked.max_tokens
    return _asked(
        asked, asked.generation(prompt=asked.prompt, max_tokens=limit, logprobs=asked.logprobs)
    )


def _asked(request: _Common, generation: GenerationRequest) -> Asked:
    options = request.stream_options
    if options is not None and not request.stream:
        raise RequestError("only a stream has stream_options", param="stream_options")
    return Asked(
        model=request.model,
        generation=generation,
        stream=request.stream,
        include_usage=options is not None and options.include_usage,
    )


_Model = TypeVar("_Model", bound=BaseModel)


def validated(schema: type[_Model], given: dict[str, Any]) -> _Model:
    try:
        return schema.model_validate(given)
    except ValidationError as error:
        raise refused(error) from None
