"""The model drafter's cache, whatever happened between two proposals."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from homespecd.decoding.params import SamplingParams
from homespecd.decoding.sampling import Sampler
from homespecd.drafters.model import DraftFailed, ModelDrafter
from homespecd.drafters.protocol import NO_PROPOSAL, Draw, Probabilities
from homespecd.errors import ModelError
from homespecd.runtime.step import Logits
from tests.fakes import BYTES_PER_TOKEN, FakeCache, FakeModel, HistoryLogits, Padded, drive, greedy

VOCAB = 6


def model(seed: int = 0, **more: object) -> FakeModel:
    return FakeModel(HistoryLogits(VOCAB, seed=seed), **more)  # type: ignore[arg-type]


def deterministic(logits: Logits, sequence: Sequence[int]) -> tuple[int, Probabilities | None]:
    sampler = Sampler(SamplingParams(temperature=0), vocab_size=VOCAB, prompt_length=0)
    return sampler.draw(logits, sequence), None


def sampled(seed: int) -> Draw:
    """Draws at random, and says from what."""
    rng = np.random.default_rng(seed)
    sampler = Sampler(SamplingParams(), vocab_size=VOCAB, prompt_length=0)

    def draw(logits: Logits, sequence: Sequence[int]) -> tuple[int, Probabilities | None]:
        p = sampler.probabilities(logits, sequence)
        return int(rng.choice(VOCAB, p=p)), p

    return draw


def test_proposes_what_its_model_says() -> None:
    draft = model()
    proposal = drive(ModelDrafter("d", draft).propose([1, 2, 3], 4, deterministic))
    assert proposal.tokens == tuple(greedy(draft, [1, 2, 3], 4))
    assert proposal.q is None


_EVENT = st.tuples(
    st.integers(0, 5),  # k of this round's proposal, 0 = a round without this drafter
    st.integers(0, 5),  # how much of it is accepted
    st.lists(st.integers(0, VOCAB - 1), min_size=1, max_size=3),  # what is committed after it
    st.integers(1, 40),  # how much of all that stands (a new conversation, an edited turn)
    st.booleans(),  # whether the drafter is told
)


@given(events=st.lists(_EVENT, min_size=1, max_size=8), prefill_rows=st.integers(1, 5))
def test_every_proposal_is_that_of_an_empty_cache(
    events: list[tuple[int, int, list[int], int, bool]], prefill_rows: int
) -> None:
    """After any pattern of acceptance, pauses and rewinds; and the cache holds a prefix."""
    draft = model()
    drafter = ModelDrafter("d", draft, prefill_rows=prefill_rows)
    cache = drafter._cache
    assert isinstance(cache, FakeCache)
    committed = [0]
    for k, accepted, added, stands, told in events:
        proposal = drive(drafter.propose(committed, k, deterministic))
        assert proposal.tokens == tuple(greedy(draft, committed, k))
        if k:
            assert cache.tokens == [*committed, *proposal.tokens[:-1]]
        kept = [*committed, *proposal.tokens[:accepted]]
        committed = [*kept, *added][:stands]
        if told:
            drafter.rewind(min(len(kept), stands))
        if told and k:
            assert cache.tokens == committed[: cache.length]
    assert all(rows <= prefill_rows for step in draft.steps for _, rows, _ in step)


def test_all_accepted_is_no_special_case() -> None:
    """The draft is one token behind, and reads it with the next."""
    draft = model()
    drafter = ModelDrafter("d", draft)
    committed = [1, 2]
    proposal = drive(drafter.propose(committed, 3, deterministic))
    committed += [*proposal.tokens, 5]
    draft.steps.clear()
    drive(drafter.propose(committed, 1, deterministic))
    assert draft.steps == [[(4, 2, 1)]]


def test_reads_lazily_in_chunks_without_logits() -> None:
    """Nothing runs before the first proposal; a long prompt then takes steps of 64 rows."""
    draft = model()
    drafter = ModelDrafter("d", draft)
    prompt = [i % VOCAB for i in range(150)]
    assert drafter.expected_length(prompt, 2) == 2
    assert draft.steps == []
    proposal = drive(drafter.propose(prompt, 2, deterministic))
    assert draft.steps == [[(0, 64, 0)], [(64, 64, 0)], [(128, 22, 1)], [(150, 1, 1)]]
    assert proposal.tokens == tuple(greedy(draft, prompt, 2))
    assert drafter.nbytes == 151 * BYTES_PER_TOKEN


def test_sampled_proposals_carry_their_distributions() -> None:
    draft = model()
    committed = [3, 1]
    proposal = drive(ModelDrafter("d", draft).propose(committed, 3, sampled(0)))
    assert proposal.q is not None
    assert proposal.q.shape == (3, VOCAB)
    sampler = Sampler(SamplingParams(), vocab_size=VOCAB, prompt_length=0)
    for i in range(3):
        before = committed + list(proposal.tokens[:i])
        np.testing.assert_array_equal(
            proposal.q[i], sampler.probabilities(draft.logits(tuple(before)), before)
        )


@pytest.mark.parametrize(
    ("length", "expected"), [(6, 4), (7, 4), (8, 3), (9, 2), (10, 1), (11, 0), (12, 0)]
)
def test_proposes_less_near_the_end_of_its_context(length: int, expected: int) -> None:
    """Its context may be shorter than the target's; past it there is nothing, and no error."""
    draft = model(context=10)
    drafter = ModelDrafter("d", draft)
    committed = [i % VOCAB for i in range(length)]
    assert drafter.expected_length(committed, 4) == expected
    proposal = drive(drafter.propose(committed, 4, deterministic))
    assert proposal.tokens == tuple(greedy(draft, committed, expected))
    if not expected:
        assert proposal == NO_PROPOSAL
        assert draft.steps == []


