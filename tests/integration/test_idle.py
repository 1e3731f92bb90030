"""What a service costs that has models in memory and nothing to do: CPU seconds, not wall time."""

from __future__ import annotations

import time
from collections.abc import Iterable
from pathlib import Path

import psutil
import pytest

from tests.integration.running_service import wait_for
from tests.integration.service import Served, Service, serving, text_of
from tests.oracle import Toy

pytestmark = pytest.mark.integration

WINDOW_S = 3.0
# Of one core, all processes together.
MOST_SHARE = 0.005

SERVED = (Served("one", Toy(), drafts=("d1",)), Served("two", Toy()))


def processes(service: Service) -> list[psutil.Process]:
    assert service.process is not None
    supervisor = psutil.Process(service.process.pid)
    return [supervisor, *supervisor.children(recursive=True)]


def cpu_ns(of: Iterable[psutil.Process]) -> int:
    """Time on a processor of all threads; the kernel's own count, which knows nanoseconds."""
    return sum(
        int(file.read_text().split()[0])
        for one in of
        for file in Path(f"/proc/{one.pid}/task").glob("*/schedstat")
    )


def test_two_resident_models_cost_next_to_nothing_when_idle(tmp_path: Path) -> None:
    """After they have served: threads that wait for work sleep, and do not spin."""
    with serving(tmp_path, SERVED) as service:
        for name in ("one", "two"):
            assert text_of(service.chat(name, "hello", max_tokens=8))
        found = processes(service)
        assert len(found) == 3, "the supervisor and two workers"
        shares = []

        def quiet() -> bool:
            """What is put off till after an answer (measuring, learning) may still go on."""
            before, since = cpu_ns(found), time.monotonic()
            time.sleep(WINDOW_S)
            shares.append((cpu_ns(found) - before) / 1e9 / (time.monotonic() - since))
            return shares[-1] < MOST_SHARE

        wait_for(quiet, what=lambda: f"shares of a core: {shares}")
        assert processes(service) == found
