"""The graphs of one model, all in one place.

A model may have a graph for each number of lanes, or one for its first pass. Each alone might be
placed elsewhere (the second one no longer fits on the device, say), and then caches would wander
between devices and no status could say where the model runs. So it is all of them, or the CPU.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from homespecd.runtime.backend import Backend
from homespecd.runtime.providers import ProviderRequest
from homespecd.runtime.session import Session, open_session


def open_together(
    graphs: Sequence[Path],
    *,
    provider: ProviderRequest,
    threads: int,
    optimised: bool = False,
    backend: Backend | None = None,
) -> list[Session]:
    """Open graphs as `open_session` does, in order; all of them have one placement.

    Raises:
        ModelError: as `open_session`; what was opened before is closed.
    """
    sessions: list[Session] = []

    def close() -> None:
        for session in sessions:
            session.close()
        sessions.clear()

    def open_with(request: ProviderRequest, graph: Path) -> Session:
        try:
            session = open_session(
                graph, provider=request, threads=threads, optimised=optimised, backend=backend
            )
        except BaseException:
            close()
            raise
        sessions.append(session)
        return session

    for graph in graphs:
        placement = open_with(provider, graph).placement
        first = sessions[0].placement
        if placement.provider != first.provider:
            why = placement.reason or first.reason
            reason = f"its graphs cannot all run in one place: {why}"
            close()
            for again in graphs:
                session = open_with(ProviderRequest("cpu"), again)
                session.placement = replace(
                    session.placement, requested=provider.name, reason=reason
                )
            break
    return list(sessions)
