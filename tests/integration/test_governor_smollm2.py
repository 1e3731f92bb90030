"""The measuring governor on the real int4 model: whoever is there, texts are those of plain rounds.

Speed is measured by `python -m bench.governor`, and not here.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from homespecd.decoding.params import SamplingParams
from homespecd.drafters.model import ModelDrafter
from homespecd.drafters.ngram import NgramDrafter
from homespecd.governor.measured import DrafterSpec, MeasuredGovernor
from homespecd.runtime.step import Model
from homespecd.worker.prompt_set import shipped_prompts
from tests.conversations import GREEDY, Result, Table
from tests.smollm2 import opened, prompt_ids

pytestmark = [pytest.mark.model, pytest.mark.slow]

TOKENS = 48
SEEDED = SamplingParams(temperature=0.8, top_p=0.95, seed=3)


@pytest.fixture(scope="module")
def model(smollm2_int4: Path) -> Iterator[Model]:
    with opened(smollm2_int4, lanes=4) as model:
        yield model


@pytest.fixture(scope="module")
def prompts(smollm2_int4: Path) -> list[list[int]]:
    """Copying, a summary, an edit, chat: from what a lookup knows to what it does not."""
    chosen = ("list copy", "summary", "code edit", "chat")
    by_category = {one.category: one.messages for one in shipped_prompts()}
    return prompt_ids(smollm2_int4, [by_category[name] for name in chosen])


@pytest.fixture(scope="module")
def table(model: Model) -> Table:
    """The lookup, and the model as its own draft: always right and never worth it."""
    governor = MeasuredGovernor([DrafterSpec("ngram", 16), DrafterSpec("itself", 8)])
    return Table(
        model,
        drafters={
            "ngram": lambda: NgramDrafter("ngram"),
            "itself": lambda: ModelDrafter("itself", model),
        },
        slots=4,
        governor=governor,
    )


@pytest.mark.parametrize("sampling", [GREEDY, SEEDED], ids=["greedy", "seeded"])
def test_one_two_and_four_clients_read_what_they_would_have_read_alone(
    model: Model, prompts: list[list[int]], table: Table, sampling: SamplingParams
) -> None:
    plain = [
        Table(model, slots=1).ask(prompt, max_tokens=TOKENS, sampling=sampling).tokens
        for prompt in prompts
    ]

    for clients in (1, 2, 4):
        results: list[Result] = [
            table.submit(prompt, max_tokens=TOKENS, sampling=sampling)[1]
            for prompt in prompts[:clients]
        ]
        table.run()
        assert [result.tokens for result in results] == plain[:clients]

    standing = table.governor.standing()
    used = {one.name: one.speedup.speculative_samples for one in standing.drafters}
    assert used["ngram"] > 0  # it did speculate
    assert standing.plain_ms_per_token is not None
