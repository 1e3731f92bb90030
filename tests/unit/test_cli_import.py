"""`homespecctl import`: what is printed, and what went wrong as a sentence."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Any

import pytest

from homespecd.cli import import_ as import_command
from homespecd.cli.main import main
from homespecd.config import load
from homespecd.errors import BundleError
from tests.conftest import ROOT
from tests.unit.cli_service import error_line


def test_import_prints_what_to_paste(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def import_bundle(source: Path, **options: Any) -> tuple[str, str]:
        assert source == tmp_path / "m.gguf"
        assert options["name"] == "my.model"
        assert options["precision"] == "int8"
        return "abc123", "int8"

    handed: list[tuple[Path, Path]] = []
    monkeypatch.setattr(import_command, "import_bundle", import_bundle)
    monkeypatch.setattr(
        import_command, "hand_over", lambda folder, *, as_of: handed.append((folder, as_of))
    )
    command = ["import", str(tmp_path / "m.gguf"), "--name", "my.model", "--into", str(tmp_path)]
    assert main([*command, "--precision", "int8"]) == 0
    assert handed == [(tmp_path / "my.model", tmp_path)]
    out = capsys.readouterr().out
    assert "digest abc123\n" in out
    config = tmp_path / "c.toml"
    config.write_text(out[out.index("# a file") :])
    (tmp_path / "my.model").mkdir()
    assert load(config, check_paths=True).models["my.model"].path == tmp_path / "my.model"
    assert main(["import", "x", "--name", "a/b"]) == 2


def test_the_lines_printed_are_a_file_of_the_shipped_configuration(tmp_path: Path) -> None:
    """The shipped file has the lookup already: in one file with it, its table would be twice."""
    main_file, own = tmp_path / "homespecd.toml", tmp_path / "conf.d" / "m.toml"
    main_file.write_bytes((ROOT / "etc" / "homespecd.toml").read_bytes())
    own.parent.mkdir()
    own.write_text(import_command.config_lines("m", tmp_path / "m"))
    assert load(main_file).models["m"].drafters == ("ngram",)


def test_what_root_imports_belongs_to_the_owner_of_the_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made, others = tmp_path / "models" / "m", tmp_path / "others"
    (made / "packed").mkdir(parents=True)
    others.write_text("")
    for file in (made / "weights.bin", made / "packed" / "weights.lanes1.bin"):
        file.write_text("")
    (made / "link").symlink_to(others)
    if os.geteuid() == 0:
        os.chown(made.parent, 65534, 65534)
    given = set()

    def chown(what: str | int, uid: int, gid: int, **how: Any) -> None:
        assert (uid, gid) == (made.parent.stat().st_uid, made.parent.stat().st_gid)
        given.add(os.stat(what, **how).st_ino)  # noqa: PTH116 - by descriptor

    monkeypatch.setattr(os, "chown", chown)
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    import_command.hand_over(made, as_of=made.parent)
    assert given == set()
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    import_command.hand_over(made, as_of=made.parent)
    assert given == {path.lstat().st_ino for path in (made, *made.rglob("*"))}


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
