"""Files whose JSON is nested without end, or holds numbers without end: never a traceback."""

from __future__ import annotations

import json
import logging
from pathlib import Path

import pytest

from homespecd.bundle.layout import declared_context
from homespecd.bundle.manifest import MANIFEST_FILE, read_manifest
from homespecd.daemon.estimate import Estimate, estimate
from homespecd.daemon.learned import LearnedMemory
from homespecd.errors import BundleError
from homespecd.governor.ledger import _NAME, _VERSION, Environment, Ledger, _checksum
from homespecd.governor.measured import DrafterSpec, MeasuredGovernor
from homespecd.worker.messages import WorkerSettings

DEEP = "[" * 100_000
HUGE = 10**400


def test_what_was_learned_of_memory_is_forgotten(tmp_path: Path) -> None:
    file = tmp_path / "memory.json"
    known = {"target_bytes": 5, "draft_bytes": 0, "floor_bytes": 1}
    for text in (DEEP, json.dumps({"k": {**known, "target_bytes": 1 << 60}}),
                 json.dumps({"k": {**known, "draft_bytes": HUGE}}),
                 json.dumps({"k": {**known, "floor_bytes": True}})):  # fmt: skip
        file.write_text(text)
        assert LearnedMemory(tmp_path).get("k") is None
    file.write_text(json.dumps({"k": known}))
    assert LearnedMemory(tmp_path).get("k") == Estimate(5, 0, 1)


@pytest.mark.parametrize("name", [MANIFEST_FILE, "config.json"])
def test_a_model_folder_costs_an_estimate_at_most(tmp_path: Path, name: str) -> None:
    layers = {"num_attention_heads": 2, "hidden_size": 8, "num_hidden_layers": HUGE}
    for text in (DEEP, json.dumps(layers), json.dumps({**layers, "num_hidden_layers": 1e308}),
                 json.dumps({**layers, "num_hidden_layers": -3})):  # fmt: skip
        (tmp_path / name).write_text(text)
        found = estimate(WorkerSettings(name="m", path=str(tmp_path)))
        assert 0 <= found.floor_bytes <= found.target_bytes < 1 << 50
    (tmp_path / name).write_text(DEEP)
    with pytest.raises(BundleError, match="JSON"):
        declared_context(tmp_path)
    if name == MANIFEST_FILE:
        with pytest.raises(BundleError, match="JSON"):
            read_manifest(tmp_path)


def test_a_ledger_is_set_aside(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    ledger = Ledger(tmp_path, target="t", environment=Environment("cpu", 1, "machine"))
    ledger.path.write_bytes(_checked(DEEP))
    with caplog.at_level(logging.WARNING):
        assert ledger.load() is None
    assert "unusable, measuring again" in caplog.text
    assert ledger.save({}, now_s=1.0)
    assert ledger.load() == {"drafters": {}}


@pytest.mark.parametrize(
    ("place", "value"),
    [(("steps", "rows"), HUGE), (("drafters", "d", "measured", "before"), [1.0, 1.0, 0.0, 0.0])],
    ids=str,
)
def test_numbers_that_cannot_be_are_measured_again(
    place: tuple[str, ...], value: object, caplog: pytest.LogCaptureFixture
) -> None:
    """In a file whose checksum is right, so that only the governor can see it."""
    specs = [DrafterSpec(name="d", max_k=4, key="d")]
    record = MeasuredGovernor(specs, step_ms={1: 10.0, 2: 11.0, 5: 12.0}).to_record()
    at = record = json.loads(json.dumps(record))
    for key in place[:-1]:
        at = at[key]
    if place[-1] == "rows":
        at["rows"] = {rows: [value, *rest[1:]] for rows, rest in at["rows"].items()}
    else:
        at[place[-1]] = value
    with caplog.at_level(logging.WARNING):
        governor = MeasuredGovernor(specs, remembered=record)
    assert "cannot be used" in caplog.text
    assert governor.speedup("d").measured is None
    assert governor.standing().step_ms == {}


def _checked(body: str) -> bytes:
    """A ledger's bytes whose checksum is right."""
    return f"{_NAME} {_VERSION} {_checksum(_VERSION, body.encode())}\n{body}".encode()
