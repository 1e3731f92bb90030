"""The ledger: round trips, damage, bounds, what cannot be read or written for a while."""

from __future__ import annotations

import errno
import hashlib
import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from homespecd.governor.ledger import _VERSION, Environment, Ledger
from homespecd.governor.measured import DrafterSpec, MeasuredGovernor

HERE = Environment(provider="cpu", threads=2, machine="x86-64 avx512-vnni")


def ledger(folder: Path, environment: Environment = HERE, target: str = "sha256:t") -> Ledger:
    return Ledger(folder, target=target, environment=environment)


def record(ms: float = 7.25, drafter: str = "sha256:d") -> dict[str, Any]:
    return {"steps": {"1": ms}, "drafters": {drafter: {"rounds": 3}}}


def test_what_was_saved_is_loaded(tmp_path: Path) -> None:
    assert ledger(tmp_path / "state").load() is None

    assert ledger(tmp_path / "state").save(record(), now_s=0.0)

    assert ledger(tmp_path / "state").load() == record()


def test_environments_and_targets_do_not_mix(tmp_path: Path) -> None:
    other = Environment(provider="cpu", threads=4, machine=HERE.machine)
    ledger(tmp_path).save(record(1.0), now_s=0.0)
    ledger(tmp_path, other).save(record(2.0), now_s=0.0)

    assert ledger(tmp_path).load() == record(1.0)
    assert ledger(tmp_path, other).load() == record(2.0)
    assert ledger(tmp_path, target="sha256:u").load() is None


def test_a_draft_that_is_away_is_remembered(tmp_path: Path) -> None:
    ledger(tmp_path).save(record(drafter="a"), now_s=0.0)
    ledger(tmp_path).save(record(drafter="b"), now_s=0.0)

    loaded = ledger(tmp_path).load()

    assert loaded is not None
    assert set(loaded["drafters"]) == {"a", "b"}


def test_it_stays_small(tmp_path: Path) -> None:
    for number in range(40):
        environment = Environment(provider="cpu", threads=number, machine="m")
        ledger(tmp_path, environment).save(record(), now_s=0.0)
        ledger(tmp_path).save(record(drafter=f"draft-{number}"), now_s=0.0)

    loaded = ledger(tmp_path).load()

    assert loaded is not None
    assert len(loaded["drafters"]) == 16
    assert "draft-39" in loaded["drafters"]
    assert ledger(tmp_path).path.stat().st_size < 10_000
    assert list(tmp_path.iterdir()) == [ledger(tmp_path).path]


