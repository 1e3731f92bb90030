"""The real model on an NVIDIA card, beside onnxruntime's own CPU provider.

Not part of the suite, for it needs a card and another build of onnxruntime: `bench/gpu.sh` makes an
environment with it and runs this there.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from homespecd.daemon.devices import DeviceMemory
from homespecd.drafters.model import ModelDrafter
from homespecd.drafters.ngram import NgramDrafter
from homespecd.runtime.step import Model, Rows, whole
from homespecd.worker.checks import compare
from tests.conversations import Table
from tests.providers.on_openvino import (
    BLOCK_NEAR_TIES,
    NEAR_TIES,
    PRECISIONS,
    TOKENS,
    differing,
    opened,
    prompts,
    texts,
)
from tests.smollm2 import imported

__all__ = ["prompts"]  # the fixture

CARD = "cuda"


@pytest.fixture(scope="module", params=PRECISIONS)
def precision(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture(scope="module")
def on_card(smollm2_gguf: Path, precision: str) -> Iterator[Model]:
    with opened(imported(smollm2_gguf, precision), CARD) as model:
        yield model


@pytest.fixture(scope="module")
def on_cpu(smollm2_gguf: Path, precision: str) -> Iterator[Model]:
    with opened(imported(smollm2_gguf, precision), "cpu") as model:
        yield model


@pytest.fixture(scope="module")
def plain(on_card: Model, prompts: list[list[int]]) -> list[tuple[int, ...]]:
    """What the card says to each prompt, one row per step."""
    return texts(on_card, prompts)


def test_it_is_on_the_card_and_says_how_much_of_it(on_card: Model) -> None:
    spec = on_card.spec
    print(spec.provider, spec.device, spec.layout, spec.layout_reason, spec.provider_reason)
    assert spec.provider == CARD
    assert spec.device.startswith("GPU")
    assert spec.share_elsewhere is not None
    assert spec.share_elsewhere < 0.5, dict(spec.operators_elsewhere)


def test_what_it_holds_on_the_card_is_seen(on_card: Model) -> None:
    assert on_card.spec.provider == CARD
    held = DeviceMemory().device_bytes(os.getpid())
    print(held)
    assert sum(held.values()) > 50 * 2**20


def test_blocks_may_be_verified(on_card: Model, prompts: list[list[int]]) -> None:
    found = compare(on_card, prompts[1][:128], width=9)
    print(found)
    assert found.block_causal
    assert found.near_tie_flips <= BLOCK_NEAR_TIES * found.rows


def test_greedy_text_is_that_of_the_cpu_within_near_ties(
    on_cpu: Model, prompts: list[list[int]], plain: list[tuple[int, ...]], precision: str
) -> None:
    assert on_cpu.spec.provider == "cpu"
    share = differing(on_cpu, prompts, plain)
    print(f"{share:.2%} of the tokens differ")
    assert share <= NEAR_TIES[precision]


def test_the_highest_on_the_card_is_the_highest_here(
    on_card: Model, prompts: list[list[int]]
) -> None:
    rows = Rows(on_card.new_cache(), prompts[1][:64], 0, anywhere=True)
    [logits] = on_card.step([rows])
    assert not isinstance(logits, np.ndarray)
    width = on_card.spec.vocab_size
    for i, row in enumerate(whole(logits)):
        for count in (1, 40):
            order = np.argsort(-row, kind="stable")
            top = logits[i].top(width, count)
            if top is None:
                assert count > 1
                assert row[order[count - 1]] == row[order[count]]
                continue
            ids, values = top
            assert ids.tolist() == sorted(order[:count].tolist())
            assert values.tolist() == row[ids].tolist()


@pytest.mark.parametrize("k", [3, 8])
def test_speculation_changes_no_text(on_card: Model, prompts: list[list[int]], k: int) -> None:
    said = texts(on_card, prompts, drafters={"ngram": lambda: NgramDrafter("ngram")}, k=k)
    assert differing(on_card, prompts, said) <= BLOCK_NEAR_TIES


@pytest.mark.parametrize(("target", "draft"), [(CARD, "cpu"), ("cpu", CARD)])
def test_target_and_draft_in_different_places(
    smollm2_int8: Path, smollm2_int4: Path, prompts: list[list[int]], target: str, draft: str
) -> None:
    asked = prompts[:3]
    with opened(smollm2_int8, target) as model, opened(smollm2_int4, draft) as other:
        assert (model.spec.provider, other.spec.provider) == (target, draft)
        table = Table(model, slots=1, k=4, drafters={"d": lambda: ModelDrafter("d", other)})
        results = [table.ask(one, max_tokens=TOKENS) for one in asked]
        assert differing(model, asked, [one.tokens for one in results]) <= BLOCK_NEAR_TIES
    proposed = sum(one.account.proposed for one in results if one.account)
    accepted = sum(one.account.accepted for one in results if one.account)
    assert accepted > proposed / 2
