"""What answers look like: the schemas of the API's description. Bodies are made elsewhere.

Every field that is always there is required here, so that what is tried against the description
fails when one goes missing.
"""

from __future__ import annotations

from typing import Any, Literal

from pydantic import BaseModel, Field

FinishReason = Literal["stop", "length", "tool_calls"]


class ErrorDetail(BaseModel):
    message: str
    type: str
    param: str | None
    code: str


class ErrorBody(BaseModel):
    """OpenAI's shape of an error."""

    error: ErrorDetail


class OllamaErrorBody(BaseModel):
    """Ollama's shape of an error."""

    error: str


class ConfigProblem(BaseModel):
    file: str
    line: int
    key: str
    message: str
    hint: str


class InvalidConfig(ErrorBody):
    """Why a configuration was refused: the first problem as an error, and all of them."""

    problems: list[ConfigProblem]


class PromptTokensDetails(BaseModel):
    cached_tokens: int


class Usage(BaseModel):
    prompt_tokens: int
    completion_tokens: int
    total_tokens: int
    prompt_tokens_details: PromptTokensDetails


class MeasuredSpeedup(BaseModel):
    measured: float | None
    plain_ms_per_token: float | None
    speculative_ms_per_token: float | None
    plain_samples: int
    speculative_samples: int


class Report(BaseModel):
    """What an answer cost, and what speculation did for it."""

    mode: Literal["speculative", "plain", "mixed"]
    drafter: str | None
    reason: str
    queued_ms: float
    ttft_ms: float
    prefill_ms: float
    decode_ms: float
    paused_ms: float
    decode_tok_s: float | None
    rounds: int
    draft_tokens_proposed: int
    draft_tokens_accepted: int
    acceptance_length: float | None
    draft_ms: float
    verify_ms: float
    speedup: MeasuredSpeedup
    peak_memory_bytes: int


class FunctionCalled(BaseModel):
    name: str
    arguments: str


class ToolCall(BaseModel):
    id: str
    type: Literal["function"]
    function: FunctionCalled


class AlternativeToken(BaseModel):
    token: str
    logprob: float
    bytes: list[int] | None


class TokenLogprob(AlternativeToken):
    top_logprobs: list[AlternativeToken]


class ChatLogprobs(BaseModel):
    content: list[TokenLogprob] | None
    refusal: None


class ChatMessage(BaseModel):
    role: Literal["assistant"]
    content: str | None
    refusal: None
    tool_calls: list[ToolCall] = Field(default_factory=list)


class ChatChoice(BaseModel):
    index: int
    message: ChatMessage
    logprobs: ChatLogprobs | None
    finish_reason: FinishReason


class _Answer(BaseModel):
    id: str
    created: int
    model: str
    usage: Usage
    homespec: Report


class ChatCompletion(_Answer):
    object: Literal["chat.completion"]
    choices: list[ChatChoice]


class CompletionLogprobs(BaseModel):
    tokens: list[str]
    token_logprobs: list[float]
    top_logprobs: list[dict[str, float] | None]
    text_offset: list[int]


class CompletionChoice(BaseModel):
    index: int
    text: str
    logprobs: CompletionLogprobs | None
    finish_reason: FinishReason


class Completion(_Answer):
    object: Literal["text_completion"]
    choices: list[CompletionChoice]


class ModelState(BaseModel):
    state: Literal["unloaded", "loading", "ready", "failed", "unloading"]


class ModelObject(BaseModel):
    id: str
    object: Literal["model"]
    created: int
    owned_by: str
    homespec: ModelState


class ModelList(BaseModel):
    object: Literal["list"]
    data: list[ModelObject]


class Health(BaseModel):
    status: Literal["ok"]


class Ready(BaseModel):
    status: Literal["ready"]


class NotReady(BaseModel):
    status: Literal["not ready"]
    models: list[str]


class Changes(BaseModel):
    """What a reload changed, and what may not be meant, a line each."""

    changes: list[str]
    warnings: list[str]


class Loaded(BaseModel):
    model: str
    state: Literal["ready", "unloaded"]


class Tokens(BaseModel):
    tokens: list[int]
    count: int
    max_model_len: int


class Text(BaseModel):
    content: str


class StatusMemory(BaseModel):
    cap_bytes: int
    used_bytes: int
    reserve_bytes: int
    pressure_avg10: float | None


class StatusQueue(BaseModel):
    waiting: int
    active: int


class StatusConfig(BaseModel):
    path: str
    generation: int
    loaded_at: float
    last_error: str | None


class Status(BaseModel):
    """The snapshot. `models` and `clients` are described in docs/operations.md."""

    version: str
    uptime_s: float
    config: StatusConfig
    memory: StatusMemory
    queue: StatusQueue
    models: list[dict[str, Any]]
    clients: list[dict[str, Any]]


class OllamaCalledFunction(BaseModel):
    name: str
    arguments: dict[str, Any]


class OllamaToolCall(BaseModel):
    id: str
    function: OllamaCalledFunction


class OllamaAnswerMessage(BaseModel):
    role: Literal["assistant"]
    content: str
    tool_calls: list[OllamaToolCall] = Field(default_factory=list)


class _OllamaAnswer(BaseModel):
    """Counts and times (in nanoseconds) are there when something was generated."""

    model: str
    created_at: str
    done: bool
    done_reason: Literal["stop", "length", "load", "unload"] = "stop"
    total_duration: int = 0
    load_duration: int = 0
    prompt_eval_count: int = 0
    prompt_eval_duration: int = 0
    eval_count: int = 0
    eval_duration: int = 0
    logprobs: list[TokenLogprob] = Field(default_factory=list)


class OllamaChat(_OllamaAnswer):
    message: OllamaAnswerMessage


class OllamaGenerated(_OllamaAnswer):
    response: str


class OllamaDetails(BaseModel):
    parent_model: str
    format: str
    family: str
    families: list[str]
    parameter_size: str
    quantization_level: str


class OllamaModel(BaseModel):
    name: str
    model: str
    size: int
    digest: str
    details: OllamaDetails


class OllamaTag(OllamaModel):
    modified_at: str


class OllamaTags(BaseModel):
    models: list[OllamaTag]


class OllamaRunning(OllamaModel):
    expires_at: str
    size_vram: int
    context_length: int


class OllamaProcesses(BaseModel):
    models: list[OllamaRunning]


class OllamaShown(BaseModel):
    modified_at: str
    template: str
    modelfile: str
    parameters: str
    details: OllamaDetails
    model_info: dict[str, Any]
    capabilities: list[str]


class OllamaVersion(BaseModel):
    version: str
    homespecd: str
