"""Rounds over fake models: the text never depends on the draft, on k, or on who else is there."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import pytest

from homespecd.decoding.params import SamplingParams
from homespecd.drafters.model import ModelDrafter
from homespecd.drafters.ngram import NgramDrafter
from homespecd.drafters.protocol import Drafter
from homespecd.errors import ModelError
from homespecd.governor.protocol import Reason, SpeculationMode
from homespecd.runtime.step import Logits, Rows
from tests.conversations import GREEDY, Table, spell
from tests.fakes import FakeModel, HistoryLogits, Padded, Scripted, WrongEvery, greedy

VOCAB = 16
BASE = HistoryLogits(VOCAB, seed=3)
DRAFTS = {"perfect": BASE, "wrong": WrongEvery(BASE, 1), "third": WrongEvery(BASE, 3)}
PROMPT = [1, 2, 3, 4, 5]
SEEDED = SamplingParams(temperature=1.0, seed=7)


def model_drafter(logits: object, **options: object) -> dict[str, Callable[[], Drafter]]:
    model = FakeModel(logits, **options)  # type: ignore[arg-type]
    return {"draft": lambda: ModelDrafter("draft", model)}


@pytest.mark.parametrize("k", range(1, 9))
@pytest.mark.parametrize("draft", DRAFTS)
@pytest.mark.parametrize("sampling", [GREEDY, SEEDED], ids=["greedy", "seeded"])
def test_same_tokens_with_and_without_a_draft(draft: str, k: int, sampling: SamplingParams) -> None:
    """Greedy and seeded answers are a function of target, prompt and seed alone."""
    plain = Table(FakeModel(BASE)).ask(PROMPT, sampling=sampling, max_tokens=40)
    table = Table(FakeModel(BASE), drafters=model_drafter(DRAFTS[draft]), k=k)
    fast = table.ask(PROMPT, sampling=sampling, max_tokens=40)
    assert fast.tokens == plain.tokens
    assert len(fast.tokens) == 40
    assert fast.account is not None
    if draft == "perfect":
        assert fast.account.rounds == -(-40 // (k + 1))
    if draft == "wrong" and sampling is GREEDY:
        assert fast.account.accepted == 0


def test_greedy_is_the_oracle() -> None:
    plain = Table(FakeModel(BASE)).ask(PROMPT, max_tokens=40)
    assert list(plain.tokens) == greedy(FakeModel(BASE), PROMPT, 40)


def test_seeds_mean_something() -> None:
    """The same seed gives the same answer, another one another."""
    table = Table(FakeModel(BASE))
    first = table.ask(PROMPT, sampling=SEEDED, max_tokens=40)
    again = table.ask(PROMPT, sampling=SEEDED, max_tokens=40)
    other = table.ask(PROMPT, sampling=SamplingParams(seed=8), max_tokens=40)
    assert first.tokens == again.tokens
    assert first.tokens != other.tokens


@pytest.mark.parametrize("k", [1, 3, 8])
def test_max_tokens_is_exact(k: int) -> None:
    """For n = 1 … 2k + 2 exactly n tokens come, and the finish reason is length."""
    want = greedy(FakeModel(BASE), PROMPT, 2 * k + 2)
    for n in range(1, 2 * k + 3):
        table = Table(FakeModel(BASE), drafters=model_drafter(BASE), k=k)
        result = table.ask(PROMPT, max_tokens=n)
        assert list(result.tokens) == want[:n]
        assert result.finish_reason == "length"
        assert result.account is not None
        assert result.account.completion_tokens == n
        assert result.account.accepted <= result.account.proposed


@pytest.mark.parametrize("offset", range(10))
def test_end_of_text_anywhere_in_a_block(offset: int) -> None:
    """Nothing after the end is in the text, the counts or the cache, and the next turn is right."""
    end = 15
    answer = [7] * offset + [end] + [9] * 12
    script = Scripted(VOCAB, PROMPT + answer)
    table = Table(FakeModel(script), drafters=model_drafter(script), k=8, slots=1)
    result = table.ask(PROMPT, end_ids=[end])
    assert result.finish_reason == "stop"
    assert result.tokens == (*answer[:offset], end)
    assert result.text == spell(answer[:offset])
    assert result.account is not None
    assert result.account.completion_tokens == offset + 1
    follow_up = [*PROMPT, *result.tokens, 1, 2]
    second = table.ask(follow_up, max_tokens=5)
    assert second.account is not None
    assert second.account.cached_tokens >= len(PROMPT) + offset
    assert list(second.tokens) == greedy(FakeModel(script), follow_up, 5)


@pytest.mark.parametrize("stop", ["hij", "jkl", "cdefghi", "p"])
def test_stop_strings_anywhere(stop: str) -> None:
    """Inside a block, across blocks, whatever was proposed: the text is cut at the first match."""
    answer = list(range(2, 16))
    script = Scripted(VOCAB, PROMPT + answer)
    want = spell(answer).split(stop)[0]
    for k in (1, 4, 8):
        table = Table(FakeModel(script), drafters=model_drafter(script), k=k)
        result = table.ask(PROMPT, stop=[stop])
        assert result.text == want
        assert result.finish_reason == "stop"
        assert not any(stop[: len(stop)] in delta for delta in result.deltas)


def test_partial_stop_at_the_end_is_delivered() -> None:
    script = Scripted(VOCAB, [*PROMPT, 2, 3, 4, 15])
    result = Table(FakeModel(script)).ask(PROMPT, stop=["dez"], end_ids=[15])
    assert result.text == "cde"


@pytest.mark.parametrize("padded", ["draft", "target"])
def test_padded_vocabularies(padded: str) -> None:
    """Padded ids are never emitted, though their logit is the largest."""
    wide = Padded(BASE, 64)
    target = FakeModel(wide if padded == "target" else BASE)
    table = Table(target, drafters=model_drafter(wide if padded == "draft" else BASE), k=4)
    result = table.ask(PROMPT, vocab_size=VOCAB)
    assert list(result.tokens) == greedy(FakeModel(BASE), PROMPT, 32)
    assert result.account is not None
    assert result.account.accepted > 0


def test_the_end_of_the_context() -> None:
    """Prompts of ctx − 10 … ctx − 1 tokens: the draft shrinks, the answer ends with length."""
    context = 40
    for length in range(30, 40):
        prompt = [i % VOCAB for i in range(length)]
        target = FakeModel(BASE, context=context)
        table = Table(target, drafters=model_drafter(BASE, context=context), k=8)
        result = table.ask(prompt, max_tokens=10_000)
        assert result.finish_reason == "length"
        assert list(result.tokens) == greedy(FakeModel(BASE), prompt, context - length)


def test_a_draft_with_a_shorter_context() -> None:
    table = Table(FakeModel(BASE), drafters=model_drafter(BASE, context=20), k=4)
    result = table.ask(PROMPT, max_tokens=40)
    assert list(result.tokens) == greedy(FakeModel(BASE), PROMPT, 40)


def test_turns_of_a_conversation_and_an_edit() -> None:
    """Each turn equals a cold run, reuses what it can, and so does a turn that edits the past."""
    table = Table(FakeModel(BASE), drafters=model_drafter(DRAFTS["third"]), k=4, slots=1)
    history = list(PROMPT)
    prompts = []
    for turn in range(6):
        result = table.ask(history, max_tokens=9)
        assert list(result.tokens) == greedy(FakeModel(BASE), history, 9)
        prompts.append(list(history))
        history += [*result.tokens, turn, turn + 1]
    assert result.account is not None
    assert result.account.cached_tokens == len(prompts[-1]) - 3
    edited = [*PROMPT[:2], 9, *history[3:30]]
    for prompt in (edited, prompts[0], prompts[-1]):
        assert list(table.ask(prompt, max_tokens=9).tokens) == greedy(FakeModel(BASE), prompt, 9)


def test_several_conversations_share_steps() -> None:
    """Four at once give the texts they give alone, in fewer steps than taking turns."""
    prompts = [[i, i + 1, i + 2] for i in range(4)]
    alone = [Table(FakeModel(BASE)).ask(prompt, max_tokens=20).tokens for prompt in prompts]
    target = FakeModel(BASE)
    table = Table(target, drafters=model_drafter(DRAFTS["third"]), k=3, slots=4)
    results = [table.submit(prompt, max_tokens=20)[1] for prompt in prompts]
    table.run()
    assert [result.tokens for result in results] == alone
    assert max(len(step) for step in target.steps) == 4


def test_more_conversations_than_slots_wait_in_order() -> None:
    table = Table(FakeModel(BASE), slots=1)
    results = [table.submit([i, i], max_tokens=3)[1] for i in range(3)]
    while not results[0].ended:
        table.scheduler.turn()
    assert [result.ended for result in results] == [True, False, False]
    table.run()
    assert all(result.finish_reason == "length" for result in results)


@pytest.mark.parametrize("turns", range(12))
def test_cancel_at_any_moment_leaves_the_slot_right(turns: int) -> None:
    table = Table(FakeModel(BASE), drafters=model_drafter(DRAFTS["third"]), k=3, slots=1)
    request, result = table.submit(list(range(10)) * 15, max_tokens=50)
    for _ in range(turns):
        table.scheduler.turn()
    table.scheduler.cancel(request)
    assert result.ended
    assert result.finish_reason is None
    table.check_slots()
    follow_up = [*table.slots[0].committed, 1] if turns else PROMPT
    assert list(table.ask(follow_up, max_tokens=9).tokens) == greedy(FakeModel(BASE), follow_up, 9)


def test_cancel_while_waiting() -> None:
    table = Table(FakeModel(BASE), slots=1)
    table.submit(PROMPT, max_tokens=5)
    request, waiting = table.submit(PROMPT, max_tokens=5)
    table.scheduler.turn()
    table.scheduler.cancel(request)
    assert waiting.ended
    assert table.scheduler.waiting == 0
    table.run()


def test_a_failing_draft_is_given_up_and_the_text_does_not_notice() -> None:
    drafters = model_drafter(BASE, fail_at_step=3)
    table = Table(FakeModel(BASE), drafters=drafters, k=4)
    result = table.ask(PROMPT, max_tokens=30)
    assert list(result.tokens) == greedy(FakeModel(BASE), PROMPT, 30)
    assert [name for name, _ in table.failed_drafters] == ["draft"]


def test_a_failing_target_step_fails_its_request_only() -> None:
    table = Table(FakeModel(BASE, fail_at_step=4), slots=1)
    result = table.ask(PROMPT)
    assert result.error is not None
    assert result.finish_reason is None
    assert list(table.ask(PROMPT).tokens) == greedy(FakeModel(BASE), PROMPT, 32)


def test_a_failing_draft_is_not_asked_again() -> None:
    model = FakeModel(BASE, fail_at_step=3)
    table = Table(FakeModel(BASE), drafters={"d": lambda: ModelDrafter("d", model)}, k=4)
    table.ask(PROMPT, max_tokens=30)
    assert len(model.steps) == 3


def test_speculation_never_fails_earlier_than_plain() -> None:
    """A target that fails from some position on gives all tokens before it, block or no block."""

    class Cliff(FakeModel):
        def step(self, rows: Sequence[Rows]) -> list[Logits]:
            if any(entry.cache.length + len(entry.tokens) > 16 for entry in rows):
                raise ModelError("past the cliff")
            return super().step(rows)

    plain = Table(Cliff(BASE)).ask(PROMPT)
    fast = Table(Cliff(BASE), drafters=model_drafter(BASE), k=5).ask(PROMPT)
    assert plain.error is not None
    assert fast.error is not None
    assert fast.tokens == plain.tokens
    assert len(fast.tokens) == 16 - len(PROMPT) + 1


def test_modes_and_reasons() -> None:
    table = Table(FakeModel(BASE), drafters=model_drafter(BASE), k=4)
    off = table.ask(PROMPT, mode=SpeculationMode.OFF, blocked=Reason.DISABLED_BY_REQUEST)
    on = table.ask(PROMPT, mode=SpeculationMode.ON)
    bounded = table.ask(PROMPT, max_draft_tokens=1)
    assert off.account is not None
    assert off.account.mode == "plain"
    assert off.account.reason is Reason.DISABLED_BY_REQUEST
    assert off.account.proposed == 0
    assert on.account is not None
    assert on.account.mode in ("speculative", "mixed")
    assert on.account.drafter == "draft"
    assert bounded.account is not None
    assert bounded.account.proposed <= bounded.account.rounds
    assert off.tokens == on.tokens == bounded.tokens


def test_lookup_copies_the_prompt() -> None:
    """The n-gram drafter finds the repetition and the answer is unchanged."""
    phrase = [1, 2, 3, 4, 5, 6, 7, 8]
    script = Scripted(VOCAB, [*phrase, 9, *phrase, 9, *phrase, 9, *phrase])
    table = Table(FakeModel(script), drafters={"ngram": lambda: NgramDrafter("ngram")}, k=8)
    result = table.ask([*phrase, 9, *phrase[:3]], max_tokens=20)
    assert list(result.tokens) == greedy(FakeModel(script), [*phrase, 9, *phrase[:3]], 20)
    assert result.account is not None
    assert result.account.rounds < 10


def test_every_request_drafts() -> None:
    """Speculation does not stop after the first request (counters rise by the same amount)."""
    table = Table(FakeModel(BASE), drafters=model_drafter(BASE), k=4)
    counts = []
    for _ in range(5):
        account = table.ask(PROMPT).account
        assert account is not None
        counts.append(account.proposed)
    assert counts[0] > 0
    assert len(set(counts)) == 1
