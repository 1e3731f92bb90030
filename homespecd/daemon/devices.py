"""How much memory of devices a worker holds, which no figure of the kernel shows.

NVIDIA's cards are asked through NVML, by the library that comes with the `cuda` extra. OpenVINO's
GPUs share the machine's memory or tell nobody; the estimate counts for them.
"""

from __future__ import annotations

import importlib
import threading
from collections.abc import Callable, Mapping
from typing import Any

_LIBRARY = "pynvml"


class DeviceMemory:
    """Asks NVML, and takes no for an answer: without a library or a driver nothing is held.

    Safe to use from several threads.

    Args:
        load: gives the module `pynvml`. Raises ImportError where it is not installed.
    """

    def __init__(self, load: Callable[[], Any] = lambda: importlib.import_module(_LIBRARY)) -> None:
        self._load = load
        self._lock = threading.Lock()
        self._nvml: Any = None
        self._missing = False

    def device_bytes(self, pid: int) -> Mapping[int, int]:
        """Bytes that a process holds on each card where it holds any, by NVML's number of the card.

        Empty as well when the driver does not tell (in a container with process numbers of its
        own, say).
        """
        with self._lock:
            nvml = self._opened()
            if nvml is None:
                return {}
            try:
                return _held(nvml, pid)
            except nvml.NVMLError:
                # The driver went, or a card did: the next call begins anew.
                self._close()
                return {}

    def total_bytes(self, pid: int) -> int:
        """The same for all cards together."""
        return sum(self.device_bytes(pid).values())

    def close(self) -> None:
        """Let go of the driver. It is opened again when something is asked."""
        with self._lock:
            self._close()

    def _opened(self) -> Any:
        if self._nvml is not None or self._missing:
            return self._nvml
        try:
            nvml = self._load()
        except ImportError:
            self._missing = True
            return None
        try:
            nvml.nvmlInit()
        except nvml.NVMLError:
            # No driver yet: one may be loaded later, and asking costs next to nothing.
            return None
        self._nvml = nvml
        return nvml

    def _close(self) -> None:
        nvml, self._nvml = self._nvml, None
        if nvml is None:
            return
        try:
            nvml.nvmlShutdown()
        except nvml.NVMLError:
            # It is gone already.
            return


def _held(nvml: Any, pid: int) -> dict[int, int]:
    found: dict[int, int] = {}
    for index in range(nvml.nvmlDeviceGetCount()):
        card = nvml.nvmlDeviceGetHandleByIndex(index)
        # The parts of a card that is shared out (MIG) are listed one by one, and a process that
        # computes and draws twice, with the same memory.
        parts: dict[tuple[Any, Any], int] = {}
        for one in (
            *nvml.nvmlDeviceGetComputeRunningProcesses(card),
            *nvml.nvmlDeviceGetGraphicsRunningProcesses(card),
        ):
            # None = this driver does not say (under WSL, for one).
            if one.pid == pid and one.usedGpuMemory:
                part = (one.gpuInstanceId, one.computeInstanceId)
                parts[part] = max(parts.get(part, 0), one.usedGpuMemory)
        if parts:
            found[index] = sum(parts.values())
    return found