def test_nothing_committed_is_nothing_to_propose() -> None:
    drafter = ModelDrafter("d", model())
    assert drafter.expected_length([], 4) == 0
    assert drive(drafter.propose([], 4, deterministic)) == NO_PROPOSAL


def test_the_width_of_its_logits_is_the_draws_business() -> None:
    """A padded draft proposes as an unpadded one."""
    plain = model()
    padded = FakeModel(Padded(plain.logits, 64))
    proposal = drive(ModelDrafter("d", padded).propose([1, 2], 3, deterministic))
    assert proposal.tokens == tuple(greedy(plain, [1, 2], 3))


@pytest.mark.parametrize("fail_at_step", [1, 2, 4])
def test_a_failing_model_is_a_failed_draft_and_may_recover(fail_at_step: int) -> None:
    """While catching up, at the first token, in the middle: the next proposal is right."""
    draft = model(fail_at_step=fail_at_step)
    drafter = ModelDrafter("d", draft, prefill_rows=2)
    with pytest.raises(DraftFailed, match=r"d: .* told to fail") as caught:
        drive(drafter.propose([1, 2, 3], 4, deterministic))
    assert isinstance(caught.value, ModelError)
    proposal = drive(drafter.propose([1, 2, 3], 4, deterministic))
    assert proposal.tokens == tuple(greedy(draft, [1, 2, 3], 4))


def test_nan_is_a_failed_draft() -> None:
    broken = FakeModel(lambda _: np.array([0, np.nan, 1], dtype=np.float32))
    with pytest.raises(DraftFailed, match=r"d: .*NaN"):
        drive(ModelDrafter("d", broken).propose([0], 2, lambda *_: (0, None)))


def test_logits_that_allow_no_token_are_a_failed_draft() -> None:
    broken = FakeModel(lambda _: np.full(VOCAB, -np.inf, dtype=np.float32))
    with pytest.raises(DraftFailed, match=r"d: .*-inf"):
        drive(ModelDrafter("d", broken).propose([0], 2, deterministic))


@pytest.mark.parametrize("ran", [False, True])
def test_an_abandoned_proposal_leaves_a_usable_cache(ran: bool) -> None:
    """A cancelled request may close the generator before or after its step has run."""
    draft = model()
    drafter = ModelDrafter("d", draft)
    generator = drafter.propose([1, 2, 3], 4, deterministic)
    work = next(generator)
    if ran:
        draft.step([work.rows])
    generator.close()
    proposal = drive(drafter.propose([1, 4], 3, deterministic))
    assert proposal.tokens == tuple(greedy(draft, [1, 4], 3))


def test_slots_share_a_model_but_not_a_cache() -> None:
    draft = model()
    one, two = ModelDrafter("d", draft), ModelDrafter("d", draft)
    for drafter, committed in ((one, [1]), (two, [2, 2]), (one, [1, 3])):
        proposal = drive(drafter.propose(committed, 2, deterministic))
        assert proposal.tokens == tuple(greedy(draft, committed, 2))
