"""How many files the service may have open, and how many of them connections may take.

Without a descriptor nothing works: no model is loaded, no file read, and `accept` fails again and
again. So the limit is raised to what is allowed, and connections leave enough for all else.
"""

from __future__ import annotations

import resource
from dataclasses import dataclass

from homespecd.api.connections import MOST_CONNECTIONS
from homespecd.daemon.sockets import BACKLOG

# For workers, files, the log, and what the event loop has.
_LEAST_SPARE, _MOST_SPARE = 24, 256

# One that is half-closed has a second one, to see when it is closed for good.
_EACH = 2


@dataclass(frozen=True)
class Share:
    """connections: so many at most. backlog: so many may wait to be accepted, which happens to all
    of them before the first is looked at."""

    connections: int = MOST_CONNECTIONS
    backlog: int = BACKLOG


def raised() -> int:
    """Raise this process's limit as far as it goes; returns it."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft == resource.RLIM_INFINITY:
        return _enough()
    wanted = _enough() if hard == resource.RLIM_INFINITY else min(hard, _enough())
    if wanted > soft:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
    return max(soft, wanted)


def share(limit: int) -> Share:
    """What connections get of so many descriptors."""
    spare = max(_LEAST_SPARE, min(_MOST_SPARE, limit // 4))
    free = max(4 * _EACH, limit - spare)
    connections = min(MOST_CONNECTIONS, free // (2 * _EACH))
    return Share(connections, min(BACKLOG, free - _EACH * connections))


def _enough() -> int:
    return _MOST_SPARE + _EACH * MOST_CONNECTIONS + BACKLOG
