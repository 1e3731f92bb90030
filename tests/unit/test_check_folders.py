"""`check` looks into the folders of models, and at the accounts that clients have."""

from __future__ import annotations

import grp
import json
import os
import pwd
import shutil
from collections.abc import Mapping
from pathlib import Path

import pytest

from homespecd.config.accounts import is_group, is_user, unknown_accounts
from homespecd.config.folders import FolderFacts, faults
from homespecd.config.load import load
from homespecd.config.source import show_key
from homespecd.daemon.checking import check
from homespecd.daemon.main import main
from tests.oracle import Toy
from tests.tiny_onnx import make_toy

CONFIG = """\
[models.m]
path = "target"
context = 2000
drafters = ["n", "d"]
[drafters.n]
kind = "ngram"
[drafters.d]
kind = "model"
path = "draft"
"""


# -- the rules, on stated facts ------------------------------------------------------------------

SOUND = FolderFacts(context=2048, vocabulary="a")


@pytest.mark.parametrize(
    ("target", "draft", "said"),
    [
        (SOUND, SOUND, []),
        (FolderFacts(), FolderFacts(), []),
        (
            FolderFacts(context=1024, vocabulary="a"),
            SOUND,
            [
                "models.m.context: 2000 is more than the 1024 positions that the model has "
                "(set it to 1024 or less)"
            ],
        ),
        # A draft may have fewer positions: it is given up when they end.
        (SOUND, FolderFacts(context=10, vocabulary="a"), []),
        (
            SOUND,
            FolderFacts(vocabulary="b"),
            [
                'models.m.drafters[1]: the vocabulary of "d" is not that of the model, so its '
                "tokens mean something else (pair models that share a tokenizer)"
            ],
        ),
        (
            FolderFacts(broken=(("x is missing", "get it"), ("y is missing", ""))),
            FolderFacts(variant=(("no variant 'q9'", "only q4"),)),
            [
                "drafters.d.variant: no variant 'q9' (only q4)",
                "models.m.path: x is missing (get it)",
                "models.m.path: y is missing",
            ],
        ),
    ],
)
def test_what_folders_say_against_a_configuration(
    tmp_path: Path, target: FolderFacts, draft: FolderFacts, said: list[str]
) -> None:
    file = tmp_path / "c.toml"
    file.write_text(CONFIG)
    facts: Mapping[str, FolderFacts] = {"target": target, "draft": draft}
    found = faults(load(file), lambda path, _variant: facts[path.name])
    shown = [
        f"{show_key(one.key)}: {one.message}" + (f" ({one.hint})" if one.hint else "")
        for one in found
    ]
    assert shown == said


def test_clients_whom_the_machine_does_not_know() -> None:
    users, groups = {"jellyfin"}, {"media"}
    found = {
        str(fault.key[1]): (fault.message, fault.hint)
        for fault in unknown_accounts(
            ("default", "jellyfin", "@media", "media", "@jellyfin", "bob", "1000", "@27"),
            is_user=users.__contains__,
            is_group=groups.__contains__,
        )
    }
    nobody = "it applies to nobody until there is"
    assert found == {
        "media": ('there is no user "media" on this machine', '"@media" is the group'),
        "@jellyfin": ('there is no group "jellyfin" on this machine', nobody),
        "bob": ('there is no user "bob" on this machine', nobody),
    }


def test_accounts_of_this_machine() -> None:
    assert is_user(pwd.getpwuid(os.getuid()).pw_name)
    assert is_group(grp.getgrgid(os.getgid()).gr_name)
    assert not is_user("no such user")
    assert not is_group("no\0group")


# -- real folders --------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def toys(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("toys")
    make_toy(folder / "target", Toy(external_data=True))
    make_toy(folder / "draft", Toy(behaviour="every_third"))
    return folder


