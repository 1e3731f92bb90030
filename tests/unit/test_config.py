"""Loading: what a good file becomes, and what has changed between two."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from homespecd.config import Change, Config, diff, load
from homespecd.config.watch import signature
from tests.unit.config_files import GOOD, problems, write


def test_every_key(tmp_path: Path) -> None:
    config = load(write(tmp_path, GOOD))
    server, model = config.server, config.models["smollm2"]
    assert (server.socket, server.socket_mode, server.socket_group) == (
        Path("/run/x/x.sock"),
        0o600,
        "",
    )
    assert [str(one) for one in server.listen] == ["127.0.0.1:8435", "[::1]:8436", "localhost:1"]
    assert (server.api_keys_file, server.max_body_bytes, server.max_queue) == (None, 8 * 2**20, 0)
    assert config.paths.models == Path("/srv/models")
    assert config.paths.state == tmp_path / "state"
    assert (config.memory.cap_bytes, config.memory.reserve_bytes) == (6 * 2**30, 0)
    assert config.memory.pressure == 5.0
    assert config.speculation.model_dump() == {
        "enabled": False,
        "min_speedup": 1.05,
        "max_draft_tokens": 4,
        "probe_budget": 0.0,
    }
    assert model.path == Path("/srv/models/smollm2-135m-instruct")
    assert model.provider_options == {"device_id": 1, "gpu_mem_limit": "2GiB", "use_tf32": True}
    assert (model.variant, model.provider, model.provider_required) == ("q4", "cuda", True)
    assert (model.threads, model.context, model.slots) == (2, 2048, 3)
    assert (model.residency, model.idle_unload_s) == ("pinned", 5400.0)
    assert model.memory_cap_bytes == 2 * 2**30
    assert model.drafters == ("ngram", "small")
    assert config.models["org:model@1.5"].path == Path("/elsewhere/model")
    assert config.drafters["ngram"].path is None
    assert config.drafters["small"].path == Path("/srv/models/small")
    assert config.drafters["small"].max_draft_tokens == 3
    assert config.clients["default"].allow_models == ("smol*",)
    assert config.clients["@media"].max_active == 1


def test_defaults_are_the_documented_ones(tmp_path: Path) -> None:
    config = load(write(tmp_path, '[models.a]\npath = "a"\n'))
    assert config.server.socket == Path("/run/homespecd/homespecd.sock")
    assert config.server.socket_mode == 0o660
    assert config.server.socket_group == "homespecd"
    assert config.server.max_body_bytes == 4 * 2**20
    assert config.memory.cap_bytes == 6 * 2**30
    assert config.memory.reserve_bytes == 2**30
    model = config.models["a"]
    assert (model.idle_unload_s, model.memory_cap_bytes, model.drafters) == (900.0, None, ())
    assert (model.context, model.slots, model.residency) == (4096, 2, "on-demand")
    assert set(config.clients) == {"default"}
    assert config.clients["default"].max_active == 4


def test_an_empty_file_is_a_service_without_models(tmp_path: Path) -> None:
    assert load(write(tmp_path, "")).models == {}


def test_a_configuration_does_not_change(tmp_path: Path) -> None:
    config = load(write(tmp_path, GOOD))
    with pytest.raises(ValueError, match="frozen"):
        config.models["smollm2"].slots = 9  # type: ignore[misc]


def test_byte_order_mark_and_windows_line_ends(tmp_path: Path) -> None:
    """L10: what an editor on a Windows share leaves behind."""
    plain = load(write(tmp_path, GOOD))
    text = b"\xef\xbb\xbf" + GOOD.replace("\n", "\r\n").encode()
    assert load(write(tmp_path, text)) == plain
    bad = text.replace(b"slots = 3", b"slots = 0")
    assert problems(write(tmp_path, bad)) == [
        "33: models.smollm2.slots: 0 is too small: at least 1"
    ]


def test_a_pipe_is_read_to_its_end_and_never_waited_for(tmp_path: Path) -> None:
    """`homespecctl check <(…)` works; a pipe that lies where a file should be stops nothing."""
    path = tmp_path / "homespecd.toml"
    os.mkfifo(path)
    assert load(path).models == {}
    assert signature(path) == signature(path)
    read, write = os.pipe()
    try:
        os.write(write, b"[memory]\ncap = '3GiB'\n")
        os.close(write)
        assert load(Path(f"/dev/fd/{read}")).memory.cap_bytes == 3 * 2**30
    finally:
        os.close(read)


def test_drop_ins_are_merged_in_the_order_of_their_names(tmp_path: Path) -> None:
    main = write(tmp_path, '[models.a]\npath = "a"\ndrafters = ["n"]\n[drafters.n]\nkind = "ngram"')
    write(tmp_path, "[models.a]\nslots = 3\nthreads = 3", "conf.d/20-b.toml")
    write(tmp_path, '[models.a]\nslots = 4\n[models.b]\npath = "b"', "conf.d/10-a.toml")
    write(tmp_path, "not toml", "conf.d/30-c.toml.bak")
    write(tmp_path, "not toml", "conf.d/.30-d.toml")
    config = load(main)
    assert (config.models["a"].slots, config.models["a"].threads) == (3, 3)
    assert config.models["a"].drafters == ("n",)
    assert set(config.models) == {"a", "b"}


def test_relative_paths_do_not_depend_on_the_working_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write(tmp_path, "[paths]\nmodels = 'm'\n[server]\nsocket = 's'\n[models.a]\npath = 'a'")
    monkeypatch.chdir(tmp_path)
    config = load(Path("homespecd.toml"))
    monkeypatch.chdir("/")
    assert config.models["a"].path == tmp_path / "m" / "a"
    assert config.server.socket == tmp_path / "s"


def changed(folder: Path, old: str, new: str) -> tuple[Change, ...]:
    def loaded(text: str) -> Config:
        return load(write(folder, text))

    return diff(loaded(old), loaded(new))


def test_diff(tmp_path: Path) -> None:
    assert changed(tmp_path, GOOD, GOOD + "# a comment\n") == ()
    new = (
        GOOD.replace('cap = "6GiB"', 'cap = "7GiB"')
        .replace('idle_unload = "1h30m"', 'idle_unload = "90m"')  # the same time
        .replace("slots = 3", "slots = 4")
        .replace('memory_cap = "2GiB"', "")
        .replace('[models."org:model@1.5"]', "[models.other]")
        .replace('[clients."@media"]', "[clients.jellyfin]")
    )
    assert changed(tmp_path, GOOD, new) == (
        Change("changed", "memory", ("cap",)),
        Change("removed", "models.org:model@1.5"),
        Change("added", "models.other"),
        Change("changed", "models.smollm2", ("slots", "memory_cap")),
        Change("removed", "clients.@media"),
        Change("added", "clients.jellyfin"),
    )
    assert str(Change("changed", "memory", ("cap",))) == "memory changed (cap)"
