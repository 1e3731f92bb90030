"""What blocks are worth where a model runs: decided, shown, and kept with what is learned there."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from homespecd.governor.ledger import Environment, Ledger
from homespecd.worker.checks import Exactness
from homespecd.worker.governing import make_governor
from homespecd.worker.machine import describe_machine
from homespecd.worker.notices import of_drafts, of_placement
from homespecd.worker.verdict import guarantee, place, verdict
from tests.engines import loaded_model
from tests.fakes import FakeClock, FakeModel, HistoryLogits

BASE = HistoryLogits(16, seed=3)
SPEC = FakeModel(BASE).spec
ON_GPU = replace(SPEC, provider="openvino", device="GPU.1")


@pytest.mark.parametrize(
    ("causal", "difference", "invariant", "said"),
    [
        (True, 0.0, True, "bit_exact"),
        # Sixteen rows that happen to agree promise nothing.
        (True, 0.0, False, "near_ties"),
        (True, 1e-6, True, "near_ties"),
        (False, 12.0, False, "not_block_causal"),
    ],
)
def test_what_is_guaranteed(causal: bool, difference: float, invariant: bool, said: str) -> None:
    spec = replace(SPEC, width_invariant=invariant)
    assert guarantee(Exactness(causal, difference, 0, 16), spec) == said


def test_the_verdict_is_kept_with_the_costs_of_its_place(tmp_path: Path) -> None:
    """On another device the same files have another verdict and other costs; drafts likewise."""
    for spec in (replace(SPEC, provider="cpu", device="CPU"), ON_GPU):
        target, draft = FakeModel(BASE, clock=FakeClock()), FakeModel(BASE)
        target.spec = draft.spec = spec
        loaded = loaded_model(target, {"draft": draft}, state=tmp_path)
        loaded = replace(loaded, exactness=Exactness(True, 0.5, 1, 16))
        make_governor(loaded, clock_s=FakeClock()).close(0.0)
    kept = {}
    for name in ("cpu", "openvino GPU.1"):
        environment = Environment(provider=name, threads=1, machine=describe_machine())
        record = Ledger(tmp_path, target="sha256:toy", environment=environment).load()
        assert record is not None
        assert record["verdict"]["place"] == name
        assert record["verdict"]["guarantee"] == "near_ties"
        kept[name] = list(record["drafters"])
    assert kept == {"cpu": ["draft"], "openvino GPU.1": ["draft@openvino GPU.1"]}


def test_places_and_what_was_not_measured() -> None:
    assert place(replace(SPEC, provider="cpu", device="CPU")) == "cpu"
    assert place(ON_GPU) == "openvino GPU.1"
    assert verdict(None, SPEC) is None


def test_the_log_says_where_a_model_runs_that_does_not_run_where_it_was_asked_to() -> None:
    asked = {"requested_provider": "cuda", "provider_reason": "no driver"}
    on_cpu = replace(SPEC, provider="cpu", device="CPU", **asked)  # type: ignore[arg-type]
    assert of_placement(on_cpu) == "asked for cuda and runs on cpu (CPU): no driver"
    for fine in (replace(ON_GPU, requested_provider="auto"), SPEC):
        assert of_placement(fine) == ""
    # Under "auto" a provider that is there and was not used is worth a line, and so is a part that
    # runs elsewhere.
    passed_over = replace(on_cpu, requested_provider="auto")
    assert of_placement(passed_over) == "asked for auto and runs on cpu (CPU): no driver"
    draft = FakeModel(BASE)
    draft.spec = on_cpu
    drafts = loaded_model(FakeModel(BASE), {"small": draft, "ngram": None}).drafts
    assert list(of_drafts(drafts)) == [
        "drafter small asked for cuda and runs on cpu (CPU): no driver"
    ]
