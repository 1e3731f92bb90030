"""The daemon's small parts: settings, estimates, keys, clients, notifications, framing."""

from __future__ import annotations

import grp
import logging
import os
import pwd
import socket
from pathlib import Path

import pytest

from homespecd.api.service import Delta, Done, Peer
from homespecd.config.load import load
from homespecd.config.schema import ClientConfig, ModelConfig, ServerConfig
from homespecd.daemon.answers import RunningAnswer
from homespecd.daemon.clients import Client, Clients
from homespecd.daemon.estimate import Estimate
from homespecd.daemon.journal import LineFormatter
from homespecd.daemon.keys import read_keys
from homespecd.daemon.memory import worker_bytes
from homespecd.daemon.models import Model
from homespecd.daemon.notify import Notifier
from homespecd.daemon.settings import worker_settings
from homespecd.daemon.sockets import SocketError, bind_unix, inherited_sockets
from homespecd.daemon.streams import RequestStream
from homespecd.errors import ConfigError, RequestError
from homespecd.worker.messages import DrafterSettings, WorkerSettings

CONFIG = """
[paths]
models = "/models"
[speculation]
max_draft_tokens = 9
[models.m]
path = "a"
context = 100
drafters = ["n", "d"]
[drafters.n]
kind = "ngram"
[drafters.d]
kind = "model"
path = "b"
max_draft_tokens = 3
"""


def test_settings_of_a_worker_come_from_the_configuration(tmp_path: Path) -> None:
    file = tmp_path / "c.toml"
    file.write_text(CONFIG)
    settings = worker_settings(load(file), "m")
    assert (settings.path, settings.context, settings.slots) == ("/models/a", 100, 2)
    assert settings.speculation.max_draft_tokens == 9
    assert settings.drafters == (
        DrafterSettings(name="n", kind="ngram"),
        DrafterSettings(name="d", kind="model", path="/models/b", max_draft_tokens=3),
    )
    assert WorkerSettings.from_frame(settings.to_frame()) == settings
    assert worker_settings(load(file), "m") == settings


def test_memory_of_a_process() -> None:
    own = worker_bytes(os.getpid())
    assert own is not None
    assert own > 2**20
    assert worker_bytes(2**22 + 1) is None  # past the largest pid


# -- keys --------------------------------------------------------------------------------------


def keys_of(file: Path | None, *listen: str) -> tuple[str, ...]:
    path = "" if file is None else str(file)
    return read_keys(ServerConfig.model_validate({"listen": list(listen), "api_keys_file": path}))


def test_keys_are_lines_without_comments(tmp_path: Path) -> None:
    file = tmp_path / "keys"
    file.write_text("# mine\n\n  one \ntwo#2\n")
    file.chmod(0o640)
    assert keys_of(file) == ("one", "two#2")
    assert keys_of(None, "127.0.0.1:1", "[::1]:1", "localhost:1") == ()


@pytest.mark.parametrize(("text", "mode"), [("# none\n", 0o600), ("k\n", 0o644), ("k\n", 0o660)])
def test_a_keys_file_that_is_no_good_is_refused(tmp_path: Path, text: str, mode: int) -> None:
    file = tmp_path / "keys"
    file.write_text(text)
    file.chmod(mode)
    with pytest.raises(ConfigError, match=str(file)):
        keys_of(file)


def test_other_machines_need_keys(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="not loopback"):
        keys_of(None, "127.0.0.1:1", "192.168.1.2:1")
    with pytest.raises(ConfigError, match="cannot read"):
        keys_of(tmp_path / "none")


# -- clients -----------------------------------------------------------------------------------

ME = Peer(uid=os.getuid(), gid=os.getgid(), pid=1, comm="test")
MY_NAME = pwd.getpwuid(os.getuid()).pw_name
MY_GROUP = grp.getgrgid(os.getgid()).gr_name
NO_MODELS = ClientConfig(allow_models=())


def test_without_a_quota_in_the_configuration_there_is_none() -> None:
    clients = Clients({"default": ClientConfig()})
    for _ in range(100):
        clients.admit(ME, "m")
    [account] = clients.snapshot()
    assert (account["active"], account["requests"], account["comm"]) == (100, 100, "test")


def test_a_quota_counts_what_is_active() -> None:
    clients = Clients({"default": ClientConfig(max_active=1)})
    account = clients.admit(ME, "m")
    with pytest.raises(RequestError) as caught:
        clients.admit(ME, "m")
    assert caught.value.status == 429
    account.active -= 1
    assert clients.admit(ME, "m") is account


