"""What a client may ask, in OpenAI's words, and nothing else.

Strict on purpose: a parameter that does nothing would be a promise broken in silence. Null counts
as absent everywhere. A parameter of OpenAI's (or of a similar server) that this program knows and
cannot do is refused by name unless it is given in its neutral value.

Defaults are OpenAI's: temperature 1, and 16 tokens for text completions; a chat goes on to the end
of the context.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Annotated, Any, Literal, TypeVar

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, ValidationError
from pydantic_core import ErrorDetails, PydanticCustomError

from homespecd.api.bodies import prepared
from homespecd.decoding.constraint import GrammarSpec
from homespecd.decoding.params import SamplingParams
from homespecd.errors import RequestError
from homespecd.governor.protocol import SpeculationMode
from homespecd.worker.messages import GenerationRequest

MAX_STOPS = 16
MAX_CHOICES = 16
MAX_LOGPROBS = 20
DEFAULT_COMPLETION_TOKENS = 16

_SCHEMA_KEYS = {"name", "description", "schema", "strict"}

_ROLES = {"system": "system", "developer": "system", "user": "user", "assistant": "assistant"}


def _bad(message: str) -> PydanticCustomError:
    # Braces would be taken for a template of pydantic's.
    return PydanticCustomError("homespecd", "{message}", {"message": message})


def _stop(value: Any) -> tuple[str, ...]:
    stops = [value] if isinstance(value, str) else value
    if not isinstance(stops, list) or not all(isinstance(one, str) for one in stops):
        raise _bad("must be a string or a list of strings")
    if len(stops) > MAX_STOPS:
        raise _bad(f"has {len(stops)} strings, at most {MAX_STOPS} are possible")
    if "" in stops:
        raise _bad("must not hold an empty string")
    return tuple(stops)


def _logit_bias(value: Any) -> dict[int, float]:
    if not isinstance(value, dict):
        raise _bad("must be an object of token ids and biases")
    biases: dict[int, float] = {}
    for token, bias in value.items():
        if not (token.isascii() and token.isdigit() and len(token) < 10):
            raise _bad(f"{token!r} is not a token id")
        if isinstance(bias, bool) or not isinstance(bias, int | float) or not abs(bias) <= 100:
            raise _bad(f"the bias of token {token} must be a number from -100 to 100")
        biases[int(token)] = float(bias)
    return biases


def _content(value: Any) -> str:
    """A string, or a list of text parts, which are joined."""
    if isinstance(value, str):
        return value
    if not isinstance(value, list) or not value:
        raise _bad("must be a string or a list of text parts")
    texts = []
    for part in value:
        if not isinstance(part, dict) or not isinstance(part.get("type"), str):
            raise _bad("a part must be an object with a `type`")
        if part["type"] != "text":
            raise _bad(f'parts of type {part["type"]!r} are not supported, only "text"')
        if set(part) != {"type", "text"} or not isinstance(part["text"], str):
            raise _bad("a text part has `type` and `text` and nothing else")
        texts.append(part["text"])
    return "".join(texts)


def _prompt(value: Any) -> str | tuple[int, ...]:
    if isinstance(value, list) and len(value) == 1 and isinstance(value[0], str | list):
        value = value[0]
    if isinstance(value, str):
        return value
    if not isinstance(value, list) or not value:
        raise _bad("must be a string or a list of token ids")
    if all(type(token) is int and 0 <= token < 2**31 for token in value):
        return tuple(value)
    if all(isinstance(one, str | list) for one in value):
        raise _bad("several prompts in one request are not supported")
    raise _bad("token ids must be non-negative integers")


def _response_format(value: Any) -> GrammarSpec | None:
    kind = value.get("type") if isinstance(value, dict) else None
    if kind == "text" and len(value) == 1:
        return None
    if kind == "json_object" and len(value) == 1:
        return GrammarSpec("json", '{"type":"object"}', "response_format")
    if kind != "json_schema" or set(value) != {"type", "json_schema"}:
        raise _bad('must be {"type": "text"}, {"type": "json_object"} or of type "json_schema"')
    given = value["json_schema"]
    schema = given.get("schema") if isinstance(given, dict) else None
    if not isinstance(schema, dict) or not set(given) <= _SCHEMA_KEYS:
        raise _bad("json_schema must have a `name`, a `schema` (an object) and nothing unknown")
    # `strict` or not: what comes out follows the schema.
    return GrammarSpec("json", json.dumps(schema, ensure_ascii=False), "response_format")


class _Schema(BaseModel):
    model_config = ConfigDict(strict=True, extra="forbid", frozen=True, allow_inf_nan=False)


class _StreamOptions(_Schema):
    include_usage: bool = False


class _Extension(_Schema):
    """The `homespec` object of a request."""

    speculation: Literal["auto", "off", "on"] = "auto"
    drafter: str | None = None
    max_draft_tokens: int | None = Field(default=None, ge=1, le=64)


class _Message(_Schema):
    role: Literal["system", "developer", "user", "assistant"]
    content: Annotated[str, BeforeValidator(_content)]
    name: str | None = None

    def rendered(self) -> dict[str, str]:
        """As a chat template gets it. `developer` is the newer name of `system`."""
        message = {"role": _ROLES[self.role], "content": self.content}
        return message if self.name is None else {**message, "name": self.name}


class _Common(_Schema):
    model: str = Field(min_length=1)
    stream: bool = False
    stream_options: _StreamOptions | None = None
    max_tokens: int | None = Field(default=None, ge=1, le=2**31)
    temperature: float = Field(default=1.0, ge=0, le=2)
    top_p: float = Field(default=1.0, gt=0, le=1)
    top_k: int = Field(default=0, ge=0, le=2**31)
    min_p: float = Field(default=0.0, ge=0, le=1)
    seed: int | None = Field(default=None, ge=0, lt=2**63)
    stop: Annotated[tuple[str, ...], BeforeValidator(_stop)] = ()
    presence_penalty: float = Field(default=0.0, ge=-2, le=2)
    frequency_penalty: float = Field(default=0.0, ge=-2, le=2)
    repetition_penalty: float = Field(default=1.0, gt=0, le=10)
    logit_bias: Annotated[dict[int, float], BeforeValidator(_logit_bias)] = Field(
        default_factory=dict
    )
    response_format: Annotated[GrammarSpec | None, BeforeValidator(_response_format)] = None
    grammar: str | None = Field(default=None, min_length=1)
    n: int = Field(default=1, ge=1, le=MAX_CHOICES)
    ignore_eos: bool = False
    min_tokens: int = Field(default=0, ge=0, le=2**31)
    user: str | None = None  # accepted: who asks is known from the socket
    homespec: _Extension = Field(default_factory=_Extension)

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
        # A text that follows a grammar has an end, and it is the grammar that says where.
        for name, given in (("ignore_eos", self.ignore_eos), ("min_tokens", self.min_tokens)):
            if given:
                raise RequestError(f"{name} cannot be had together with {spec.param}", param=name)
        return spec


class _Chat(_Common):
    messages: list[_Message] = Field(min_length=1)
    max_completion_tokens: int | None = Field(default=None, ge=1, le=2**31)
    logprobs: bool = False
    top_logprobs: int | None = Field(default=None, ge=0, le=MAX_LOGPROBS)


class _Completion(_Common):
    prompt: Annotated[str | tuple[int, ...], BeforeValidator(_prompt)]
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
    chat = _validated(_Chat, prepared(body))
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
        ),
    )


def parse_completion(body: bytes) -> Asked:
    """The body of `POST /v1/completions`. Raises RequestError (400) naming the parameter."""
    asked = _validated(_Completion, prepared(body))
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


def _validated(schema: type[_Model], fields: dict[str, Any]) -> _Model:
    try:
        return schema.model_validate(fields)
    except ValidationError as error:
        raise _as_request_error(error.errors(include_url=False)[0]) from None


def _as_request_error(problem: ErrorDetails) -> RequestError:
    """The first problem, with its parameter written as a path: `messages[0].content`."""
    param = ""
    for part in problem["loc"]:
        if isinstance(part, int):
            param += f"[{part}]"
        else:
            param += f".{part}" if param else part
    match problem["type"]:
        case "extra_forbidden":
            message = "is not a parameter that is known"
        case "missing":
            message = "is missing"
        case "homespecd":
            message = problem["msg"]
        case _:
            message = problem["msg"][0].lower() + problem["msg"][1:]
    code = "unknown_parameter" if problem["type"] == "extra_forbidden" else None
    return RequestError(f"{param}: {message}", param=param, code=code)
