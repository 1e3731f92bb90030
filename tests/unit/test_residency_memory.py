"""What the planner goes by: estimates, what was learned, drafts, pressure, cgroups, peaks."""

from __future__ import annotations

import json
import os
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from homespecd.daemon.cells import Cells, system_oom_kills
from homespecd.daemon.estimate import FOOTPRINTS, Estimate, estimate
from homespecd.daemon.learned import LearnedMemory, memory_key
from homespecd.daemon.pressure import PressureGauge, memory_pressure_avg10, worst_pressure
from homespecd.daemon.residency import plan
from homespecd.daemon.settings import needs_new_worker, same_draft_models
from homespecd.daemon.views import (
    AddDrafts,
    Drafts,
    DropDrafts,
    End,
    Load,
    ModelView,
    Plan,
    Refuse,
    Relief,
    State,
    Unload,
)
from homespecd.worker.memory import MemoryMeter
from homespecd.worker.messages import DrafterSettings, SpeculationSettings, WorkerSettings

MIB = 2**20
OVERHEAD_BYTES = FOOTPRINTS["cpu"].overhead_bytes


# -- estimates and what is learned ---------------------------------------------------------------


def export(folder: Path, *, weights: int, **config: int) -> Path:
    folder.mkdir(parents=True)
    (folder / "model.onnx").write_bytes(b"x" * weights)
    if config:
        (folder / "config.json").write_text(json.dumps(config))
    return folder


def settings_of(folder: Path, *drafts: Path, **more: Any) -> WorkerSettings:
    drafters = tuple(DrafterSettings(one.name, "model", path=str(one)) for one in drafts)
    return WorkerSettings(name="m", path=str(folder), drafters=drafters, **more)


def test_an_estimate_counts_weights_caches_and_drafts(tmp_path: Path) -> None:
    shape = {"num_hidden_layers": 2, "num_attention_heads": 4, "hidden_size": 32}
    target = export(tmp_path / "t", weights=1000, **shape, num_key_value_heads=1)
    draft = export(tmp_path / "d", weights=50)
    short = estimate(settings_of(target, draft, context=100, slots=1), installed=("cpu",))
    assert short.floor_bytes == 1000
    assert short.draft_bytes == 50
    per_token = 2 * 2 * 1 * 8 * 4
    assert short.target_bytes == 1000 + OVERHEAD_BYTES + per_token * 164
    long = estimate(settings_of(target, context=1100, slots=3), installed=("cpu",))
    assert long.target_bytes == 1000 + OVERHEAD_BYTES + 3 * per_token * 1164
    assert long.draft_bytes == 0
    off = SpeculationSettings(enabled=False)
    assert estimate(settings_of(target, draft, speculation=off)).draft_bytes == 0


def test_an_estimate_counts_the_one_graph_that_is_loaded(tmp_path: Path) -> None:
    onnx = tmp_path / "m" / "onnx"
    onnx.mkdir(parents=True)
    # External data is named inside the graph: field 1 "location", field 2 the file.
    name = b"model.onnx_data"
    location = b"\x0a\x08location\x12" + bytes([len(name)]) + name
    (onnx / "model.onnx").write_bytes(location)
    (onnx / "model.onnx_data").write_bytes(b"x" * 1000)
    (onnx / "model_q4.onnx").write_bytes(b"x" * 300)
    full = settings_of(tmp_path / "m", variant="fp32")
    assert estimate(full).floor_bytes == 1000 + len(location)
    assert estimate(replace(full, variant="q4")).floor_bytes == 300


# What a worker held with SmolLM2 on OpenVINO's CPU device at its most, all positions in use: MiB.
SEEN_ON_OPENVINO = [
    # stored, slots, context, held
    (102, 1, 512, 742),
    (102, 2, 2048, 1358),
    (102, 1, 4096, 1198),
    (150, 1, 512, 913),
    (150, 1, 2048, 1126),
    (515, 1, 512, 1388),
    (515, 1, 2048, 1590),
]


