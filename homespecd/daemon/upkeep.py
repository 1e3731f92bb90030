"""What is looked at every few seconds: memory and its pressure."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from homespecd.daemon.fleet import Fleet
from homespecd.daemon.pressure import PressureGauge, worst_pressure

_INTERVAL_S = 2.0
# Idle models are measured at every so many looks.
_IDLE_EVERY = 5


class Upkeep:
    """Keeps a fleet's view of the machine true.

    Args:
        threshold: pressure in percent from which memory is given back; asked each time.
        sources: pressure files; the worst one counts.
    """

    def __init__(
        self, fleet: Fleet, *, threshold: Callable[[], float], sources: Sequence[Path]
    ) -> None:
        self.pressure_avg10: float | None = None
        self._fleet = fleet
        self._threshold = threshold
        self._sources = tuple(sources)
        self._gauge = PressureGauge()
        self._looks = 0

    async def run(self) -> None:
        """Until cancelled."""
        while True:
            await self.look()
            await asyncio.sleep(_INTERVAL_S)

    async def look(self) -> None:
        """One round."""
        fleet = self._fleet
        for model in list(fleet.models.values()):
            # Measuring walks a process's pages; one that does nothing holds what it held.
            if model.running or self._looks % _IDLE_EVERY == 0:
                await fleet.measured.measure(model)
        self._looks += 1
        self.pressure_avg10 = await asyncio.to_thread(worst_pressure, self._sources)
        fleet.relief = self._gauge.observe(
            time.monotonic(), self.pressure_avg10, threshold=self._threshold()
        )
        fleet.replan()
        await fleet.measured.save()
