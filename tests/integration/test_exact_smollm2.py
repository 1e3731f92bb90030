"""The promise, on the real int4 model and with `==`: nothing but the target decides the text.

Plain, alone and cold is the reference. Against it: blocks of every width, speculation at every k,
warm prefixes, three other conversations in the same steps, and sampling with a seed.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Generator, Iterator, Sequence
from pathlib import Path

import numpy as np
import pytest

from homespecd.decoding.params import SamplingParams
from homespecd.drafters.model import ModelDrafter
from homespecd.drafters.ngram import NgramDrafter
from homespecd.drafters.protocol import Drafter, Draw, Proposal, StepResult, Work
from homespecd.runtime.step import Logits, Model, Rows
from homespecd.worker.prompt_set import shipped_prompts
from tests.conversations import GREEDY, Table
from tests.scripted import Scripted
from tests.smollm2 import opened, prompt_ids

pytestmark = [pytest.mark.model, pytest.mark.slow]

TOKENS = 128
QUESTIONS = (
    "What is the capital of France?",
    "Write a haiku about rain.",
    "Explain how a bicycle stays upright.",
    "List five fruits and a colour for each.",
    "Write a Python function that reverses a string.",
    "Why is the sky blue?",
    "Tell me a joke about computers.",
    "Translate 'good morning' into five languages.",
    "What should I cook with rice and eggs?",
    "Count from 1 to 30.",
    "Describe a lighthouse to a child.",
    "Give me a short plan for cleaning a garage.",
    "What is 17 times 23? Show your work.",
    "Write the alphabet, one letter per line.",
)


@pytest.fixture(scope="module")
def model(smollm2_int4: Path) -> Iterator[Model]:
    with opened(smollm2_int4, lanes=4) as model:
        yield model


@pytest.fixture(scope="module")
def prompts(smollm2_int4: Path) -> list[list[int]]:
    shipped = [one.messages for one in shipped_prompts()]
    asked = [({"role": "user", "content": question},) for question in QUESTIONS]
    prompts = prompt_ids(smollm2_int4, [*shipped, *asked])
    assert len(prompts) == 20
    return prompts


@pytest.fixture(scope="module")
def plain(model: Model, prompts: list[list[int]]) -> list[tuple[int, ...]]:
    """Each prompt alone, cold, one row per step."""
    answers = []
    for prompt in prompts:
        answers.append(Table(model, slots=1).ask(prompt, max_tokens=TOKENS).tokens)
        assert len(answers[-1]) == TOKENS
    return answers


class Prompter:
    """Proposes what it was told the answer would be, with every third token wrong.

    So every round accepts some, rejects one, and verifies a block of the full width.
    """

    name = "prompter"
    nbytes = 0
    match_length = None

    def __init__(self, answers: Sequence[tuple[Sequence[int], Sequence[int]]]) -> None:
        self._answers = answers

    def _told(self, committed: Sequence[int]) -> Sequence[int]:
        for prompt, answer in self._answers:
            if list(committed[: len(prompt)]) == list(prompt):
                return answer[len(committed) - len(prompt) :]
        return ()

    def expected_length(self, committed: Sequence[int], k: int) -> int:
        return min(k, len(self._told(committed)))

    def propose(
        self,
        committed: Sequence[int],
        k: int,
        draw: Draw,  # noqa: ARG002
    ) -> Generator[Work, StepResult, Proposal]:
        yield from ()
        told = self._told(committed)[:k]
        tokens = [
            token + 1 if (len(committed) + i) % 3 == 0 else token for i, token in enumerate(told)
        ]
        return Proposal(tuple(tokens))

    def unread(self, committed: Sequence[int]) -> int:  # noqa: ARG002
        """It has read nothing, and needs not."""
        return 0

    def foresee(self, committed: Sequence[int]) -> None:
        """It keeps its guesses to itself."""

    def hindsight(self, committed: Sequence[int], count: int) -> int:  # noqa: ARG002
        """As before, so after."""
        return 0

    def rewind(self, valid: int) -> None:
        """It remembers nothing."""


def logits_in_blocks(model: Model, tokens: Sequence[int], width: int) -> Logits:
    cache = model.new_cache()
    return np.concatenate(
        [
            np.array(model.step([Rows(cache, tokens[i : i + width], logits_from=0)])[0])
            for i in range(0, len(tokens), width)
        ]
    )


def test_logits_do_not_depend_on_the_width(model: Model, prompts: list[list[int]]) -> None:
    tokens = prompts[1][:200]
    single = logits_in_blocks(model, tokens, 1)
    for width in (*range(2, 10), 16, 17, 64, len(tokens)):
        assert np.array_equal(single, logits_in_blocks(model, tokens, width)), width


@pytest.mark.parametrize("k", range(1, 9))
def test_greedy_ids_with_speculation_in_company(
    model: Model, prompts: list[list[int]], plain: list[tuple[int, ...]], k: int
) -> None:
    """All prompts, four at a time in the same steps, cold at k odd and warm at k even."""
    pairs = list(zip(prompts, plain, strict=True))
    table = Table(model, drafters={"prompter": lambda: Prompter(pairs)}, k=k, slots=4)
    if k % 2 == 0:
        # Another answer to the same beginnings goes first, so that prefixes are warm.
        for prompt in prompts[:4]:
            table.submit(prompt, max_tokens=3, sampling=SamplingParams(seed=k))
        table.run()
    results = [table.submit(prompt, max_tokens=TOKENS)[1] for prompt in prompts]
    table.run()
    assert [result.tokens for result in results] == plain
    accounts = [result.account for result in results]
    assert all(account is not None and account.accepted > 0 for account in accounts)
    assert any(account is not None and account.accepted < account.proposed for account in accounts)
    if k % 2 == 0:
        assert any(account is not None and account.cached_tokens > 30 for account in accounts)


def test_greedy_ids_with_lookup_alone(
    model: Model, prompts: list[list[int]], plain: list[tuple[int, ...]]
) -> None:
    table = Table(model, drafters={"ngram": lambda: NgramDrafter("ngram")}, k=8, slots=1)
    for prompt, want in zip(prompts[:6], plain, strict=False):
        assert table.ask(prompt, max_tokens=TOKENS).tokens == want


def test_a_second_turn_equals_a_cold_run(model: Model, prompts: list[list[int]]) -> None:
    """The follow-up computes only what is new, and its text is that of a cold run."""
    table = Table(model, slots=1)
    first = table.ask(prompts[0], max_tokens=40)
    follow_up = [*prompts[0], *first.tokens, *prompts[7]]
    warm = table.ask(follow_up, max_tokens=60)
    cold = Table(model, slots=1).ask(follow_up, max_tokens=60)
    assert warm.tokens == cold.tokens
    assert warm.account is not None
    assert warm.account.cached_tokens == len(prompts[0]) + 39


@pytest.mark.parametrize("seed", [1, 2])
def test_seeded_text_is_the_same_with_any_drafter(
    model: Model, prompts: list[list[int]], seed: int
) -> None:
    sampling = SamplingParams(temperature=1.0, seed=seed)
    for prompt in (prompts[1], prompts[5]):
        plain = Table(model, slots=1).ask(prompt, max_tokens=64, sampling=sampling)
        told = [(prompt, plain.tokens)]
        for drafter in (lambda: NgramDrafter("d"), lambda told=told: Prompter(told)):
            table = Table(model, drafters={"d": drafter}, k=5, slots=1)
            fast = table.ask(prompt, max_tokens=64, sampling=sampling)
            assert fast.tokens == plain.tokens


@pytest.fixture(scope="module")
def int8(smollm2_int8: Path) -> Iterator[Model]:
    with opened(smollm2_int8, lanes=2) as model:
        yield model


@pytest.mark.parametrize("sampling", [GREEDY, SamplingParams(seed=5)], ids=["greedy", "seeded"])
def test_a_real_draft_changes_nothing(
    model: Model, int8: Model, prompts: list[list[int]], sampling: SamplingParams
) -> None:
    """The same weights at another precision agree often, not always: just what a draft is."""
    drafters = {"int8": lambda: ModelDrafter("int8", int8)}
    table = Table(model, drafters=drafters, k=4, slots=2)
    results = []
    for prompt in prompts[:4]:
        want = Table(model, slots=1).ask(prompt, max_tokens=64, sampling=sampling).tokens
        results.append((want, table.submit(prompt, max_tokens=64, sampling=sampling)[1]))
    table.run()
    assert all(result.tokens == want for want, result in results)
    accounts = [result.account for _, result in results if result.account is not None]
    proposed = sum(account.proposed for account in accounts)
    accepted = sum(account.accepted for account in accounts)
    assert proposed // 2 < accepted < proposed


@pytest.mark.parametrize("script_seed", [1, 2])
def test_no_schedule_of_switches_changes_a_token(
    model: Model,
    int8: Model,
    prompts: list[list[int]],
    plain: list[tuple[int, ...]],
    script_seed: int,
) -> None:
    """Lookup, draft model and plain rounds at random: greedy and seeded answers, two at a time."""
    rng = random.Random(script_seed)
    names = ("ngram", "int8", "int8", None)
    governor = Scripted([(rng.choice(names), rng.randint(1, 8)) for _ in range(500)])
    drafters: dict[str, Callable[[], Drafter]] = {
        "ngram": lambda: NgramDrafter("ngram", min_match=2),
        "int8": lambda: ModelDrafter("int8", int8),
    }
    switching = Table(model, drafters=drafters, slots=2, governor=governor)
    seeded = SamplingParams(temperature=0.8, seed=9)
    asked = [(1, GREEDY), (4, seeded), (3, GREEDY), (0, seeded)]
    results = [
        switching.submit(prompts[i], max_tokens=60, sampling=sampling)[1] for i, sampling in asked
    ]
    switching.run()

    for (i, sampling), result in zip(asked, results, strict=True):
        want = plain[i][:60]
        if sampling is seeded:
            alone = Table(model, slots=1)
            want = alone.ask(prompts[i], max_tokens=60, sampling=seeded).tokens
        assert result.tokens == want
    rounds = governor.records
    assert {one.choice.drafter for one in rounds if one.accepted} == set(drafters)
    assert any(one.accepted < one.proposed for one in rounds)
    assert any(not one.proposed for one in rounds)
    assert any(one.lanes == 2 for one in rounds)


def test_the_full_precision_target_with_its_own_int4_import(
    model: Model, smollm2_fp32: Path, prompts: list[list[int]]
) -> None:
    """The pair that pays most on a CPU: the draft's step costs a third, and it is mostly right."""
    with opened(smollm2_fp32, lanes=1) as target:
        for prompt in prompts[:2]:
            want = Table(target, slots=1).ask(prompt, max_tokens=48).tokens
            drafters = {"int4": lambda: ModelDrafter("int4", model)}
            fast = Table(target, drafters=drafters, k=4, slots=1).ask(prompt, max_tokens=48)
            assert fast.tokens == want
            assert fast.account is not None
            assert fast.account.rounds < 30


def test_greedy_is_not_seeded(model: Model, prompts: list[list[int]]) -> None:
    """A check of the tests: sampling at temperature 1 does give another text."""
    table = Table(model, slots=1)
    greedy = table.ask(prompts[0], max_tokens=24, sampling=GREEDY).tokens
    assert table.ask(prompts[0], max_tokens=24, sampling=SamplingParams(seed=3)).tokens != greedy
