"""`homespecctl doctor` on machines that the tests make."""

from __future__ import annotations

import json
import os
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest

from homespecd.cli import doctor, doctor_unit, machine
from homespecd.cli.doctor_machine import config_findings, machine_findings
from homespecd.cli.doctor_providers import (
    asked_findings,
    build_findings,
    placement_findings,
    sandbox_findings,
)
from homespecd.cli.doctor_unit import group_findings, unit_findings
from homespecd.cli.finding import Finding
from homespecd.cli.machine import Machine
from homespecd.cli.main import main
from homespecd.config.load import load
from homespecd.config.schema import Config
from homespecd.runtime.installed import Build
from tests.unit.cli_service import SNAPSHOT
from tests.unit.fake_service import serving

GIB = 2**30
GOOD_CPU = "processor : 0\nflags : fpu avx2 avx512_vnni\n\nprocessor : 1\nflags : fpu\n"


def made(root: Path, **files: str) -> Machine:
    """A machine whose /proc and /sys hold `files` (__ for a slash)."""
    for name, text in files.items():
        file = root / name.replace("__", "/")
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)
    return Machine(root)


def config(tmp_path: Path, text: str) -> Config:
    file = tmp_path / "c.toml"
    file.write_text(text)
    return load(file)


def said(findings: Iterable[Finding]) -> str:
    return "\n".join(f"{one.level}: {one.what} -> {one.fix}" for one in findings)


def test_a_good_machine_has_nothing(tmp_path: Path) -> None:
    good = made(
        tmp_path,
        proc__cpuinfo=GOOD_CPU,
        proc__meminfo="MemTotal: 16777216 kB\nSwapTotal: 1000 kB\nSwapFree: 900 kB\n",
        sys__devices__system__cpu__cpu0__cpufreq__scaling_driver="intel_pstate\n",
        sys__devices__system__cpu__cpu0__cpufreq__scaling_governor="powersave\n",
        sys__devices__system__cpu__cpu0__cpufreq__energy_performance_preference="balance_power\n",
    )
    assert said(machine_findings(good)) == ""
    assert said(config_findings(config(tmp_path, ""), good)) == ""


@pytest.mark.parametrize(
    ("flags", "expected"),
    [
        ("flags : sse4_2", "bad: this processor has no AVX2"),
        ("flags : sse4_2 avx2", "warning: this processor has no VNNI"),
        ("flags : avx2 avx_vnni", ""),
        ("Features : fp asimd", "warning: this processor has no dot-product"),
        ("Features : fp asimd asimddp", ""),
        ("", ""),
    ],
)
def test_processors(tmp_path: Path, flags: str, expected: str) -> None:
    found = said(machine_findings(made(tmp_path, proc__cpuinfo=flags + "\n")))
    assert found.startswith(expected)
    assert bool(found) == bool(expected)


@pytest.mark.parametrize(
    ("driver", "governor", "preference", "slow"),
    [
        ("acpi-cpufreq", "powersave", "", True),
        ("acpi-cpufreq", "schedutil", "", False),
        ("intel_pstate", "powersave", "power", True),
        ("amd-pstate-epp", "powersave", "performance", False),
    ],
)
def test_clocks(tmp_path: Path, driver: str, governor: str, preference: str, slow: bool) -> None:
    one = made(
        tmp_path,
        sys__devices__system__cpu__cpu0__cpufreq__scaling_driver=driver,
        sys__devices__system__cpu__cpu0__cpufreq__scaling_governor=governor,
        sys__devices__system__cpu__cpu0__cpufreq__energy_performance_preference=preference,
    )
    assert ("held down" in said(machine_findings(one))) == slow


def test_memory(tmp_path: Path) -> None:
    small = made(
        tmp_path, proc__meminfo="MemTotal: 4194304 kB\nSwapTotal: 900000 kB\nSwapFree: 0 kB\n"
    )
    assert "swapped out" in said(machine_findings(small))
    too_much = config(tmp_path, '[memory]\ncap = "6GiB"\n')
    found = said(config_findings(too_much, small))
    assert found.startswith("bad: memory.cap is 6.00 GiB, and this machine has 4.00 GiB")
    both = config(tmp_path, '[memory]\ncap = "3.5GiB"\nreserve = "1GiB"\n')
    assert said(config_findings(both, small)).startswith("warning: memory.cap and memory.res")


