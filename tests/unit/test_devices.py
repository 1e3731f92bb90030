"""Memory on cards, from a stand-in for NVIDIA's library."""

from __future__ import annotations

import importlib
import threading
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any, cast

import pytest

from homespecd.config.schema import ModelConfig
from homespecd.daemon import memory
from homespecd.daemon.devices import DeviceMemory
from homespecd.daemon.estimate import Estimate
from homespecd.daemon.measured import MeasuredMemory
from homespecd.daemon.models import Model
from homespecd.daemon.views import State
from homespecd.daemon.worker_handle import WorkerHandle
from homespecd.worker.messages import WorkerSettings

GIB = 2**30
WORKER, OTHER = 4711, 99
WHOLE = 0xFFFFFFFF


@dataclass(frozen=True)
class Process:
    pid: int
    usedGpuMemory: int | None  # noqa: N815 - the library's own name
    gpuInstanceId: int = WHOLE  # noqa: N815
    computeInstanceId: int = WHOLE  # noqa: N815


class NVMLError(Exception):
    pass


@dataclass
class Cards:
    """What the driver knows. `compute` and `graphics` hold the processes of each card."""

    compute: list[list[Process]] = field(default_factory=list)
    graphics: dict[int, list[Process]] = field(default_factory=dict)
    driver: bool = True
    lost: bool = False
    opened: int = 0
    closed: int = 0
    NVMLError: type[Exception] = NVMLError

    def nvmlInit(self) -> None:  # noqa: N802
        if not self.driver:
            raise NVMLError("Driver Not Loaded")
        self.opened += 1

    def nvmlShutdown(self) -> None:  # noqa: N802
        self.closed += 1
        if self.lost:
            raise NVMLError("Uninitialized")

    def nvmlDeviceGetCount(self) -> int:  # noqa: N802
        if self.lost:
            raise NVMLError("GPU is lost")
        return len(self.compute)

    def nvmlDeviceGetHandleByIndex(self, index: int) -> int:  # noqa: N802
        return index

    def nvmlDeviceGetComputeRunningProcesses(self, card: int) -> list[Process]:  # noqa: N802
        return self.compute[card]

    def nvmlDeviceGetGraphicsRunningProcesses(self, card: int) -> list[Process]:  # noqa: N802
        return self.graphics.get(card, [])


def asked(cards: Any) -> DeviceMemory:
    return DeviceMemory(lambda: cards)


@pytest.mark.parametrize(
    ("compute", "expected"),
    [
        ([], {}),
        ([[]], {}),
        ([[Process(OTHER, GIB)]], {}),
        ([[Process(OTHER, GIB), Process(WORKER, 3 * GIB)]], {0: 3 * GIB}),
        ([[], [Process(WORKER, GIB)], [Process(WORKER, 2 * GIB)]], {1: GIB, 2: 2 * GIB}),
        # A driver that does not say.
        ([[Process(WORKER, None)]], {}),
        # Two parts of one card.
        ([[Process(WORKER, GIB, 1, 0), Process(WORKER, GIB, 2, 0)]], {0: 2 * GIB}),
    ],
)
def test_what_a_process_holds(compute: list[list[Process]], expected: dict[int, int]) -> None:
    memory = asked(Cards(compute))
    assert memory.device_bytes(WORKER) == expected
    assert memory.total_bytes(WORKER) == sum(expected.values())


def test_a_process_that_also_draws_is_counted_once() -> None:
    cards = Cards([[Process(WORKER, GIB)]], {0: [Process(WORKER, GIB), Process(OTHER, GIB)]})
    assert asked(cards).device_bytes(WORKER) == {0: GIB}


def test_without_the_library_nothing_is_held_and_it_is_looked_for_once() -> None:
    looked = []

    def load() -> Any:
        looked.append(1)
        raise ModuleNotFoundError("No module named 'pynvml'")

    memory = DeviceMemory(load)
    assert memory.device_bytes(WORKER) == {}
    assert memory.total_bytes(WORKER) == 0
    memory.close()
    assert len(looked) == 1


def test_a_driver_that_is_loaded_later_is_found() -> None:
    cards = Cards([[Process(WORKER, GIB)]], driver=False)
    memory = asked(cards)
    assert memory.device_bytes(WORKER) == {}
    cards.driver = True
    assert memory.device_bytes(WORKER) == {0: GIB}
    assert memory.device_bytes(WORKER) == {0: GIB}
    assert cards.opened == 1


def test_a_card_that_is_lost_and_comes_back() -> None:
    """After a suspend, say: nothing is held meanwhile, and the driver is opened anew."""
    cards = Cards([[Process(WORKER, GIB)]])
    memory = asked(cards)
    assert memory.device_bytes(WORKER) == {0: GIB}
    cards.lost = True
    assert memory.device_bytes(WORKER) == {}
    assert memory.device_bytes(WORKER) == {}
    cards.lost = False
    assert memory.device_bytes(WORKER) == {0: GIB}
    memory.close()
    assert cards.opened == cards.closed


def test_several_threads_open_the_driver_once() -> None:
    cards = Cards([[Process(WORKER, GIB)]])
    memory = asked(cards)
    found: list[int] = []
    threads = [
        threading.Thread(target=lambda: found.append(memory.total_bytes(WORKER))) for _ in range(8)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert found == [GIB] * 8
    assert cards.opened == 1


async def test_memory_of_devices_counts_like_any_other(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(memory, "worker_bytes", lambda pid: {WORKER: GIB}.get(pid))
    model = Model(
        name="m",
        config=ModelConfig(path="m"),
        settings=WorkerSettings(name="m", path="m"),
        created_s=0,
        estimate=Estimate(target_bytes=1, floor_bytes=1, draft_bytes=0),
        state=State.READY,
    )
    handle = SimpleNamespace(pid=WORKER, draft_bytes=0, info={"provider": "cuda"})
    model.handle = cast("WorkerHandle", handle)
    cards = Cards([[Process(WORKER, 3 * GIB)]])
    await MeasuredMemory(asked(cards)).measure(model)
    assert model.peak_bytes == 4 * GIB
    # A process that is gone holds nothing, whatever the driver still says.
    handle.pid = OTHER
    await MeasuredMemory(asked(Cards([[Process(OTHER, GIB)]]))).measure(model)
    assert model.peak_bytes == 4 * GIB


def test_the_real_library_has_what_is_used() -> None:
    """Without a driver it says so, and nothing is held."""
    nvml = importlib.import_module("pynvml")
    for name in vars(Cards):
        if name.startswith("nvml"):
            assert callable(getattr(nvml, name))
    assert issubclass(nvml.NVMLError, Exception)
    assert DeviceMemory().device_bytes(1) == {}
