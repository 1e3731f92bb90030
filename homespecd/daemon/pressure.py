"""How short of memory the machine is, by the kernel's own measure (PSI), and what follows."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from homespecd.daemon.views import Relief

SYSTEM = Path("/proc/pressure/memory")
_CGROUP_ROOT = Path("/sys/fs/cgroup")

# After drafts went, PSI's own window of ten seconds must pass before it can show that it helped.
_STEP_S = 10.0

# Pressure must be below this share of the threshold, for so long, before anything comes back: what
# comes back at once would bring the pressure back.
_CALM_SHARE = 0.5
_CALM_S = 30.0


def memory_pressure_avg10(source: Path = SYSTEM) -> float | None:
    """Share of the last 10 s (in %) in which some task waited for memory; None without PSI."""
    try:
        first = source.read_text().splitlines()[0]
        for word in first.split():
            if word.startswith("avg10="):
                return float(word.removeprefix("avg10="))
    except (OSError, IndexError, ValueError):
        return None
    return None


def pressure_files() -> tuple[Path, ...]:
    """The system's and, where there is cgroup v2, that of the service's own cgroup: a service that
    runs into a limit of its unit is under pressure while the machine is not."""
    try:
        text = Path("/proc/self/cgroup").read_text()
    except OSError:
        text = ""
    own = [line[4:] for line in text.splitlines() if line.startswith("0::/")]
    return (SYSTEM, *(_CGROUP_ROOT / path / "memory.pressure" for path in own))


def worst_pressure(sources: Sequence[Path]) -> float | None:
    """The highest of those that can be read, None when none can."""
    found = [value for value in map(memory_pressure_avg10, sources) if value is not None]
    return max(found, default=None)


class PressureGauge:
    """From pressure over time to relief, with hysteresis. `observe` every few seconds."""

    def __init__(self) -> None:
        self.relief = Relief.NONE
        self._raised_s = 0.0
        self._calm_since_s: float | None = None

    def observe(self, now_s: float, avg10: float | None, *, threshold: float) -> Relief:
        """Take one reading in percent; None (no PSI) is calm."""
        pressure = 0.0 if avg10 is None else avg10
        if pressure >= threshold:
            self._calm_since_s = None
            if self.relief is Relief.NONE:
                self.relief, self._raised_s = Relief.DRAFTS, now_s
            elif self.relief is Relief.DRAFTS and now_s - self._raised_s >= _STEP_S:
                self.relief = Relief.IDLE_MODELS
        elif pressure >= threshold * _CALM_SHARE:
            self._calm_since_s = None
        elif self.relief is not Relief.NONE:
            if self._calm_since_s is None:
                self._calm_since_s = now_s
            elif now_s - self._calm_since_s >= _CALM_S:
                self.relief, self._calm_since_s = Relief.NONE, None
        # While it eases, no further model has to go.
        if self.relief is Relief.IDLE_MODELS and pressure < threshold:
            self.relief = Relief.DRAFTS
            self._raised_s = now_s
        return self.relief