@pytest.mark.parametrize(("text", "spins"), [("1\n", True), ("0\n", False)])
def test_disks(tmp_path: Path, text: str, spins: bool) -> None:
    device = tmp_path.stat().st_dev
    queue = tmp_path / f"sys/dev/block/{os.major(device)}:{os.minor(device)}/queue"
    queue.mkdir(parents=True)
    (queue / "rotational").write_text(text)
    here = config(tmp_path, f'[paths]\nmodels = "{tmp_path}/not/yet/there"\n')
    found = said(config_findings(here, Machine(tmp_path)))
    assert ("spinning disk" in found) == spins


def test_the_socket_is_not_for_everybody(tmp_path: Path) -> None:
    open_to_all = config(tmp_path, '[server]\nsocket_mode = "0666"\n')
    assert "every user" in said(config_findings(open_to_all, Machine(tmp_path)))


UNIT = {"LoadState": "loaded", "Delegate": "yes", "MemoryMax": "8589934592"}


@pytest.mark.parametrize(
    ("unit", "text", "unified", "expected"),
    [
        ({}, "", False, ""),
        (UNIT, "", True, ""),
        (UNIT, "", False, "warning: this system still has version 1 of cgroups"),
        ({**UNIT, "Delegate": "no"}, "", True, "warning: the unit delegates no cgroups"),
        ({**UNIT, "MemoryMax": "1000"}, "", True, "bad: memory.cap is 6.00 GiB"),
        ({**UNIT, "MemoryMax": "infinity"}, "", True, ""),
        (
            {**UNIT, "IPAddressDeny": "::/0 0.0.0.0/0", "IPAddressAllow": "127.0.0.0/8 ::1/128"},
            'listen = ["192.168.1.5:8435"]\napi_keys_file = "KEYS"',
            True,
            "bad: server.listen has 192.168.1.5:8435",
        ),
        (
            {**UNIT, "IPAddressDeny": "::/0", "IPAddressAllow": "::/0 0.0.0.0/0"},
            'listen = ["192.168.1.5:8435"]\napi_keys_file = "KEYS"',
            True,
            "",
        ),
    ],
)
def test_units(
    tmp_path: Path, unit: dict[str, str], text: str, unified: bool, expected: str
) -> None:
    keys = tmp_path / "keys"
    keys.write_text("k\n")
    keys.chmod(0o600)
    if unified:
        made(tmp_path, sys__fs__cgroup__cgroup_controllers="")
        (tmp_path / "sys/fs/cgroup/cgroup_controllers").rename(
            tmp_path / "sys/fs/cgroup/cgroup.controllers"
        )
    one = config(tmp_path, f"[server]\n{text.replace('KEYS', str(keys))}\n")
    found = said(unit_findings(one, unit, Machine(tmp_path)))
    assert found.startswith(expected)
    assert bool(found) == bool(expected)


@pytest.mark.parametrize(
    ("members", "expected"),
    [
        (None, "bad: there is no group homespecd"),
        ([], "warning: nobody is in group homespecd"),
        (["homespecd"], "warning: nobody is in group homespecd"),
        (["homespecd", "jellyfin"], ""),
    ],
)
def test_groups(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, members: list[str] | None, expected: str
) -> None:
    monkeypatch.setattr(doctor_unit, "group_members", lambda _group: members)
    found = said(group_findings(config(tmp_path, "")))
    assert found.startswith(expected)
    assert bool(found) == bool(expected)


def test_members_are_those_of_the_system() -> None:
    members = machine.group_members("root")
    assert members is not None
    assert "root" in members
    assert machine.group_members("no-such-group") is None


CPU, OPENVINO = Build("onnxruntime", "1.32.0"), Build("onnxruntime-openvino", "1.24.1")


