"""Running requests from inside the engine, as `verify` and `bench` do: same queue, same steps."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from homespecd.errors import HomespecError, ModelError, RequestError
from homespecd.worker.account import Account
from homespecd.worker.generate import Conversation
from homespecd.worker.messages import GenerationRequest
from homespecd.worker.prepare import prompt_ids
from homespecd.worker.prompt_set import BenchPrompt, shipped_prompts
from homespecd.worker.waiting import Outcome

if TYPE_CHECKING:
    from homespecd.worker.engine import Engine


def whole_number(
    options: Mapping[str, Any], name: str, *, default: int, most: int, least: int = 1
) -> int:
    """An option of a job.

    Raises:
        RequestError: it is given and is not a whole number from `least` to `most`.
    """
    value = options.get(name)
    if value is None:
        return default
    if isinstance(value, bool) or not isinstance(value, int) or not least <= value <= most:
        raise RequestError(f"{name} must be a whole number from {least} to {most}", param=name)
    return value


def shipped_that_fit(
    engine: Engine, *, max_tokens: int
) -> tuple[tuple[BenchPrompt, ...], list[str]]:
    """The shipped prompts that leave room for `max_tokens`; the categories of those that do not.

    Raises:
        RequestError: there is none.
    """
    loaded = engine.loaded
    context = loaded.target.spec.context
    fitting: list[BenchPrompt] = []
    left_out: list[str] = []
    for prompt in shipped_prompts():
        try:
            ids = prompt_ids(
                GenerationRequest(messages=prompt.messages),
                tokenizer=loaded.tokenizer,
                template=loaded.template,
                context=context,
            )
        except RequestError as error:
            if error.code != "context_length_exceeded":
                raise
            left_out.append(prompt.category)
            continue
        if len(ids) + max_tokens <= context:
            fitting.append(prompt)
        else:
            left_out.append(prompt.category)
    if not fitting:
        raise RequestError(
            f"none of the shipped prompts, with {max_tokens} tokens of answer, fits into the "
            f"context of {context}",
            hint="raise `context` of this model, or ask for fewer tokens",
        )
    return tuple(fitting), left_out


@dataclass(frozen=True)
class Run:
    """One answer as the engine made it: the ids, and what they cost."""

    tokens: tuple[int, ...]
    text: str
    account: Account
    report: dict[str, Any]


def run_one(engine: Engine, request: GenerationRequest, *, cold: bool) -> Run:
    """Answer one request while everyone else's go on.

    cold: forget what the slots hold first, so that nothing of the prompt is reused. Slots in use
    keep theirs.

    Raises:
        HomespecError: the request failed, or the worker is stopping.
    """
    return run_together(engine, [request], cold=cold)[0]


def run_together(engine: Engine, requests: list[GenerationRequest], *, cold: bool) -> list[Run]:
    """Answer several requests at once, sharing steps as clients' requests would."""
    if cold and engine.serving.scheduler.idle:
        for slot in engine.serving.slots:
            slot.forget()
    runs: dict[int, Run] = {}
    errors: list[HomespecError] = []
    started = [
        _start(engine, index, request, runs, errors) for index, request in enumerate(requests)
    ]
    while len(runs) + len(errors) < len(requests):
        engine.pump()
        if engine.job_cancelled:
            for request in started:
                engine.serving.scheduler.cancel(request)
            raise RequestError(
                "the job was cancelled: the model's worker ends, or nobody waits for it",
                status=503,
                code="job_cancelled",
                hint="start it again later",
                retry_after_s=1.0,
            )
    if errors:
        raise errors[0]
    return [runs[index] for index in range(len(requests))]


def _start(
    engine: Engine,
    index: int,
    request: GenerationRequest,
    runs: dict[int, Run],
    errors: list[HomespecError],
) -> int:
    text: list[str] = []

    def finish(conversation: Conversation | None, outcome: Outcome) -> None:
        if outcome.finish_reason is None:
            errors.append(outcome.error or ModelError("the request was cancelled"))
            return
        assert conversation is not None
        account = conversation.account
        runs[index] = Run(
            tokens=tuple(conversation.slot.committed[account.prompt_tokens :]),
            text="".join(text),
            account=account,
            report=engine.serving.report(account),
        )

    return engine.start(request, emit=lambda part, _tokens: text.append(part), finish=finish)