@pytest.mark.parametrize(("stored", "slots", "context", "held"), SEEN_ON_OPENVINO)
def test_a_first_load_on_openvino_stays_below_its_estimate(
    tmp_path: Path, stored: int, slots: int, context: int, held: int
) -> None:
    smollm2 = {"num_hidden_layers": 30, "num_attention_heads": 9, "num_key_value_heads": 3}
    target = export(tmp_path / "t", weights=0, **smollm2, hidden_size=576)
    os.truncate(target / "model.onnx", stored * MIB)  # a hole: nobody reads it
    settings = settings_of(target, context=context, slots=slots)
    needed = estimate(replace(settings, provider="openvino")).target_bytes
    assert held * MIB <= needed <= 2 * held * MIB
    # "auto" may come to run on whatever is installed, and on the CPU.
    assert estimate(settings, installed=("openvino",)).target_bytes == needed
    assert estimate(settings, installed=("cpu",)) == estimate(replace(settings, provider="cpu"))
    assert estimate(settings, installed=("cpu",)).target_bytes < needed


def test_a_draft_is_counted_where_it_may_run(tmp_path: Path) -> None:
    target, draft = export(tmp_path / "t", weights=10), export(tmp_path / "d", weights=1000)
    settings = settings_of(target, draft, provider="cpu")
    assert estimate(settings, installed=("cpu",)).draft_bytes == 1000
    assert estimate(settings, installed=("openvino",)).draft_bytes == 3250


def test_packed_weights_count_where_they_are_mapped(tmp_path: Path) -> None:
    """On the CPU, instead of the bundle's own; other providers read these."""
    target = export(tmp_path / "t", weights=100)
    (target / "packed").mkdir()
    (target / "packed" / "model.lanes1.onnx").write_bytes(b"x" * 250)
    on = {
        name: estimate(settings_of(target, provider=name)).target_bytes - one.overhead_bytes
        for name, one in FOOTPRINTS.items()
    }
    assert on == {"cpu": 250, "cuda": 100, "openvino": 325, "directml": 100}
    assert estimate(settings_of(target, provider="cpu")).floor_bytes == 100


@pytest.mark.parametrize("broken", ["", "{", "[]", '{"num_hidden_layers": "x"}'])
def test_what_cannot_be_read_counts_as_nothing(tmp_path: Path, broken: str) -> None:
    target = export(tmp_path / "t", weights=10)
    (target / "config.json").write_text(broken)
    assert estimate(settings_of(target, provider="cpu")).target_bytes == 10 + OVERHEAD_BYTES
    assert estimate(settings_of(tmp_path / "none", provider="cpu")).total_bytes == OVERHEAD_BYTES


def test_what_was_measured_replaces_the_estimate_after_a_restart(tmp_path: Path) -> None:
    settings = settings_of(export(tmp_path / "t", weights=10))
    learned = LearnedMemory(tmp_path / "state")
    needs = learned.needs(settings)
    assert needs.estimate == estimate(settings)
    measured = Estimate(target_bytes=77, draft_bytes=5, floor_bytes=10)
    assert learned.note(needs.key, measured, exactly=False)
    learned.save()
    again = LearnedMemory(tmp_path / "state")
    assert again.needs(settings).estimate == measured
    other = replace(settings, name="other", state_dir="/x", device_memory_bytes=5)
    assert again.needs(other).estimate == measured
    # Other weights or a longer context are another question.
    assert again.needs(replace(settings, context=9)).estimate == estimate(settings)
    (tmp_path / "t" / "model.onnx").write_bytes(b"x" * 11)
    assert again.needs(settings).estimate == estimate(settings)


def test_a_new_draft_does_not_make_the_target_unknown(tmp_path: Path) -> None:
    target, draft = export(tmp_path / "t", weights=10), export(tmp_path / "d", weights=50)
    learned = LearnedMemory(tmp_path / "state")
    alone = learned.needs(settings_of(target))
    learned.note(alone.key, Estimate(target_bytes=77, draft_bytes=0, floor_bytes=10), exactly=True)
    needs = learned.needs(settings_of(target, draft))
    assert needs.key != alone.key
    estimated = estimate(settings_of(target, draft))
    assert needs.estimate == replace(estimated, target_bytes=77)
    assert needs.estimate.draft_bytes >= 50


def test_little_growth_is_not_written_and_long_needs_are_not_forgotten(tmp_path: Path) -> None:
    learned = LearnedMemory(tmp_path)
    first = Estimate(target_bytes=1000, draft_bytes=0, floor_bytes=0)
    assert learned.note("k", first, exactly=True)
    assert not learned.note("k", replace(first, target_bytes=1040), exactly=False)
    assert learned.note("k", replace(first, target_bytes=1100), exactly=False)
    assert learned.note("k", replace(first, target_bytes=100), exactly=True)
    learned.save()
    assert json.loads((tmp_path / "memory.json").read_text())["k"]["target_bytes"] == 990


