"""The log in systemd's journal and on standard error, and the line that systemctl shows."""

from __future__ import annotations

import logging
import os
import socket
import struct
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from homespecd.api.service import Peer
from homespecd.daemon import journal
from homespecd.daemon.answers import log_request
from homespecd.daemon.journal import JournalHandler, event, log_handler
from homespecd.daemon.status_line import status_line
from homespecd.daemon.views import State


def parsed(datagram: bytes) -> dict[str, str]:
    """A datagram of the native protocol, read as systemd's documentation says."""
    fields, rest = {}, datagram
    while rest:
        line, _, rest = rest.partition(b"\n")
        key, equals, value = line.partition(b"=")
        if not equals:
            (length,) = struct.unpack_from("<Q", rest)
            value, rest = rest[8 : 8 + length], rest[8 + length + 1 :]
        fields[key.decode()] = value.decode()
    return fields


class Journal:
    """The journal's end of the socket, and a logger that writes to it."""

    def __init__(self, folder: Path) -> None:
        self.socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self.socket.bind(str(folder / "journal"))
        self.socket.settimeout(60)
        self.handler = JournalHandler(folder / "journal")
        self.log = logging.Logger("homespecd.test")
        self.log.addHandler(self.handler)

    def entry(self) -> dict[str, str]:
        return parsed(self.socket.recv(1 << 18))


@pytest.fixture
def entries(tmp_path: Path) -> Any:
    made = Journal(tmp_path)
    yield made
    made.handler.close()
    made.socket.close()


@pytest.mark.parametrize(
    ("level", "priority"), [("debug", 7), ("info", 6), ("warning", 4), ("error", 3)]
)
def test_levels(entries: Journal, level: str, priority: int) -> None:
    getattr(entries.log, level)("model %s", "m")
    entry = entries.entry()
    assert entry["MESSAGE"] == "model m"
    assert entry["PRIORITY"] == str(priority)
    assert entry["SYSLOG_IDENTIFIER"] == "homespecd"
    assert entry["CODE_FUNC"] == "test_levels"


def test_fields_of_an_event(entries: Journal) -> None:
    entries.log.info("x", extra=event("request", model="m", peer_uid=33, peer_pid=None))
    entry = entries.entry()
    assert {key: entry[key] for key in entry if key.startswith("HOMESPECD_")} == {
        "HOMESPECD_EVENT": "request",
        "HOMESPECD_MODEL": "m",
        "HOMESPECD_PEER_UID": "33",
    }


def test_what_somebody_wrote_cannot_make_fields_or_colours(entries: Journal) -> None:
    entries.log.warning("evil\nPRIORITY=0\n\x1b[31mred", extra=event("e", model="a\nB=1"))
    entry = entries.entry()
    assert entry["MESSAGE"] == "evil PRIORITY=0  [31mred"
    assert entry["PRIORITY"] == "4"
    assert entry["HOMESPECD_MODEL"] == "a\nB=1"
    assert "B" not in entry


def test_a_trace_is_one_entry(entries: Journal) -> None:
    try:
        raise ValueError("bad")
    except ValueError:
        entries.log.exception("it failed")
    message = entries.entry()["MESSAGE"]
    assert message.startswith("it failed\nTraceback")
    assert message.endswith("ValueError: bad")


def test_a_huge_message_is_cut_and_not_lost(entries: Journal) -> None:
    entries.log.error("x" * 1_000_000)
    assert 10_000 < len(entries.entry()["MESSAGE"]) < 200_000


def test_without_the_journal_the_line_goes_to_standard_error(
    entries: Journal, capsys: pytest.CaptureFixture[str]
) -> None:
    entries.socket.close()
    entries.log.error("still here")
    assert capsys.readouterr().err == "still here\n"


def test_the_journal_is_used_only_where_standard_error_goes_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(journal, "SOCKET", tmp_path)
    with (tmp_path / "stderr").open("w") as stream:
        found = os.fstat(stream.fileno())
        stream_id = f"{found.st_dev}:{found.st_ino}"
        chosen = [
            log_handler(environment, stderr_fd=stream.fileno())
            for environment in ({"JOURNAL_STREAM": stream_id}, {"JOURNAL_STREAM": "1:2"}, {})
        ]
    assert [isinstance(one, JournalHandler) for one in chosen] == [True, False, False]
    chosen[0].close()


def test_a_request_is_one_line_and_the_same_as_fields(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO):
        log_request(Peer(uid=33, pid=7), id="ab12", model="m", tokens=3, ms=12, end="stop")
    [record] = caplog.records
    assert record.getMessage() == "request model=m uid=33 id=ab12 tokens=3 ms=12 end=stop"
    assert record.__dict__["journal_fields"] == {
        "EVENT": "request",
        "MODEL": "m",
        "PEER_UID": 33,
        "PEER_PID": 7,
        "REQUEST_ID": "ab12",
        "TOKENS": 3,
        "MS": 12,
        "END": "stop",
    }


def model(state: State, **speculation: Any) -> Any:
    """As much of a `daemon.models.Model` as the line looks at."""
    handle = SimpleNamespace(snapshot={"speculation": speculation}, info={})
    return SimpleNamespace(
        name="m", state=state, progress="weights", handle=handle if speculation else None
    )


def test_the_line_of_systemctl() -> None:
    fast = {"mode": "mixed", "reason": "speculating", "drafters": [{"speedup": 1.94}, {}]}
    assert status_line([]) == "no models"
    assert (
        status_line(
            [
                model(State.READY, **fast),
                model(State.READY, mode="plain", reason="slower_than_plain", drafters=[]),
                model(State.LOADING),
                model(State.FAILED),
                model(State.UNLOADED),
            ]
        )
        == "m ready, 1.9× plain; m ready, plain (slower than plain); m loading (weights); "
        "m failed; 1 unloaded"
    )
