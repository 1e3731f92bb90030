"""The fleet carries plans out: random events against workers that are only played."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from homespecd.config.load import load
from homespecd.config.schema import Config
from homespecd.daemon import loads, memory
from homespecd.daemon.fleet import Fleet
from homespecd.daemon.upkeep import Upkeep
from homespecd.daemon.views import Drafts, Relief, State
from homespecd.daemon.worker_handle import Owner
from homespecd.errors import ModelError, RequestError
from homespecd.worker.messages import WorkerSettings

MIB = 2**20
NAMES = ("a", "b", "c")


class Played:
    """Plays `WorkerHandle`. Everything takes a few turns of the event loop."""

    alive: dict[str, int]
    running: dict[int, Played]
    held: dict[str, int]
    pids = 0
    broken: set[str]

    def __init__(self, settings: WorkerSettings, owner: Owner) -> None:
        Played.pids += 1
        self.pid = Played.pids
        self.name = settings.name
        self.settings = settings
        self.history = [settings]
        self.owner = owner
        self.dead = False
        self.info: dict[str, Any] = {"provider": "cpu"}
        self.snapshot: dict[str, Any] = {}
        self.failed: list[RequestError] = []

    @classmethod
    async def start(cls, settings: WorkerSettings, *, command: Any, owner: Owner) -> Played:  # noqa: ARG003
        cls.alive[settings.name] = cls.alive.get(settings.name, 0) + 1
        assert cls.alive[settings.name] == 1, f"two workers of {settings.name}"
        worker = cls(settings, owner)
        owner.started(worker)  # type: ignore[arg-type]
        try:
            await turns(3)
            if settings.name in cls.broken:
                raise ModelError("it is broken")
        except BaseException:  # cancelled, too
            cls.alive[settings.name] -= 1
            raise
        cls.running[worker.pid] = worker
        return worker

    @property
    def draft_bytes(self) -> int:
        models = [one for one in self.settings.drafters if one.path]
        return 0 if self.settings.withhold_drafts else 10 * MIB * len(models)

    async def redraft(self, settings: WorkerSettings, *, urgent: bool) -> None:  # noqa: ARG002
        await turns(2)
        if self.dead:
            raise ModelError("the worker has ended")
        self.settings = settings
        self.history.append(settings)

    def break_off(self, why: str) -> None:
        """It has no jobs."""

    def kill(self, why: str) -> None:
        self.end(f"its worker was ended: {why}")

    def end(self, reason: str) -> None:
        if not self.dead:
            self._gone()
            self.owner.exited(reason)

    def fail_all(self, error: RequestError) -> None:
        self.failed.append(error)

    async def stop(self) -> None:
        await turns(2)
        self._gone()

    def _gone(self) -> None:
        if not self.dead:
            self.dead = True
            Played.alive[self.name] -= 1
            Played.running.pop(self.pid, None)


async def turns(count: int) -> None:
    for _ in range(count):
        await asyncio.sleep(0)


@pytest.fixture(autouse=True)
def played(monkeypatch: pytest.MonkeyPatch) -> None:
    reset()
    monkeypatch.setattr(loads, "WorkerHandle", Played)

    def worker_bytes(pid: int) -> int | None:
        worker = Played.running.get(pid)
        if worker is None:
            return None
        return Played.held.get(worker.name, 50 * MIB) + worker.draft_bytes

    monkeypatch.setattr(memory, "worker_bytes", worker_bytes)
    monkeypatch.setattr(memory, "available_bytes", lambda: 1 << 50)


def reset() -> None:
    Played.alive, Played.running, Played.held, Played.broken = {}, {}, {}, set()


def config_of(folder: Path, *, cap: str = "1GiB", own_cap: str = "", **more: str) -> Config:
    """Three models; `more` has further lines by model. `a` and `b` have a draft."""
    text = f'[paths]\nmodels = "."\nstate = "state"\n[memory]\ncap = "{cap}"\nreserve = "0B"\n'
    for name in NAMES:
        drafters = '["d"]' if name != "c" else "[]"
        text += f'[models.{name}]\npath = "{name}"\ndrafters = {drafters}\n{more.get(name, "")}\n'
        text += f'memory_cap = "{own_cap}"\n' if own_cap and name == "a" else ""
    text += '[drafters.d]\nkind = "model"\npath = "d"\n'
    file = folder / "c.toml"
    file.write_text(text)
    return load(file)


def run(scenario: Callable[[Fleet], Coroutine[Any, Any, None]], **how: Any) -> None:
    async def whole() -> None:
        fleet = Fleet(command=("x",), on_change=lambda: None, **how)
        try:
            await scenario(fleet)
        finally:
            await fleet.close(error=RequestError("over", status=503))
        assert not any(Played.alive.values()), "a worker was left behind"

    asyncio.run(whole())


async def until(condition: Callable[[], Any]) -> None:
    async with asyncio.timeout(60):
        while not condition():
            await asyncio.sleep(0.001)


HAPPENS = ("ask", "ask", "ask", "end", "give up", "kill", "edit", "unload", "break", "grow")
EVENTS = st.lists(
    st.tuples(
        st.sampled_from(HAPPENS),
        st.sampled_from(NAMES),
        st.integers(0, 3),
    ),
    max_size=40,
)


@settings(
    max_examples=60,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
@given(events=EVENTS)
def test_no_request_is_lost_whatever_happens(
    tmp_path_factory: pytest.TempPathFactory, events: list[tuple[str, str, int]]
) -> None:
    reset()
    folder = tmp_path_factory.mktemp("fleet")
    caps = ("1GiB", "400MiB", "230MiB", "100MiB")

    async def scenario(fleet: Fleet) -> None:
        await fleet.configure(config_of(folder))
        ends: dict[asyncio.Task[None], asyncio.Event] = {}
        refusals: set[int] = set()

        async def request(name: str, done: asyncio.Event) -> None:
            model = fleet.models[name]
            try:
                handle: Any = await fleet.acquire(model)
            except RequestError as error:
                refusals.add(error.status)
                return
            try:
                while not (done.is_set() or handle.dead):
                    await asyncio.sleep(0)
            finally:
                fleet.release(model)

        for what, name, number in events:
            model = fleet.models[name]
            if what == "ask":
                done = asyncio.Event()
                ends[asyncio.create_task(request(name, done))] = done
            elif what == "end" and ends:
                list(ends.values())[number % len(ends)].set()
            elif what == "give up" and ends:
                list(ends)[number % len(ends)].cancel()
            elif what == "kill" and model.handle is not None and model.state is State.READY:
                model.handle.end("its worker was ended by SIGKILL")  # type: ignore[attr-defined]
            elif what == "edit":
                lines = {name: f"slots = {number + 1}"} if number % 2 else {}
                await fleet.configure(config_of(folder, cap=caps[number], **lines))
            elif what == "unload":
                ends[asyncio.create_task(fleet.unload(model))] = asyncio.Event()
            elif what == "break":
                (Played.broken.discard if name in Played.broken else Played.broken.add)(name)
            elif what == "grow":
                Played.held[name] = (20 + 60 * number) * MIB
                await fleet.measured.measure(model)
                fleet.replan()
            await turns(number)
        for done in ends.values():
            done.set()
        async with asyncio.timeout(60):
            results = await asyncio.gather(*ends, return_exceptions=True)
        wrong = [
            one
            for one in results
            if one is not None and not isinstance(one, asyncio.CancelledError | RequestError)
        ]
        assert not wrong, wrong
        assert refusals <= {503}
        assert all(not model.waiters for model in fleet.models.values())
        assert all(model.running == 0 for model in fleet.models.values())

    run(scenario)


def test_pressure_takes_drafts_then_idle_models(tmp_path: Path) -> None:
    pressure = tmp_path / "pressure"

    async def scenario(fleet: Fleet) -> None:
        await fleet.configure(config_of(tmp_path))
        for name in ("a", "b"):
            await fleet.acquire(fleet.models[name])
        fleet.release(fleet.models["a"])
        a, b = fleet.models["a"], fleet.models["b"]
        assert (a.drafts, b.drafts) == (Drafts.ON, Drafts.ON)
        upkeep = Upkeep(fleet, threshold=lambda: 10.0, sources=[pressure])
        pressure.write_text("some avg10=30.00 avg60=0.00 avg300=0.00 total=9\n")
        await upkeep.look()
        assert upkeep.pressure_avg10 == 30.0
        await until(lambda: (a.drafts, b.drafts) == (Drafts.OFF, Drafts.OFF))
        assert "short of memory" in a.handle.settings.withhold_drafts  # type: ignore[union-attr]
        fleet.relief = Relief.IDLE_MODELS
        fleet.replan()
        await until(lambda: a.state is State.UNLOADED)
        assert b.state is State.READY
        fleet.relief = Relief.NONE
        b.drafts_not_before_s = 0.0
        fleet.replan()
        await until(lambda: b.drafts is Drafts.ON)
        assert b.loads == 1
        fleet.release(b)

    run(scenario)


def test_over_its_own_cap_a_model_in_use_is_ended_and_says_so(tmp_path: Path) -> None:
    async def scenario(fleet: Fleet) -> None:
        await fleet.configure(config_of(tmp_path, own_cap="200MiB"))
        a = fleet.models["a"]
        await fleet.acquire(a)
        Played.held["a"] = 300 * MIB
        await fleet.measured.measure(a)
        fleet.replan()
        await until(lambda: a.state is State.FAILED)
        assert "its memory_cap is 200 MiB" in a.error
        fleet.release(a)
        # It is known now what it needs, so the next one is refused instead of ended.
        with pytest.raises(RequestError, match="needs about 300 MiB") as caught:
            await fleet.acquire(a)
        assert caught.value.code == "insufficient_memory"
        assert (a.loads, caught.value.status) == (1, 503)

    run(scenario)


def test_two_loads_at_once_do_not_count_the_same_free_memory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The estimate of each is 160 MiB, and the machine has 250 MiB to give."""
    monkeypatch.setattr(memory, "available_bytes", lambda: 250 * MIB)

    async def scenario(fleet: Fleet) -> None:
        await fleet.configure(config_of(tmp_path))
        first = asyncio.create_task(fleet.acquire(fleet.models["b"]))
        await turns(1)
        second = asyncio.create_task(fleet.acquire(fleet.models["c"]))
        await turns(1)
        assert fleet.models["b"].state is State.LOADING
        assert fleet.models["c"].state is State.UNLOADED
        await first
        fleet.release(fleet.models["b"])
        await second  # what was really taken is less, and known
        fleet.release(fleet.models["c"])

    run(scenario)