def test_a_provider_that_is_not_there() -> None:
    model = {
        **SNAPSHOT["models"][0],
        "requested_provider": "openvino",
        "provider": "cpu",
        "provider_reason": "no such \x1b[31mdevice",
    }
    snapshot = {**SNAPSHOT, "models": [model]}
    found = said(placement_findings(snapshot, [OPENVINO]))
    assert found.startswith("bad: smollm2 asks for openvino and runs on cpu: no such ")
    assert "\x1b" not in found
    # Where the build is missing, that is the one thing to say.
    assert said(placement_findings(snapshot, [CPU])) == ""
    model["requested_provider"] = "auto"
    assert said(placement_findings(snapshot, [OPENVINO])) == ""


def test_builds_that_do_not_fit(tmp_path: Path) -> None:
    assert said(build_findings([CPU])) == ""
    assert said(build_findings([])).startswith("bad: no onnxruntime is installed")
    mix = said(build_findings([CPU, OPENVINO], python="py"))
    assert mix.startswith("bad: several builds of onnxruntime are installed")
    assert "py -m pip uninstall -y onnxruntime onnxruntime-openvino && py -m pip install" in mix
    asked = config(
        tmp_path,
        '[models.a]\npath = "a"\nprovider = "cuda"\ndrafters = ["d"]\n'
        '[models.b]\npath = "b"\nprovider = "cuda"\n'
        '[drafters.d]\nkind = "model"\npath = "d"\nprovider = "openvino"\n',
    )
    found = said(asked_findings(asked, [CPU])).splitlines()
    assert [line.partition(",")[0] for line in found] == [
        "bad: cuda is asked for",
        "bad: openvino is asked for",
    ]
    assert said(asked_findings(config(tmp_path, ""), [CPU])) == ""


@pytest.mark.parametrize(
    ("provider", "devices", "code", "expected"),
    [
        ('"cuda"', "yes", "yes", "gpu.conf"),
        ('"cuda"', "no", "no", ""),
        ('"openvino"', "yes", "yes", "openvino.conf"),
        ('"openvino"', "yes", "no", ""),
        ('"openvino"\nprovider_options = { device_type = "GPU" }', "yes", "no", "gpu.conf"),
        ('"openvino"\nprovider_options = { device_type = "CPU" }', "yes", "no", ""),
        ('"cpu"', "yes", "yes", ""),
        ('"auto"', "yes", "yes", ""),
    ],
)
def test_the_sandbox_lets_providers_work(
    tmp_path: Path, provider: str, devices: str, code: str, expected: str
) -> None:
    asked = config(tmp_path, f'[models.a]\npath = "a"\nprovider = {provider}\n')
    unit = {"LoadState": "loaded", "PrivateDevices": devices, "MemoryDenyWriteExecute": code}
    found = said(sandbox_findings(asked, unit))
    assert expected in found
    assert bool(found) == bool(expected)
    assert said(sandbox_findings(asked, {})) == ""


def test_the_command(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Exit 6 with what is bad; findings as JSON too; a service that is down is a finding."""
    monkeypatch.setenv("HOMESPECD_SOCKET", str(tmp_path / "s"))
    monkeypatch.setattr(doctor, "Machine", lambda: Machine(tmp_path))
    monkeypatch.setattr(doctor, "unit_properties", dict)
    monkeypatch.setattr(doctor_unit, "group_members", lambda _group: ["jellyfin"])
    (tmp_path / "models").mkdir()
    file = tmp_path / "c.toml"
    file.write_text(f'[paths]\nmodels = "{tmp_path}/models"\nstate = "{tmp_path}"\n')
    arguments = ["doctor", "--config", str(file)]
    assert main(arguments) == 6
    assert "bad: homespecd is not running" in capsys.readouterr().out
    with serving(tmp_path / "s") as service:
        answers: dict[str, Any] = {**SNAPSHOT}
        service.answers["GET /homespec/status"] = answers
        assert main(arguments) == 0
        assert "nothing found" in capsys.readouterr().out
        added = tmp_path / "conf.d" / "app.toml"
        added.parent.mkdir()
        added.write_text("nonsense = 1\n")
        assert main([*arguments, "--json"]) == 6
    [finding] = json.loads(capsys.readouterr().out)
    assert finding["level"] == "bad"
    assert "unknown section" in finding["what"]
    assert finding["fix"] == f"edit {added}"