@settings(
    max_examples=150,
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
@given(data=st.data())
def test_damage_at_any_byte_is_noticed_and_set_aside(tmp_path: Path, data: st.DataObject) -> None:
    one = ledger(tmp_path)
    one.save(record(), now_s=0.0)
    good = one.path.read_bytes()
    at = data.draw(st.integers(0, len(good) - 1))
    kind = data.draw(st.sampled_from(["flip", "cut", "insert"]))
    if kind == "flip":
        bad = good[:at] + bytes([good[at] ^ data.draw(st.integers(1, 255))]) + good[at + 1 :]
    elif kind == "cut":
        bad = good[:at]
    else:
        bad = good[:at] + data.draw(st.binary(min_size=1, max_size=9)) + good[at:]
    one.path.write_bytes(bad)

    assert one.load() is None
    assert not one.path.exists()
    assert one.path.with_name(f"{one.path.name}.corrupt").read_bytes() == bad
    assert one.save(record(), now_s=0.0)
    assert one.load() == record()


def test_damage_is_one_log_line(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    one = ledger(tmp_path)
    one.path.write_text("{}")

    assert one.load() is None
    assert one.load() is None

    assert [entry.levelname for entry in caplog.records] == ["WARNING"]
    assert str(one.path) in caplog.text


def test_a_folder_that_cannot_be_written_is_one_log_line(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "file").write_text("")
    one = ledger(tmp_path / "file")

    assert not one.save(record(), now_s=0.0)
    assert not one.save(record(), now_s=0.0)

    assert len([entry for entry in caplog.records if "cannot be written" in entry.message]) == 1


def test_saving_is_due_from_time_to_time(tmp_path: Path) -> None:
    one = ledger(tmp_path)
    assert one.due(100.0)
    one.save(record(), now_s=100.0)
    assert not one.due(101.0)
    assert one.due(116.0)


@pytest.mark.parametrize("number", [errno.EMFILE, errno.EIO, errno.EACCES])
def test_what_cannot_be_read_for_a_while_is_kept(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    number: int,
) -> None:
    """Not set aside, not written over, and one line in the log, however often it is tried."""
    one = ledger(tmp_path)
    one.save(record(1.0), now_s=0.0)
    good = one.path.read_bytes()

    def fails(_: Path) -> bytes:
        raise OSError(number, os.strerror(number))

    with monkeypatch.context() as patched:
        patched.setattr(Path, "read_bytes", fails)
        assert one.load() is None
        assert not one.save(record(2.0), now_s=0.0)
        assert not one.save(record(3.0), now_s=0.0)

    assert one.path.read_bytes() == good
    assert list(tmp_path.iterdir()) == [one.path]
    assert [entry.levelname for entry in caplog.records] == ["WARNING"]
    assert os.strerror(number) in caplog.text
    assert one.load() == record(1.0)
    assert one.save(record(2.0), now_s=0.0)
    assert one.load() == record(2.0)


def as_another_version(version: int) -> Callable[[bytes], bytes]:
    def written(current: bytes) -> bytes:
        body = current.partition(b"\n")[2]
        covered = b"" if version == 1 else f"{version}\n".encode()
        digest = hashlib.sha256(covered + body).hexdigest()
        return f"homespecd-ledger {version} {digest}\n".encode() + body

    return written


def layout(record: Any) -> Any:
    """Which keys a record has; what is learned is left out."""
    if not isinstance(record, dict):
        return None
    return {key: layout(part) for key, part in record.items() if not key.isdecimal()}


def test_a_record_of_another_layout_has_another_version() -> None:
    """Who has to change this raises the version: an earlier file is then replaced as a whole."""
    curve: dict[str, Any] = {"pace": None, "noise": None}
    learned: dict[str, Any] = {"cells": {}, "before": None, "samples": None}
    kinds: dict[str, Any] = {"all": None, "kinds": {}}
    drafter: dict[str, Any] = {
        "acceptance": {"base": None, "runs": None, "folded": None, "counts": None},
        "cost": {**curve, "points": {}, "row_ms": None},
        "switch": dict.fromkeys(("on", "flips", "return_rounds", "since_flip", "evidence")),
        "fares": kinds,
        "measured": learned,
        **dict.fromkeys(("probe_gap", "advance", "credit", "rounds", "row_ms", "offered", "use")),
    }
    governor = MeasuredGovernor([DrafterSpec("ngram", 8)], step_ms={1: 5.0, 2: 6.0})

    assert (_VERSION, layout(governor.to_record())) == (
        3,
        {
            "steps": {**curve, "wide": None, "rows": {}, "contexts": {}, "cells": {}, "lanes": {}},
            "answers": kinds,
            "plain": learned,
            "drafters": {"ngram": drafter},
            **dict.fromkeys(("overhead", "slack", "plain_gap")),
        },
    )


@pytest.mark.parametrize(
    ("version", "said"),
    [(1, "an earlier version"), (2, "an earlier version"), (_VERSION + 1, "a later version")],
)
def test_a_file_of_another_version_is_replaced_and_no_damage(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, version: int, said: str
) -> None:
    one = ledger(tmp_path)
    one.save(record(1.0), now_s=0.0)
    one.path.write_bytes(as_another_version(version)(one.path.read_bytes()))
    aside = one.path.with_name(f"{one.path.name}.corrupt")
    aside.write_text("what was damaged once")

    assert one.load() is None
    assert one.path.exists()
    assert one.save(record(2.0), now_s=0.0)

    assert one.load() == record(2.0)
    assert aside.read_text() == "what was damaged once"
    assert [entry.levelname for entry in caplog.records] == ["WARNING"]
    assert said in caplog.text


@pytest.mark.parametrize("bad", [float("inf"), float("nan"), object()])
def test_a_record_that_cannot_be_written_leaves_the_old_one(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, bad: object
) -> None:
    one = ledger(tmp_path)
    one.save(record(1.0), now_s=0.0)

    assert not one.save({"steps": bad, "drafters": {}}, now_s=0.0)
    assert not one.save({"steps": bad, "drafters": {}}, now_s=0.0)

    assert one.load() == record(1.0)
    assert len(caplog.records) == 1


def test_it_never_grows_past_what_is_read_again(tmp_path: Path) -> None:
    """Whole environments go then, the one that was not used for longest first."""
    for number in range(3):
        environment = Environment(provider="cpu", threads=number, machine="m")
        large = record() | {"answers": "x" * 1_500_000}
        assert ledger(tmp_path, environment).save(large, now_s=0.0)

    kept = [
        ledger(tmp_path, Environment(provider="cpu", threads=number, machine="m")).load()
        for number in range(3)
    ]
    assert [one is not None for one in kept] == [False, True, True]


def test_only_what_nobody_writes_any_more_is_swept(tmp_path: Path) -> None:
    one = ledger(tmp_path)
    gone = 4_194_305  # more than a process id can be
    mine, dead, old, nobodys = (
        tmp_path / f".{one.path.name}.{rest}"
        for rest in (f"{os.getpid()}.a", f"{gone}.b", f"{os.getpid()}.c", "abcdefgh")
    )
    for left in (mine, dead, old, nobodys):
        left.write_text("half")
    two_hours_ago = time.time() - 7200
    os.utime(old, (two_hours_ago, two_hours_ago))

    one.load()

    assert sorted(tmp_path.iterdir()) == sorted([mine, nobodys])