@pytest.mark.parametrize("content", ["", "{", "[1]", '{"k": {"target_bytes": -1}}', '{"k": 3}'])
def test_a_broken_file_of_measurements_is_no_error(tmp_path: Path, content: str) -> None:
    (tmp_path / "memory.json").write_text(content)
    settings = settings_of(tmp_path)
    assert LearnedMemory(tmp_path).needs(settings).estimate == estimate(settings)


def test_lookups_do_not_change_what_a_model_holds(tmp_path: Path) -> None:
    settings = settings_of(export(tmp_path / "t", weights=10))
    with_lookup = replace(settings, drafters=(DrafterSettings("n", "ngram"),))
    assert memory_key(settings) == memory_key(with_lookup)
    with_draft = settings_of(tmp_path / "t", export(tmp_path / "d", weights=1))
    assert memory_key(settings) != memory_key(with_draft)


# -- which changes need a new worker -------------------------------------------------------------


def test_drafters_change_in_a_worker_that_serves() -> None:
    before = settings_of(Path("/t"), Path("/d1"))
    other = settings_of(Path("/t"), Path("/d2"))
    assert not needs_new_worker(before, other)
    assert not same_draft_models(before, other)
    lookup = replace(before, drafters=(*before.drafters, DrafterSettings("n", "ngram")))
    assert not needs_new_worker(before, lookup)
    assert same_draft_models(before, lookup)
    faster = replace(before, speculation=SpeculationSettings(min_speedup=1.5))
    assert not needs_new_worker(before, faster)
    assert needs_new_worker(before, replace(before, context=7))
    off = replace(before, speculation=SpeculationSettings(enabled=False))
    assert needs_new_worker(before, off)


# -- drafts in the plan --------------------------------------------------------------------------


def model(name: str, state: State = State.UNLOADED, size: int = 100, **more: Any) -> ModelView:
    if "draft" in more:
        more["draft_bytes"] = more.pop("draft") * MIB
    return ModelView(name=name, state=state, needed_bytes=size * MIB, **more)


def ask(*models: ModelView, cap: int = 250, now: float = 100.0, **more: Any) -> Plan:
    return plan(models, cap_bytes=cap * MIB, limit_bytes=cap * MIB, now_s=now, **more)


WANTED: dict[str, Any] = {"wanted_since_s": 1.0}
ON: dict[str, Any] = {"state": State.READY, "drafts": Drafts.ON}
OFF: dict[str, Any] = {"state": State.READY, "drafts": Drafts.OFF}


def test_a_draft_that_does_not_fit_is_left_out() -> None:
    assert ask(model("a", draft=150, **WANTED)).actions == (Load("a", drafts=True),)
    assert ask(model("a", draft=151, **WANTED)).actions == (Load("a", drafts=False),)
    own = model("a", draft=50, cap_bytes=120 * MIB, **WANTED)
    assert ask(own).actions == (Load("a", drafts=False),)


def test_idle_models_leave_before_the_draft_is_given_up() -> None:
    idle = model("i", State.READY)
    wanted = model("w", draft=100, **WANTED)
    [action] = ask(idle, wanted).actions
    assert isinstance(action, Unload)
    # Where even that would not make room for the draft, nobody leaves in vain.
    big = model("w", draft=200, **WANTED)
    assert ask(idle, big).actions == (Load("w", drafts=False),)


def test_drafts_of_others_go_before_anybody_has_to_wait() -> None:
    busy = model("b", draft=100, busy=True, **ON)
    result = ask(busy, model("w", **WANTED))
    [action] = result.actions
    assert isinstance(action, DropDrafts)
    assert action.name == "b"
    assert result.draining == frozenset()
    going = replace(busy, drafts=Drafts.REMOVING)
    assert ask(going, model("w", **WANTED)) == Plan()
    assert ask(replace(busy, drafts=Drafts.OFF), model("w", **WANTED)).actions == (Load("w"),)


def test_pinned_models_count_without_their_drafts() -> None:
    pinned = model("p", draft=100, pinned=True, **ON)
    [action] = ask(pinned, model("w", size=150, **WANTED)).actions
    assert isinstance(action, DropDrafts)
    [refusal] = ask(pinned, model("w", size=151, **WANTED)).actions
    assert isinstance(refusal, Refuse)