@pytest.mark.parametrize("section", [MY_NAME, f"@{MY_GROUP}", "default"])
def test_a_section_is_found_by_user_group_or_default(section: str) -> None:
    sections = {"default": ClientConfig(), "nobody-else": ClientConfig(), section: NO_MODELS}
    with pytest.raises(RequestError) as caught:
        Clients(sections).admit(ME, "m")
    assert caught.value.status == 403


def test_the_user_goes_before_its_groups() -> None:
    sections = {f"@{MY_GROUP}": NO_MODELS, MY_NAME: ClientConfig(), "default": NO_MODELS}
    clients = Clients(sections)
    clients.admit(ME, "m")
    clients.reconfigure({"default": NO_MODELS})
    with pytest.raises(RequestError):
        clients.admit(ME, "m")


def test_a_uid_without_a_name_gets_the_default() -> None:
    clients = Clients({"default": NO_MODELS, "somebody": ClientConfig()})
    with pytest.raises(RequestError):
        clients.admit(Peer(uid=2**31 - 7, gid=2**31 - 7), "m")


# -- systemd and sockets -----------------------------------------------------------------------


def test_notifications_go_to_the_abstract_socket_too() -> None:
    name = f"homespecd-test-{os.getpid()}"
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as told:
        told.bind("\0" + name)
        notifier = Notifier({"NOTIFY_SOCKET": "@" + name, "WATCHDOG_USEC": "3000000"})
        notifier.send("READY=1", "STATUS=a\nREADY=0")
        assert told.recv(100) == b"READY=1\nSTATUS=a READY=0"
    assert notifier.watchdog_s == 1.5


def test_nobody_to_notify_is_no_error(caplog: pytest.LogCaptureFixture) -> None:
    Notifier({}).send("READY=1")
    assert caplog.records == []
    Notifier({"NOTIFY_SOCKET": "/nowhere/at/all"}).send("READY=1")
    assert "cannot notify" in caplog.text


def test_sockets_for_another_process_are_not_taken() -> None:
    environment = {"LISTEN_FDS": "1", "LISTEN_PID": "1", "OTHER": "x"}
    assert inherited_sockets(environment) == []
    assert environment == {"OTHER": "x"}


def test_a_path_too_long_for_a_socket_is_named(tmp_path: Path) -> None:
    path = tmp_path / ("x" * 120)
    with pytest.raises(SocketError, match="longer than"):
        bind_unix(path, mode=0o600, group="")


def test_a_socket_is_removed_only_by_its_owner(tmp_path: Path) -> None:
    path = tmp_path / "s"
    first = bind_unix(path, mode=0o600, group="")
    first.sock.close()
    second = bind_unix(path, mode=0o666, group=MY_GROUP)
    first.remove()
    assert path.is_socket()
    second.remove()
    assert not path.exists()
    second.remove()
    second.sock.close()


def test_log_lines_are_plain_and_single() -> None:
    record = logging.LogRecord("n", logging.INFO, "f", 1, "a\nb\x1b[31m%s", ("\r",), None)
    line = LineFormatter("%(levelname)s %(message)s").format(record)
    assert line == "INFO a b [31m "


# -- the line of a request -----------------------------------------------------------------------


async def test_a_cut_answer_is_logged_with_what_is_known_of_it(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.INFO)
    model = Model(
        "m",
        ModelConfig.model_validate({"path": "m"}),
        WorkerSettings("m", "m"),
        0,
        Estimate(1, 0, 1),
    )
    for end, known in (
        (RequestError("stopping", status=503, code="shutting_down"), ("end=shutting_down",)),
        (Done(["stop"], USAGE, REPORT), ("prompt_tokens=9", "mode=plain", "end=stop")),
    ):
        stream = RequestStream(cancel=lambda: None)
        answer = RunningAnswer(
            stream, model=model, client=Client(ME), spend=lambda _n: None, on_end=lambda: None
        )
        stream.push(Delta("a", 2, 0))
        await answer.events()
        stream.push(end)
        await answer.events()
        answer.close()
        line = caplog.messages[-1]
        for part in ("request model=m", "tokens=2", " ms=", "first_ms=", *known):
            assert part in line, line
        assert ("prompt_tokens" in line) == ("mode=" in line) == isinstance(end, Done)


USAGE = {"prompt_tokens": 9, "completion_tokens": 2, "cached_tokens": 0}
REPORT = {
    "mode": "plain",
    "ttft_ms": 1.0,
    "decode_tok_s": None,
    "rounds": 2,
    "draft_tokens_proposed": 0,
    "draft_tokens_accepted": 0,
}
