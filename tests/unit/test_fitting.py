"""Caps that no model fits into are warned of, and pinned models that do not fit are refused."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from homespecd.config.load import load
from homespecd.daemon.checking import check
from homespecd.daemon.estimate import Estimate
from homespecd.daemon.fitting import over_caps
from homespecd.daemon.learned import LearnedMemory
from homespecd.daemon.main import main
from homespecd.daemon.reload import read_again
from homespecd.daemon.settings import worker_settings
from homespecd.errors import ConfigError, Problem
from tests.oracle import Toy
from tests.tiny_onnx import make_toy

MIB = 2**20
GIB = 2**30


def written(folder: Path, text: str) -> Path:
    file = folder / "c.toml"
    file.write_text(f'[paths]\nmodels = "."\nstate = "state"\n{text}')
    return file


def model(folder: Path, name: str, num_bytes: int) -> None:
    make_toy(folder / name, Toy(layout="single"))
    os.truncate(folder / name / "model.onnx", num_bytes)  # with a hole, which nobody reads


@pytest.mark.parametrize(
    ("cap", "own", "key", "said"),
    [
        ("3GiB", "", None, ""),
        ("3GiB", 'memory_cap = "3GiB"', None, ""),
        ("2GiB", "", ("models", "m"), "memory.cap is 2.00 GiB"),
        ("2GiB", 'memory_cap = "2GiB"', ("models", "m"), "memory.cap is 2.00 GiB"),
        ("9GiB", 'memory_cap = "1GiB"', ("models", "m", "memory_cap"), "memory_cap is 1.00 GiB"),
    ],
)
def test_a_model_over_its_cap_is_doubted(
    tmp_path: Path, cap: str, own: str, key: tuple[str, ...] | None, said: str
) -> None:
    file = written(tmp_path, f'[memory]\ncap = "{cap}"\n[models.m]\npath = "m"\n{own}\n')
    need = Estimate(target_bytes=3 * GIB, draft_bytes=9 * GIB, floor_bytes=GIB)
    found = list(over_caps(load(file), lambda _settings: need))
    assert [one.key for one in found] == ([] if key is None else [key])
    for one in found:
        assert one.message.startswith("needs about 3.00 GiB (1.00 GiB of weights), and ")
        assert said in one.message
        assert one.hint.startswith(f"raise {said.partition(' ')[0]}, ")


CONFIG = """\
[memory]
cap = "500MiB"
[models.big]
path = "big"
context = 100
provider = "cpu"
[models.small]
path = "small"
context = 100
provider = "cpu"
"""


def test_a_cap_below_a_model_is_a_warning_by_its_files_and_by_what_was_measured(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    model(tmp_path, "big", 400 * MIB)
    model(tmp_path, "small", 100 * MIB)
    file = written(tmp_path, CONFIG)
    assert main(["--check", str(file)]) == 0
    printed = capsys.readouterr()
    assert printed.out == f"{file}: no problems\n"
    assert printed.err == (
        f"{file}:6: warning: models.big: needs about 600 MiB (400 MiB of weights), and memory.cap "
        "is 500 MiB: it will not be loaded (raise memory.cap, lower context or slots, or import it "
        "at a smaller precision)\n"
    )
    warned: list[Problem] = []
    read_again(file, running=load(file), warn=warned.append)
    assert f"{warned[0].as_warning()}\n" == printed.err
    assert check(file, file_only=True).warnings == ()

    learned = LearnedMemory(tmp_path / "state")
    for name, held in (("big", 450), ("small", 700)):
        key = learned.needs(worker_settings(load(file), name)).key
        learned.note(key, Estimate(held * MIB, 0, 0), exactly=True)
    learned.save()
    [warning] = check(file).warnings
    assert warning.key == "models.small"
    assert "needs about 700 MiB" in warning.message


def test_pinned_models_that_do_not_fit_are_a_problem_to_check_as_to_a_reload(
    tmp_path: Path,
) -> None:
    model(tmp_path, "big", 400 * MIB)
    model(tmp_path, "small", 101 * MIB)
    file = written(tmp_path, CONFIG.replace("provider", 'residency = "pinned"\nprovider'))
    [problem] = check(file).problems
    assert problem.key == "models.small.residency"
    assert "need at least 501 MiB, and memory.cap is 500 MiB" in problem.message
    with pytest.raises(ConfigError) as refused:
        read_again(file, running=load(file), warn=lambda _warning: None)
    assert refused.value.problems == (problem,)
    assert check(file, file_only=True).problems == ()