@pytest.fixture
def models(toys: Path, tmp_path: Path) -> Path:
    """A copy of the toys, and a configuration of them in `c.toml`."""
    shutil.copytree(toys, tmp_path, dirs_exist_ok=True)
    (tmp_path / "c.toml").write_text(f'[paths]\nmodels = "."\n{CONFIG}')
    return tmp_path


def problems(folder: Path) -> list[str]:
    file = folder / "c.toml"
    return [str(one).removeprefix(f"{file}:") for one in check(file).problems]


def test_a_sound_pair_has_no_problems(models: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = models / "c.toml"
    assert check(file).config is not None
    assert main(["--check", str(file)]) == 0
    assert capsys.readouterr() == (f"{file}: no problems\n", "")


def test_files_that_are_missing_empty_or_cut_are_named(models: Path) -> None:
    (models / "target" / "model.onnx_data").unlink()
    (models / "draft" / "model.onnx").write_bytes(b"")
    assert problems(models) == [
        "4: models.m.path: model.onnx_data is missing (import or export the model again)",
        "11: drafters.d.path: model.onnx is empty (import or export the model again)",
    ]
    (models / "target" / "model.onnx").unlink()
    (models / "draft" / "tokenizer.json").write_text('{"version"')
    [target, _, draft] = problems(models)
    assert target.startswith("4: models.m.path: no graph (.onnx file) in this folder")
    assert draft.startswith("11: drafters.d.path: tokenizer.json: cannot be read")


def test_a_bundle_is_held_to_its_manifest(models: Path) -> None:
    (models / "target" / "homespec.json").write_text('{"format": 1, "files"')
    (models / "target" / "model.onnx").rename(models / "target" / "model.lanes1.onnx")
    assert "4: models.m.path: homespec.json: the manifest is not JSON" in problems(models)


@pytest.mark.parametrize(
    ("beside", "said"),
    [
        ("model_q4.onnx", "several graphs here: fp32 (model.onnx), q4 (model_q4.onnx)"),
        (None, "no variant 'q9' here, only: fp32 (model.onnx)"),
    ],
)
def test_a_variant_that_is_not_there_is_a_problem_of_that_key(
    models: Path, beside: str | None, said: str
) -> None:
    if beside:
        shutil.copy(models / "draft" / "model.onnx", models / "draft" / beside)
        key = "11: drafters.d.path"
    else:
        (models / "c.toml").write_text((models / "c.toml").read_text() + 'variant = "q9"\n')
        key = "12: drafters.d.variant"
    [problem] = problems(models)
    assert problem.startswith(f"{key}: {said}")


def test_a_context_and_a_vocabulary_that_do_not_fit(models: Path) -> None:
    (models / "target" / "config.json").write_text('{"max_position_embeddings": 512}')
    tokenizer = models / "draft" / "tokenizer.json"
    content = json.loads(tokenizer.read_text())
    vocab = content["model"]["vocab"]
    first, second = list(vocab)[:2]
    vocab[first], vocab[second] = vocab[second], vocab[first]
    tokenizer.write_text(json.dumps(content))
    [context, vocabulary] = problems(models)
    assert context.startswith("5: models.m.context: 2000 is more than the 512 positions")
    assert vocabulary.startswith('6: models.m.drafters[1]: the vocabulary of "d" is not that')


def test_other_problems_do_not_hide_those_of_folders(models: Path) -> None:
    (models / "target" / "model.onnx_data").unlink()
    file = models / "c.toml"
    file.write_text(file.read_text() + "[memory]\ncapp = 1\n")
    assert [one.partition(" ")[2].partition(":")[0] for one in problems(models)] == [
        "models.m.path",
        "memory.capp",
    ]


def test_warnings_change_nothing_about_the_exit_code(
    models: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = models / "c.toml"
    file.write_text(f'{file.read_text()}[clients.nobody-here]\nallow_models = ["m"]\n')
    assert main(["--check", str(file)]) == 0
    assert capsys.readouterr().err == (
        f'{file}:12: warning: clients.nobody-here: there is no user "nobody-here" on this machine '
        "(it applies to nobody until there is)\n"
    )
