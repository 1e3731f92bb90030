"""How many descriptors connections may take, and the limit that the service starts with."""

from __future__ import annotations

import subprocess
import sys

import pytest

from homespecd.api.connections import MOST_CONNECTIONS
from homespecd.daemon.descriptors import Share, share
from homespecd.daemon.sockets import BACKLOG

_RAISE = """
import resource, sys
soft, hard = map(int, sys.argv[1:])
resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
from homespecd.daemon.descriptors import raised
print(raised(), *resource.getrlimit(resource.RLIMIT_NOFILE))
"""


@pytest.mark.parametrize("limit", [64, 100, 256, 1024, 2303, 2304])
def test_connections_leave_enough_for_all_else(limit: int) -> None:
    given = share(limit)
    # Half-closed ones have two each, and all of the backlog may be accepted at once.
    taken = 2 * given.connections + given.backlog
    assert 0 < given.connections <= MOST_CONNECTIONS
    assert 0 < given.backlog <= BACKLOG
    assert limit - taken >= 24


def test_where_there_is_plenty_nothing_is_held_back() -> None:
    assert share(2304) == share(1_000_000) == Share(MOST_CONNECTIONS, BACKLOG)


@pytest.mark.parametrize(
    ("soft", "hard", "raised"), [(64, 512, 512), (64, 4096, 2304), (3000, 4096, 3000)]
)
def test_the_limit_is_raised_as_far_as_it_goes(soft: int, hard: int, raised: int) -> None:
    command = [sys.executable, "-c", _RAISE, str(soft), str(hard)]
    said = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    assert said.split() == [str(raised), str(raised), str(hard)]
