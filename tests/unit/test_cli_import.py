"""`homespecctl import`: what is printed, and what went wrong as a sentence."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest

from homespecd.cli import import_ as import_command
from homespecd.cli.main import main
from homespecd.config import load
from homespecd.errors import BundleError
from tests.unit.cli_service import error_line


def test_import_prints_what_to_paste(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def import_bundle(source: Path, **options: Any) -> tuple[str, str]:
        assert source == tmp_path / "m.gguf"
        assert options["name"] == "my.model"
        assert options["precision"] == "int8"
        return "abc123", "int8"

    monkeypatch.setattr(import_command, "import_bundle", import_bundle)
    command = ["import", str(tmp_path / "m.gguf"), "--name", "my.model", "--into", str(tmp_path)]
    assert main([*command, "--precision", "int8"]) == 0
    out = capsys.readouterr().out
    assert "digest abc123\n" in out
    config = tmp_path / "c.toml"
    config.write_text(out[out.index("[models") :])
    (tmp_path / "my.model").mkdir()
    assert load(config, check_paths=True).models["my.model"].path == tmp_path / "my.model"
    assert main(["import", "x", "--name", "a/b"]) == 2


def test_import_failures_are_sentences(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def truncated(_source: Path, **_options: Any) -> tuple[str, str]:
        raise BundleError("ends in the middle of a tensor", where="m.gguf", hint="load it again")

    monkeypatch.setattr(import_command, "import_bundle", truncated)
    assert main(["import", "m.gguf", "--name", "m"]) == 1
    assert error_line(capsys) == (
        "homespecctl: m.gguf: ends in the middle of a tensor (load it again)\n"
    )


def test_import_without_its_extra(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "homespecd.runtime.importing", None)
    import builtins

    real = builtins.__import__

    def without_gguf(name: str, *rest: Any) -> Any:
        if name == "homespecd.runtime.importing":
            raise ModuleNotFoundError("No module named 'gguf'", name="gguf")
        return real(name, *rest)

    monkeypatch.setattr(builtins, "__import__", without_gguf)
    assert main(["import", "m.gguf", "--name", "m"]) == 1
    assert error_line(capsys) == (
        "homespecctl: importing needs the package gguf, which is not installed "
        "(pip install 'homespecd[import]')\n"
    )