class PlayedCells:
    def __init__(self) -> None:
        self.log: list[tuple[str, Any]] = []
        self.oom_kills = 0

    def open(self, name: str, *, max_bytes: int) -> PlayedCells:
        self.log.append((name, max_bytes))
        return self

    def limit(self, max_bytes: int) -> None:
        self.log.append(("limit", max_bytes))

    def enter(self, pid: int) -> None:
        self.log.append(("enter", pid))

    def remove(self) -> None:
        self.log.append(("remove", None))


def test_each_worker_has_a_cgroup_of_its_own(tmp_path: Path) -> None:
    cells = PlayedCells()

    async def scenario(fleet: Fleet) -> None:
        await fleet.configure(config_of(tmp_path, own_cap="200MiB"))
        a, c = fleet.models["a"], fleet.models["c"]
        for model in (a, c):
            await fleet.acquire(model)
            fleet.release(model)
        pids = [model.handle.pid for model in (a, c) if model.handle]
        assert cells.log == [
            ("a", 200 * MIB),
            ("enter", pids[0]),
            ("c", 1024 * MIB),
            ("enter", pids[1]),
        ]
        cells.log.clear()
        await fleet.configure(config_of(tmp_path, own_cap="300MiB"))
        assert ("limit", 300 * MIB) in cells.log
        assert a.handle is not None
        assert not a.handle.owner.out_of_memory()  # type: ignore[attr-defined]
        cells.oom_kills = 1
        assert a.handle.owner.out_of_memory()  # type: ignore[attr-defined]
        cells.log.clear()
        await fleet.unload(a)
        assert cells.log == [("remove", None)]

    run(scenario, cells=cells)


def test_a_failing_pinned_model_shows_why_while_it_is_tried_again(tmp_path: Path) -> None:
    async def scenario(fleet: Fleet) -> None:
        Played.broken.add("a")
        await fleet.configure(config_of(tmp_path, a='residency = "pinned"'))
        a = fleet.models["a"]
        await until(lambda: a.failures >= 2)
        assert a.error == "it is broken"
        a.retry_at_s = 0.0
        fleet.replan()
        assert a.state is State.LOADING
        assert a.error == "it is broken"
        Played.broken.clear()
        fleet.forgive(a)
        await until(lambda: a.state is State.READY or (fleet.replan(), False)[1])
        assert a.error == ""

    run(scenario)
