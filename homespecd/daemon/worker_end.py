"""What is said of a worker's end: to the log, and to whoever waited for an answer of it."""

from __future__ import annotations

import signal
from collections.abc import Callable

from homespecd.errors import RequestError


def end_reason(status: int | None, *, verdict: str, out_of_memory: Callable[[], bool]) -> str:
    """Why a worker has ended.

    Args:
        status: its exit code, or a signal's number below zero; None while it is not known.
        verdict: why it was ended, "" when it was not us.
        out_of_memory: asked of one that was killed, and not by us.
    """
    if verdict:
        return verdict_reason(verdict)
    if status == -signal.SIGKILL and out_of_memory():
        return "its worker was killed by the kernel, which was out of memory for it"
    return _exit_reason(status)


def verdict_reason(verdict: str) -> str:
    """The same of one that was ended and may not have died yet; "" without a verdict."""
    return f"its worker was ended: {verdict}" if verdict else ""


def death_error(model: str, reason: str) -> Callable[[str], RequestError]:
    """Makes the error for whoever waited, from when in its wait that was."""

    def died(when: str) -> RequestError:
        return RequestError(
            f"model {model!r} stopped {when}: {reason}",
            status=503,
            code="worker_died",
            hint="the next request starts it again",
            retry_after_s=1.0,
        )

    return died


def cancelled_job(model: str, kind: str, why: str) -> RequestError:
    """For whoever asked for a job that is broken off."""
    return RequestError(
        f"the {kind} of model {model!r} was broken off: {why}",
        status=503,
        code="job_cancelled",
        hint="start it again later",
        retry_after_s=1.0,
    )


def _exit_reason(status: int | None) -> str:
    if status is None:
        return "its worker ended"
    if status >= 0:
        return f"its worker ended with exit code {status}"
    try:
        name = signal.Signals(-status).name
    except ValueError:
        name = f"signal {-status}"
    return f"its worker was ended by {name}"
