"""Whatever a governor decides, round by round, the text is that of plain decoding.

A governor that follows a script forces every switch there is: any drafter, any k, plain in between,
for one to four conversations that share steps. Greedy and seeded answers must not change by a
token, and what is reported of each round must be what happened.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from homespecd.decoding.params import SamplingParams
from homespecd.drafters.model import ModelDrafter
from homespecd.drafters.ngram import NgramDrafter
from homespecd.governor.fixed import FixedGovernor
from homespecd.governor.measured import DrafterSpec, MeasuredGovernor
from homespecd.governor.protocol import RoundRecord
from homespecd.runtime.step import Logits
from tests.conversations import GREEDY, Result, Table
from tests.fakes import FakeModel, HistoryLogits, LogitsOf, WrongEvery
from tests.scripted import Scripted, Step

VOCAB = 12
SEEDED = SamplingParams(temperature=1.0, seed=11)


class Repeating:
    """Random logits of the last two tokens alone: greedy text runs into loops."""

    def __init__(self, base: LogitsOf) -> None:
        self._base = base

    def __call__(self, tokens: tuple[int, ...]) -> Logits:
        return self._base(tokens[-2:])


TARGETS: dict[str, LogitsOf] = {
    "chaotic": HistoryLogits(VOCAB, seed=5),
    "repeating": Repeating(HistoryLogits(VOCAB, seed=7, sharpness=4.0)),
}


def table(base: LogitsOf, governor: FixedGovernor | MeasuredGovernor, slots: int) -> Table:
    good, bad = FakeModel(WrongEvery(base, 5)), FakeModel(WrongEvery(base, 1))
    return Table(
        FakeModel(base),
        drafters={
            "ngram": lambda: NgramDrafter("ngram", min_match=2),
            "good": lambda: ModelDrafter("good", good),
            "bad": lambda: ModelDrafter("bad", bad),
        },
        slots=slots,
        governor=governor,
    )


steps = st.tuples(st.sampled_from([None, "ngram", "good", "bad"]), st.integers(1, 8))
prompts = st.lists(st.integers(0, VOCAB - 1), min_size=1, max_size=12)


@settings(max_examples=60, deadline=None)
@given(
    script=st.lists(steps, min_size=1, max_size=24),
    asked=st.lists(st.tuples(prompts, st.sampled_from([GREEDY, SEEDED])), min_size=1, max_size=4),
    slots=st.integers(1, 4),
    ends=st.fixed_dictionaries(
        {
            "max_tokens": st.integers(1, 24),
            "end_ids": st.sampled_from([(), (0,), (3, 7)]),
            "stop": st.sampled_from([(), ("e",), ("jg", "hk")]),
        }
    ),
    target=st.sampled_from(sorted(TARGETS)),
)
def test_no_schedule_of_switches_changes_a_token(
    script: list[Step],
    asked: list[tuple[list[int], SamplingParams]],
    slots: int,
    ends: dict[str, Any],
    target: str,
) -> None:
    base = TARGETS[target]
    governor = Scripted(script)
    switching = table(base, governor, slots)

    results = [switching.submit(prompt, sampling=sampling, **ends) for prompt, sampling in asked]
    switching.run()

    for (prompt, sampling), (request, result) in zip(asked, results, strict=True):
        plain = Table(FakeModel(base)).ask(prompt, sampling=sampling, **ends)
        assert result.tokens == plain.tokens
        assert result.text == plain.text
        assert result.finish_reason == plain.finish_reason
        rounds = [one for one in governor.records if one.request == request]
        check_rounds(rounds, [*prompt, *result.tokens], len(prompt), governor)
        check_account(rounds, result)


def check_rounds(
    rounds: Sequence[RoundRecord], sequence: list[int], prompt: int, governor: Scripted
) -> None:
    """Each record against the text that came of it."""
    context = prompt
    for one in rounds:
        assert one.context == context
        assert one.rows == one.catch_up + 1 + one.proposed
        assert one.total_rows >= one.rows
        assert 1 <= one.lanes <= 4
        assert 0 <= one.accepted <= one.proposed <= one.choice.k
        assert one.accepted <= one.committed <= one.accepted + 1
        assert min(one.draft_ms, one.step_ms) >= 0
        assert one.wall_ms >= one.draft_ms
        check_lookup(one, sequence[:context], sequence[context], governor)
        context += one.committed
        check_hindsight(one, sequence[:context])
    assert context == len(sequence)


def check_lookup(
    record: RoundRecord, committed: list[int], followed: int, governor: Scripted
) -> None:
    """`matches` and `foreseen` against a lookup that has seen nothing but the committed tokens."""
    lookup = NgramDrafter("ngram", min_match=2)
    situation = governor.asked[record.request, record.context]
    if situation.room > 1:
        assert bool(situation.offers["ngram"]) == bool(lookup.expected_length(committed, 1))
        guess = lookup.foresee(committed)
        assert situation.matches.get("ngram", 0) == lookup.match_length
        if record.choice.k:
            assert record.foreseen == {}
        elif guess is None:
            assert "ngram" not in record.foreseen
        else:
            assert record.foreseen["ngram"] is (guess == followed)


def check_hindsight(record: RoundRecord, committed: list[int]) -> None:
    """`covered` against a lookup that was asked before every token."""
    if record.choice.drafter in (None, "ngram"):
        assert record.covered == 0
        return
    lookup = NgramDrafter("ngram", min_match=2)
    start = len(committed) - record.committed
    guesses = [lookup.foresee(committed[:end]) for end in range(start, len(committed))]
    right = sum(a == b for a, b in zip(guesses, committed[start:], strict=True))
    assert record.covered == right


def check_account(rounds: Sequence[RoundRecord], result: Result) -> None:
    """What the response says is the sum of the rounds, and nothing past the end."""
    account = result.account
    assert account is not None
    assert account.rounds == len(rounds)
    assert account.completion_tokens == len(result.tokens) == sum(one.committed for one in rounds)
    assert account.proposed == sum(one.proposed for one in rounds)
    assert account.accepted == sum(one.accepted for one in rounds)
    assert account.accepted <= min(account.proposed, len(result.tokens))
    assert account.speculative_rounds == sum(one.proposed > 0 for one in rounds)


def test_the_script_does_speculate() -> None:
    """A check of the tests: all drafters are used, and they are right now and then."""
    governor = Scripted([("ngram", 4), ("good", 3), (None, 0), ("bad", 2)])
    table(TARGETS["repeating"], governor, 1).ask([1, 2, 3], max_tokens=80)

    proposed = {
        name: [one for one in governor.records if one.choice.drafter == name and one.proposed]
        for name in ("ngram", "good", "bad")
    }
    assert all(proposed.values())
    assert any(one.accepted for one in proposed["ngram"])
    assert any(one.accepted for one in proposed["good"])
    assert any(one.foreseen.get("ngram") for one in governor.records)
    assert any(one.covered for one in governor.records)


@settings(max_examples=20, deadline=None)
@given(
    asked=st.lists(st.tuples(prompts, st.sampled_from([GREEDY, SEEDED])), min_size=1, max_size=4),
    slots=st.integers(1, 4),
    target=st.sampled_from(sorted(TARGETS)),
)
def test_the_measuring_governor_changes_no_token(
    asked: list[tuple[list[int], SamplingParams]], slots: int, target: str
) -> None:
    base = TARGETS[target]
    governor = MeasuredGovernor([DrafterSpec(name, 8) for name in ("ngram", "good", "bad")])
    measured = table(base, governor, slots)

    results = [
        measured.submit(prompt, sampling=sampling, max_tokens=40)[1] for prompt, sampling in asked
    ]
    measured.run()

    for (prompt, sampling), result in zip(asked, results, strict=True):
        plain = Table(FakeModel(base)).ask(prompt, sampling=sampling, max_tokens=40)
        assert result.tokens == plain.tokens


class NanFrom:
    """`base` until there are `length` tokens, then not a number."""

    def __init__(self, base: LogitsOf, length: int) -> None:
        self._base = base
        self._length = length

    def __call__(self, tokens: tuple[int, ...]) -> Logits:
        logits = self._base(tokens)
        return logits if len(tokens) < self._length else np.full_like(logits, np.nan)


@pytest.mark.parametrize("sampling", [GREEDY, SEEDED], ids=["greedy", "seeded"])
def test_a_draft_that_turns_to_nan_is_off_and_the_text_unharmed(sampling: SamplingParams) -> None:
    base = TARGETS["chaotic"]
    draft = FakeModel(NanFrom(base, 12))
    broken = Table(FakeModel(base), drafters={"draft": lambda: ModelDrafter("draft", draft)}, k=4)

    result = broken.ask([1, 2, 3], sampling=sampling, max_tokens=30)

    plain = Table(FakeModel(base)).ask([1, 2, 3], sampling=sampling, max_tokens=30)
    assert result.tokens == plain.tokens
    assert {name for name, _ in broken.failed_drafters} == {"draft"}
    assert "NaN" in str(broken.failed_drafters[0][1])
    assert result.account is not None
    assert result.account.accepted > 0  # before


@pytest.mark.parametrize("k", [0, 4])
@pytest.mark.parametrize("sampling", [GREEDY, SEEDED], ids=["greedy", "seeded"])
def test_a_target_that_turns_to_nan_is_an_error(k: int, sampling: SamplingParams) -> None:
    """Clearly, with no token of it sent, and the slot is right for the next request."""
    base = TARGETS["chaotic"]
    target, draft = FakeModel(NanFrom(base, 12)), FakeModel(base)
    broken = Table(target, drafters={"draft": lambda: ModelDrafter("draft", draft)}, k=k, slots=1)

    result = broken.ask([1, 2, 3], sampling=sampling, max_tokens=30)

    assert result.error is not None
    assert "NaN" in str(result.error)
    assert result.finish_reason is None
    plain = Table(FakeModel(base)).ask([1, 2, 3], sampling=sampling, max_tokens=9)
    assert plain.text.startswith(result.text)
    assert broken.ask([1, 2, 3], sampling=sampling, max_tokens=9).tokens == plain.tokens


class Without:
    """Anything but one token."""

    def __init__(self, token: int) -> None:
        self._token = token

    def impossible(self, tokens: Sequence[int]) -> npt.NDArray[np.int64]:  # noqa: ARG002
        return np.array([self._token], dtype=np.int64)

    def possible_run(self, tokens: Sequence[int], proposal: Sequence[int]) -> int:  # noqa: ARG002
        proposed = list(proposal)
        return proposed.index(self._token) if self._token in proposed else len(proposed)


def test_what_a_grammar_takes_off_a_proposal_is_told() -> None:
    """The lookup would go on with a 9 that cannot come, and with what followed it."""
    governor = Scripted([("ngram", 4)])
    one = table(TARGETS["chaotic"], governor, 1)

    one.ask([1, 2, 9, 4, 5, 1, 2], max_tokens=1 + 4, constraint=Without(9))

    first = governor.records[0]
    assert (first.choice.k, first.proposed, first.impossible) == (4, 0, 4)
    assert (first.rows, first.accepted, first.committed) == (1, 0, 1)
