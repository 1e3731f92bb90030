"""The ledger: round trips, damage, bounds, a process that dies."""

from __future__ import annotations

import multiprocessing
import os
import signal
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from homespecd.governor.ledger import Environment, Ledger

HERE = Environment(provider="cpu", threads=2, machine="x86-64 avx512-vnni")


def ledger(folder: Path, environment: Environment = HERE, target: str = "sha256:t") -> Ledger:
    return Ledger(folder, target=target, environment=environment)


def record(ms: float = 7.25, drafter: str = "sha256:d") -> dict:
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
    max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
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


def _save_for_ever(folder: str, ready: object) -> None:
    number = 0
    while True:
        ledger(Path(folder)).save(record(float(number)), now_s=0.0)
        number += 1
        if number == 3:
            ready.set()  # type: ignore[attr-defined]


def test_it_survives_being_killed(tmp_path: Path) -> None:
    """kill -9 in the middle of saving: what is there is whole."""
    context = multiprocessing.get_context("spawn")
    for _ in range(2):
        ready = context.Event()
        process = context.Process(target=_save_for_ever, args=(str(tmp_path), ready))
        process.start()
        assert ready.wait(30)
        assert process.pid is not None
        os.kill(process.pid, signal.SIGKILL)
        process.join()

        loaded = ledger(tmp_path).load()

        assert loaded is not None
        assert loaded["drafters"] == {"sha256:d": {"rounds": 3}}
        assert list(tmp_path.iterdir()) == [ledger(tmp_path).path]