def test_growth_past_the_cap_costs_idle_models_then_drafts() -> None:
    grown = model("g", size=200, draft=100, busy=True, **ON)
    idle = model("i", State.READY, size=20)
    assert [type(one) for one in ask(grown, idle).actions] == [Unload, DropDrafts]
    assert [type(one) for one in ask(replace(grown, needed_bytes=140 * MIB), idle).actions] == [
        Unload
    ]


def test_a_model_over_its_own_cap_gives_up_its_drafts_and_then_its_place() -> None:
    over = model("o", size=100, draft=10, cap_bytes=105 * MIB, busy=True, **ON)
    [action] = ask(over).actions
    assert isinstance(action, DropDrafts)
    assert ask(replace(over, drafts=Drafts.REMOVING)).actions == ()
    alone = replace(over, drafts=Drafts.OFF, needed_bytes=106 * MIB)
    [action] = ask(alone).actions
    assert isinstance(action, End)
    assert "106 MiB" in action.why
    [action] = ask(replace(alone, busy=False, pinned=True)).actions
    assert isinstance(action, Unload)


def test_drafts_come_back_when_there_is_room_and_nobody_waits() -> None:
    lean = model("l", draft=100, **OFF)
    assert ask(lean).actions == (AddDrafts("l"),)
    assert ask(lean, cap=199).actions == ()
    assert ask(replace(lean, cap_bytes=150 * MIB)).actions == ()
    assert ask(replace(lean, drafts_not_before_s=130.0)) == Plan(wake_at_s=130.0)
    busy = model("b", State.READY, size=150, busy=True)
    assert ask(lean, busy, model("w", **WANTED)).actions[:-1] == ()


def test_under_pressure_drafts_go_then_idle_models_one_by_one() -> None:
    busy = model("b", draft=10, busy=True, **ON)
    idle, older = model("i", idle_since_s=2.0, **OFF), model("o", idle_since_s=1.0, **OFF)
    [action] = ask(busy, idle, older, cap=999, relief=Relief.DRAFTS).actions
    assert isinstance(action, DropDrafts)
    lean = replace(busy, drafts=Drafts.OFF)
    assert ask(lean, idle, older, cap=999, relief=Relief.DRAFTS).actions == ()
    [action] = ask(lean, idle, older, cap=999, relief=Relief.IDLE_MODELS).actions
    assert isinstance(action, Unload)
    assert action.name == "o"
    leaving = replace(older, state=State.UNLOADING)
    assert ask(lean, idle, leaving, cap=999, relief=Relief.IDLE_MODELS).actions == ()
    # Who is wanted is still served, without its draft.
    wanted = model("w", draft=10, **WANTED)
    assert ask(wanted, relief=Relief.DRAFTS).actions == (Load("w", drafts=False),)


# -- pressure ------------------------------------------------------------------------------------


def test_pressure_is_read_where_the_kernel_has_it(tmp_path: Path) -> None:
    file, other = tmp_path / "memory", tmp_path / "other"
    assert memory_pressure_avg10(file) is None
    assert worst_pressure([file, other]) is None
    file.write_text("some avg10=1.25 avg60=0.00 avg300=0.00 total=9\nfull avg10=7.00\n")
    assert memory_pressure_avg10(file) == 1.25
    other.write_text("some avg10=3.00 avg60=0.00 avg300=0.00 total=9\n")
    assert worst_pressure([file, other]) == 3.0
    other.write_text("nonsense avg10=x")
    assert worst_pressure([file, other]) == 1.25


def test_relief_rises_in_steps_and_goes_when_it_has_been_calm() -> None:
    gauge = PressureGauge()

    def at(now_s: float, avg10: float | None) -> Relief:
        return gauge.observe(now_s, avg10, threshold=10.0)

    assert at(0, 9.9) is Relief.NONE
    assert at(2, 10.0) is Relief.DRAFTS
    assert at(11, 50.0) is Relief.DRAFTS  # that drafts went cannot show yet
    assert at(12, 50.0) is Relief.IDLE_MODELS
    assert at(14, 9.0) is Relief.DRAFTS  # it eases: no more models go, nothing comes back
    assert at(16, 1.0) is Relief.DRAFTS
    assert at(30, 6.0) is Relief.DRAFTS  # not calm: the wait begins anew
    assert at(32, 1.0) is Relief.DRAFTS
    assert at(61, 1.0) is Relief.DRAFTS
    assert at(62, None) is Relief.NONE


