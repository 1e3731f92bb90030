"""Signals that come too often and too late."""

from __future__ import annotations

import signal
import time
from pathlib import Path

import pytest

from tests.integration.running_service import RunningService

pytestmark = pytest.mark.integration


@pytest.fixture
def service(tmp_path: Path) -> RunningService:
    """Not started."""
    return RunningService(tmp_path)


def test_late_ones_do_not_change_how_it_ends(service: RunningService) -> None:
    """Whoever goes on sending them until it is gone sees it end in order all the same."""
    service.start()
    assert service.process is not None
    numbers = (signal.SIGTERM, signal.SIGHUP, signal.SIGINT)
    turn = 0
    deadline = time.monotonic() + 30
    while service.process.poll() is None:
        assert time.monotonic() < deadline, service.log()
        service.signal(numbers[turn % len(numbers)])
        turn += 1
        time.sleep(0.001)
    assert service.process.returncode == 0
    assert "Traceback" not in service.log()
    assert "INFO stopped" in service.log()
