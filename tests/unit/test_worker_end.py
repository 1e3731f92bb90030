"""Why a worker has ended, in the words that the log and whoever waited get."""

from __future__ import annotations

import signal

import pytest

from homespecd.daemon.worker_end import cancelled_job, death_error, end_reason

BY_THE_KERNEL = "its worker was killed by the kernel, which was out of memory for it"


@pytest.mark.parametrize(
    ("status", "verdict", "out_of_memory", "reason"),
    [
        (0, "", False, "its worker ended with exit code 0"),
        (3, "", True, "its worker ended with exit code 3"),
        (None, "", True, "its worker ended"),
        (-signal.SIGSEGV, "", True, "its worker was ended by SIGSEGV"),
        (-signal.SIGKILL, "", False, "its worker was ended by SIGKILL"),
        (-signal.SIGKILL, "", True, BY_THE_KERNEL),
        (-signal.SIGKILL, "it hung", True, "its worker was ended: it hung"),
        (-250, "", False, "its worker was ended by signal 250"),
    ],
)
def test_an_end_has_a_reason(
    status: int | None, verdict: str, out_of_memory: bool, reason: str
) -> None:
    assert end_reason(status, verdict=verdict, out_of_memory=lambda: out_of_memory) == reason


def test_whoever_waited_may_ask_again() -> None:
    died = death_error("m", BY_THE_KERNEL)("before this answer began")
    assert str(died) == (
        f"model 'm' stopped before this answer began: {BY_THE_KERNEL} "
        "(the next request starts it again)"
    )
    job = cancelled_job("m", "bench", "the service is stopping")
    assert str(job) == (
        "the bench of model 'm' was broken off: the service is stopping (start it again later)"
    )
    assert [(one.status, one.code, one.retry_after_s) for one in (died, job)] == [
        (503, "worker_died", 1.0),
        (503, "job_cancelled", 1.0),
    ]
