"""What a service says of a state directory that it cannot write."""

from __future__ import annotations

from pathlib import Path

import pytest

from homespecd.config.load import load
from homespecd.config.schema import Config
from homespecd.daemon.reload import read_again
from homespecd.daemon.state_folder import state_faults
from homespecd.errors import Problem


def config_at(tmp_path: Path, state: Path) -> tuple[Path, Config]:
    file = tmp_path / "homespecd.toml"
    file.write_text(f'[paths]\nstate = "{state}"\n[models]\n')
    return file, load(file)


@pytest.mark.parametrize("missing", [False, True])
def test_looking_leaves_nothing_behind(tmp_path: Path, missing: bool) -> None:
    state = tmp_path / "a" / "b"
    if not missing:
        state.mkdir(parents=True)
    file, config = config_at(tmp_path, state)

    assert list(state_faults(config)) == []
    assert sorted(tmp_path.rglob("*")) == sorted([file] if missing else [file, state, state.parent])


@pytest.mark.parametrize("below", ["", "x"])
def test_a_file_in_its_place_is_named_with_the_reason(tmp_path: Path, below: str) -> None:
    (tmp_path / "file").touch()
    _, config = config_at(tmp_path, tmp_path / "file" / below)

    (fault,) = state_faults(config)

    assert fault.key == ("paths", "state")
    assert str(tmp_path / "file") in fault.message
    assert "(Not a directory)" in fault.message


def test_a_reload_warns_of_it_by_its_line(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    file, config = config_at(tmp_path, tmp_path / "file")
    warnings: list[Problem] = []

    new, _ = read_again(file, running=config, warn=warnings.append)

    assert new == config
    assert [(one.key, one.line) for one in warnings] == [("paths.state", 2)]
