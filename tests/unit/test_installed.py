"""Builds of onnxruntime as pip writes them down, in folders that the tests make."""

from __future__ import annotations

import importlib.metadata
import os
import subprocess
import sys
from pathlib import Path
from types import ModuleType
from typing import cast

import pytest

from homespecd.errors import ModelError
from homespecd.runtime import session
from homespecd.runtime.backend import OnnxRuntime
from homespecd.runtime.installed import (
    BUILDS,
    Build,
    installed_builds,
    provider_trouble,
    trouble_with,
)
from homespecd.runtime.providers import Attempt
from homespecd.runtime.session import load_onnxruntime
from homespecd.runtime.session_settings import SessionSettings

CPU = Build("onnxruntime", "1.32.0")
GPU = Build("onnxruntime-gpu", "1.31.1")
OPENVINO = Build("onnxruntime-openvino", "1.24.1")
DIRECTML = Build("onnxruntime-directml", "1.24.1")

SERVICE = "import sys; from homespecd.daemon.main import main; sys.exit(main(sys.argv[1:]))"


def site(folder: Path, *packages: str) -> str:
    """A site-packages folder in which pip has installed `name version`s."""
    for package in packages:
        name, version = package.split()
        info = folder / f"{name.replace('-', '_')}-{version}.dist-info"
        info.mkdir(parents=True)
        (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n")
    return str(folder)


def test_builds_are_found_by_what_pip_wrote_down(tmp_path: Path) -> None:
    path = site(
        tmp_path,
        "numpy 2.4.6",
        "onnxruntime-genai 0.18.0",
        "onnxruntime-extensions 0.14.0",
        "onnxruntime 1.32.0",
        "OnnxRuntime_GPU 1.31.1",
    )
    assert installed_builds([path]) == (CPU, GPU)
    assert installed_builds([str(tmp_path / "nothing")]) == ()


@pytest.mark.parametrize("name", ["onnxruntime-rocm", "ort-nightly", "onnxruntime-training-cpu"])
def test_builds_of_other_names_count_too(tmp_path: Path, name: str) -> None:
    found = installed_builds([site(tmp_path, f"{name} 1.22.0", "onnxruntime 1.32.0")])
    assert {one.package for one in found} == {name, "onnxruntime"}
    trouble = trouble_with(found)
    assert trouble is not None
    assert name in trouble.what


def test_what_an_interrupted_pip_left_is_passed_over(tmp_path: Path) -> None:
    (tmp_path / "~nnxruntime-1.30.0.dist-info").mkdir()
    assert installed_builds([site(tmp_path, "onnxruntime 1.32.0")]) == (CPU,)


def test_one_build_seen_twice_is_one(tmp_path: Path) -> None:
    path = site(tmp_path, "onnxruntime 1.32.0")
    assert installed_builds([path, path]) == (CPU,)


def test_this_environment_has_one() -> None:
    [build] = installed_builds()
    assert importlib.metadata.version(build.package) == build.version
    assert trouble_with([build]) is None


@pytest.mark.parametrize("build", [CPU, GPU, OPENVINO, DIRECTML, Build("onnxruntime-rocm", "1.22")])
def test_one_is_right(build: Build) -> None:
    assert trouble_with([build]) is None


def test_none_is_named_with_what_to_install() -> None:
    trouble = trouble_with([], python="/opt/x/bin/python")
    assert trouble is not None
    assert "no onnxruntime is installed" in trouble.what
    assert trouble.fix.startswith("/opt/x/bin/python -m pip install onnxruntime ")


@pytest.mark.parametrize(
    ("builds", "keep"),
    [
        ((CPU, GPU), "onnxruntime-gpu==1.31.1"),
        ((CPU, OPENVINO), "onnxruntime-openvino==1.24.1"),
        ((CPU, DIRECTML), "onnxruntime-directml==1.24.1"),
        ((GPU, OPENVINO), "onnxruntime-gpu==1.31.1"),
        ((CPU, GPU, OPENVINO), "onnxruntime-gpu==1.31.1"),
    ],
)
def test_a_mix_is_named_with_the_commands_that_mend_it(
    builds: tuple[Build, ...], keep: str
) -> None:
    """All are taken away first: the files of the one that stays are gone with the others'."""
    trouble = trouble_with(builds, python="/opt/x/bin/python")
    assert trouble is not None
    for one in builds:
        assert f"{one.package} {one.version}" in trouble.what
    away, _, again = trouble.fix.partition(" && ")
    pip = "/opt/x/bin/python -m pip"
    assert away == f"{pip} uninstall -y {' '.join(one.package for one in builds)}"
    assert again.startswith(f"{pip} install --no-deps {keep} ")


@pytest.mark.parametrize("provider", ["auto", "cpu", "cuda", "openvino", "directml"])
@pytest.mark.parametrize("build", [CPU, GPU, OPENVINO, DIRECTML])
def test_a_provider_needs_its_build(provider: str, build: Build) -> None:
    """The CPU is in all of them."""
    trouble = provider_trouble(provider, [build], python="python")
    there = provider in ("auto", "cpu", BUILDS[build.package])
    assert (trouble is None) == there
    if trouble is not None:
        assert trouble.what == f"{provider} is asked for, and what is installed is {build.package}"
        wanted = next(name for name, one in BUILDS.items() if one == provider)
        assert f"python -m pip install {wanted}" in trouble.fix


def test_onnxruntime_is_not_imported_to_find_out() -> None:
    code = (
        "import sys; from homespecd.runtime.installed import installed_builds; "
        "assert installed_builds(); assert 'onnxruntime' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


def test_the_service_warns_when_it_starts_and_starts_all_the_same(tmp_path: Path) -> None:
    """It comes as far as its socket, which cannot be made."""
    extra = site(tmp_path / "site", "onnxruntime-gpu 1.31.1")
    config = tmp_path / "c.toml"
    config.write_text(f'[server]\nsocket = "{tmp_path}/c.toml/socket"\nsocket_group = ""\n')
    result = subprocess.run(
        [sys.executable, "-c", SERVICE, "--config", str(config)],
        env={**os.environ, "PYTHONPATH": os.pathsep.join([extra, *sys.path])},
        capture_output=True,
        text=True,
        timeout=60,
    )
    warnings = [line for line in result.stderr.splitlines() if "several builds" in line]
    assert len(warnings) == 1, result.stderr
    assert f"{sys.executable} -m pip uninstall -y onnxruntime" in warnings[0]
    assert "cannot listen here" in result.stderr.splitlines()[-1]


@pytest.mark.parametrize(
    ("builds", "module", "expected"),
    [
        ((), None, "no onnxruntime is installed"),
        ((CPU, GPU), ModuleType("onnxruntime"), "several builds of onnxruntime"),
        ((CPU,), ModuleType("onnxruntime"), "onnxruntime is damaged"),
    ],
)
def test_without_a_sound_onnxruntime_loading_is_a_sentence(
    monkeypatch: pytest.MonkeyPatch,
    builds: tuple[Build, ...],
    module: ModuleType | None,
    expected: str,
) -> None:
    """Not there; or a folder that is left of it, which Python imports as an empty module."""
    monkeypatch.setitem(sys.modules, "onnxruntime", module)
    monkeypatch.setattr(session, "installed_builds", lambda: builds)
    with pytest.raises(ModelError, match=expected) as caught:
        load_onnxruntime()
    assert "install" in (caught.value.hint or "")


class Loading:
    """An onnxruntime whose sessions do not come up; notes what is called."""

    def __init__(self) -> None:
        real = load_onnxruntime()
        self.called: list[str] = []
        for name in ("SessionOptions", "ExecutionMode", "GraphOptimizationLevel"):
            setattr(self, name, getattr(real, name))
        self.set_default_logger_severity = real.set_default_logger_severity

    def preload_dlls(self) -> None:
        print("Failed to load libcudart.so")  # noqa: T201
        self.called.append("preload")

    def InferenceSession(self, *_: object, **__: object) -> None:  # noqa: N802
        self.called.append("session")
        raise RuntimeError("no device")


@pytest.mark.parametrize(
    ("provider", "expected"),
    [
        ("cuda", ["preload", "session"]),
        ("openvino", ["session"]),
        ("cpu", ["session"]),
    ],
)
def test_libraries_of_the_cuda_extra_are_loaded_before_a_session_wants_them(
    capfd: pytest.CaptureFixture[str], provider: str, expected: list[str]
) -> None:
    ort = Loading()
    with pytest.raises(RuntimeError, match="no device"):
        OnnxRuntime(cast("ModuleType", ort)).load(
            Path("graph.onnx"), Attempt(provider), SessionSettings(threads=1)
        )
    assert ort.called == expected
    assert capfd.readouterr().out == ""
