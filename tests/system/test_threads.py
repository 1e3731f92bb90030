"""Threads follow what systemd lets the service use, in real cgroups."""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest

from tests.system.host import MODEL, Host

pytestmark = [pytest.mark.system, pytest.mark.slow]

CORES = len(os.sched_getaffinity(0))
CONFIG = "/etc/homespecd/conf.d/cpu.toml"
AS_MANY_AS_ALLOWED = f"""
[memory]
reserve = "0B"
[models.smollm2]
path = "{MODEL}"
context = 1024
threads = 0
residency = "pinned"
"""
PRINT_THREADS = "from homespecd.runtime.threads import usable_threads; print(usable_threads(0))"


@pytest.fixture
def restored(host: Host) -> Iterator[Host]:
    """The host, and as it was afterwards."""
    yield host
    host.sh(f"rm -f {CONFIG}")
    host.drop_in()


@pytest.mark.parametrize(
    ("setting", "expected"),
    [
        ("", CORES),
        ("CPUQuota=100%", 1),
        ("CPUQuota=150%", min(2, CORES)),
        ("CPUQuota=40%", 1),
        ("CPUAffinity=0", 1),
    ],
)
def test_limits_of_a_unit(host: Host, setting: str, expected: int) -> None:
    limit = f"-p {setting}" if setting else ""
    python = "/opt/homespecd/current/venv/bin/python"
    said = host.sh(f"systemd-run --quiet --pipe --wait {limit} {python} -c '{PRINT_THREADS}'")
    assert said == str(expected)


def test_a_limit_of_a_slice_above_counts(host: Host) -> None:
    """The quota may belong to any group above the service's own."""
    host.write("/run/systemd/system/tight.slice", "[Slice]\nCPUQuota=100%\n")
    host.sh("systemctl daemon-reload")
    python = "/opt/homespecd/current/venv/bin/python"
    limit = "--slice tight.slice -p CPUQuota=800%"
    said = host.sh(f"systemd-run --quiet --pipe --wait {limit} {python} -c '{PRINT_THREADS}'")
    assert said == "1"


def test_a_model_of_the_service_has_no_more_threads_than_it_may_use(restored: Host) -> None:
    restored.write(CONFIG, AS_MANY_AS_ALLOWED)
    restored.drop_in("CPUQuota=100%")
    model = restored.model()
    assert (model["state"], model["threads"]) == ("ready", 1)
