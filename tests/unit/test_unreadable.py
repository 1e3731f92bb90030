"""A draft whose files the system does not let a worker read (for models: `tests/system`)."""

from __future__ import annotations

from pathlib import Path
from typing import cast

import pytest

from homespecd.bundle.tokenizer import Tokenizer
from homespecd.governor.protocol import Reason
from homespecd.worker.load import open_draft
from homespecd.worker.messages import DrafterSettings, WorkerSettings


def test_a_draft_is_given_up_and_its_target_is_not(monkeypatch: pytest.MonkeyPatch) -> None:
    def load(path: Path) -> Tokenizer:
        # Whoever runs the tests may read everything, so this is not left to the kernel.
        raise PermissionError(13, "Permission denied", f"{path}/tokenizer.json")

    monkeypatch.setattr(Tokenizer, "load", load)
    draft = open_draft(
        DrafterSettings("d", "model", path="/m"),
        WorkerSettings("t", "/t"),
        cast("Tokenizer", None),
    )
    assert draft.problem is Reason.DRAFT_FAILED
    assert draft.detail == (
        "/m/tokenizer.json: cannot be read: Permission denied (the user that homespecd runs as "
        "must be able to read it and to enter its folders)"
    )