# -- cgroups -------------------------------------------------------------------------------------


def tree(tmp_path: Path, *, controllers: str = "cpu memory", procs: str = "") -> tuple[Path, Path]:
    """A cgroup v2 file system with our unit in it, as far as files can play it."""
    unit = tmp_path / "fs" / "system.slice" / "h.service"
    unit.mkdir(parents=True)
    (unit / "cgroup.controllers").write_text(controllers)
    (unit / "cgroup.procs").write_text(procs or f"{os.getpid()}\n")
    (unit / "cgroup.subtree_control").touch()
    own = tmp_path / "own"
    own.write_text("1:name=x:/y\n0::/system.slice/h.service\n")
    (unit / "supervisor").mkdir()
    (unit / "supervisor" / "cgroup.procs").touch()
    return unit, own


def test_delegated_memory_is_divided_among_workers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    unit, own = tree(tmp_path)
    cells = Cells.below_own_cgroup(tmp_path / "fs", own)
    assert (unit / "cgroup.subtree_control").read_text() == "+memory"
    assert (unit / "supervisor" / "cgroup.procs").read_text() == str(os.getpid())

    real = Path.mkdir

    def mkdir(self: Path, *args: Any, **how: Any) -> None:
        real(self, *args, **how)
        for name in ("memory.max", "memory.oom.group", "cgroup.procs"):  # as the kernel does
            (self / name).touch()

    monkeypatch.setattr(Path, "mkdir", mkdir)
    cell = cells.open("a/b", max_bytes=5 * MIB)
    assert cell is not None
    [folder] = unit.glob("worker-*")
    assert folder.name == "worker-1-a_b"
    assert (folder / "memory.max").read_text() == str(5 * MIB)
    cell.enter(1234)
    assert (folder / "cgroup.procs").read_text() == "1234"
    assert cell.oom_kills == 0
    (folder / "memory.events").write_text("low 0\noom 2\noom_kill 1\n")
    assert cell.oom_kills == 1


@pytest.mark.parametrize("how", ["no memory", "others", "no unit"])
def test_what_was_not_delegated_is_left_alone(tmp_path: Path, how: str) -> None:
    controllers = "cpu" if how == "no memory" else "memory"
    unit, own = tree(tmp_path, controllers=controllers, procs="1\n2\n" if how == "others" else "")
    if how == "no unit":
        own.write_text("0::/\n")
    cells = Cells.below_own_cgroup(tmp_path / "fs", own)
    assert cells.open("m", max_bytes=1) is None
    assert (unit / "cgroup.subtree_control").read_text() == ""


def test_kills_for_memory_are_counted(tmp_path: Path) -> None:
    file = tmp_path / "vmstat"
    assert system_oom_kills(file) == 0
    file.write_text("nr_free_pages 1\noom_kill 3\n")
    assert system_oom_kills(file) == 3


# -- peaks ---------------------------------------------------------------------------------------


def test_a_peak_belongs_to_the_requests_that_ran_then(tmp_path: Path) -> None:
    def hold(resident: int, peak: int, proportional: int) -> None:
        status = f"VmHWM:\t{peak} kB\nVmRSS:\t{resident} kB\n"
        (tmp_path / "status").write_text(status)
        (tmp_path / "smaps_rollup").write_text(f"Rss: {resident} kB\nPss: {proportional} kB\n")

    meter = MemoryMeter(tmp_path)
    hold(100, 500, 70)
    meter.mark(1.0)  # request A begins; the 500 were before it
    assert (tmp_path / "clear_refs").read_text() == "5"
    hold(100, 300, 70)
    meter.mark(2.0)  # request B begins
    hold(100, 200, 70)
    assert meter.peak_bytes(1.0, now_s=9e3) == (300 - 30) * 1024
    assert meter.peak_bytes(2.0, now_s=9e3) == (200 - 30) * 1024
    for second in range(3, 200):
        meter.mark(float(second))
    # So many at once are not told apart, and none is told too little.
    assert meter.peak_bytes(1.0, now_s=9e3) >= (300 - 30) * 1024
    assert meter.peak_bytes(150.0, now_s=9e3) == (200 - 30) * 1024
