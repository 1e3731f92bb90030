"""Running requests from inside the engine, as `verify` and `bench` do: same queue, same steps."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from homespecd.errors import HomespecError, ModelError, RequestError
from homespecd.worker.account import Account
from homespecd.worker.messages import GenerationRequest

if TYPE_CHECKING:
    from homespecd.worker.engine import Engine


def whole_number(options: Mapping[str, Any], name: str, *, default: int, most: int) -> int:
    """An option of a job.

    Raises:
        RequestError: it is given and is not a whole number from 1 to `most`.
    """
    value = options.get(name)
    if value is None:
        return default
    if isinstance(value, bool) or not isinstance(value, int) or not 1 <= value <= most:
        raise RequestError(f"{name} must be a whole number from 1 to {most}", param=name)
    return value


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
    if cold and engine.scheduler.idle:
        for slot in engine.slots:
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
                engine.scheduler.cancel(request)
            raise ModelError("the job was cancelled")
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

    def finish(conversation: Any, outcome: Any) -> None:
        if outcome.finish_reason is None:
            errors.append(outcome.error or ModelError("the request was cancelled"))
            return
        account = conversation.account
        runs[index] = Run(
            tokens=tuple(conversation.slot.committed[account.prompt_tokens :]),
            text="".join(text),
            account=account,
            report=engine.report(conversation),
        )

    return engine.start(request, emit=lambda part, _tokens: text.append(part), finish=finish)
