"""Where models run, in both views of the status."""

from __future__ import annotations

import copy
import io
from typing import Any

import pytest
from rich.console import Console

from homespecd.cli.live_view import View, screen
from homespecd.cli.status_view import elsewhere, exactness, frame
from tests.unit.cli_service import SNAPSHOT

CUDA = "CUDAExecutionProvider did not start: no driver"


def placement(requested: str, provider: str, device: str, reason: str = "") -> dict[str, Any]:
    return {"requested": requested, "provider": provider, "device": device, "reason": reason}


def snapshot(target: dict[str, Any], draft: dict[str, Any] | None = None) -> dict[str, Any]:
    whole = copy.deepcopy(SNAPSHOT)
    model = whole["models"][0]
    model |= {
        "provider": target["provider"],
        "requested_provider": target["requested"],
        "placement": target,
    }
    model["speculation"]["drafters"][0] |= {"kind": "model", "placement": draft}
    return whole


def texts(whole: dict[str, Any]) -> tuple[str, str]:
    """What `status --once` shows, and the live status with the model pinned."""
    console = Console(width=200, record=True, file=io.StringIO())
    console.print(frame(whole))
    view = View(selected=whole["models"][0]["name"], pinned=True)
    return console.export_text(), "\n".join(
        line.plain for line in screen(whole, view, width=200, height=40)
    )


def test_a_model_that_runs_elsewhere_says_so_with_the_reason() -> None:
    whole = snapshot(placement("cuda", "cpu", "CPU", CUDA))
    for text in texts(whole):
        assert f"asked for cuda, runs on cpu (CPU): {CUDA}" in text


def test_so_does_a_drafter_by_name() -> None:
    whole = snapshot(
        placement("cuda", "cuda", "GPU 0"), placement("openvino", "cpu", "CPU", "not there")
    )
    name = whole["models"][0]["speculation"]["drafters"][0]["name"]
    once, live = texts(whole)
    for text in (once, live):
        assert f"{name} asked for openvino, runs on cpu (CPU): not there" in text
    assert "cuda GPU 0" in live


def test_nothing_is_said_where_all_is_as_asked() -> None:
    for target in (placement("auto", "cpu", "CPU"), placement("cuda", "cuda", "GPU 0")):
        for text in texts(snapshot(target, placement("cpu", "cpu", "CPU"))):
            assert "runs on" not in text
    assert elsewhere({"name": "not loaded yet"}) == ""


@pytest.mark.parametrize(
    ("guarantee", "shown"),
    [
        ("bit_exact", "blocks exact bit for bit"),
        ("near_ties", "near-ties in 1 of 16 rows"),
        ("not_block_causal", "blocks change what comes before them"),
        (None, ""),
    ],
)
def test_what_blocks_are_worth(guarantee: str | None, shown: str) -> None:
    whole = snapshot(placement("auto", "cpu", "CPU"))
    model = whole["models"][0]
    model["speculation"]["exactness"] = guarantee and {
        "guarantee": guarantee,
        "near_tie_flips": 1,
        "rows": 16,
    }
    assert exactness(model) == shown
    assert shown in texts(whole)[1]
