"""The text is the target's own, whatever drafts: greedy, sampled, seeded, penalised, in company."""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from scipy import stats

from tests.integration.service import (
    COMPLETION,
    Served,
    Service,
    chat_ids,
    complete,
    drafting,
    module_service,
    prompts,
    spoken,
    spoken_with,
    text_of,
)
from tests.oracle import MERGES, PIECES, VOCAB, Oracle, Toy

pytestmark = pytest.mark.integration

TOY = Toy()
LANES = Toy(layout="lanes")
DRAFTS = ("d1", "d2", "d3", "d4", "ngram")

running, service = module_service(
    Served("toy", TOY, DRAFTS, others={"flat": Toy(spread=0.0625)}, slots=4),
    Served("lanes", LANES, ("d1", "d3", "ngram"), slots=4),
    blocks_as_asked=True,
)


# -- greedy ------------------------------------------------------------------------------------


@pytest.mark.parametrize("draft", ["d1", "d2", "d3"])
def test_greedy_text_is_the_same_with_any_draft_at_any_length(
    service: Service, draft: str, answers: Mapping[int, str]
) -> None:
    """B1: 50 prompts, block lengths 1 to 8."""

    def text(index: int, k: int) -> str:
        request = complete("toy", PROMPTS[index], max_tokens=LENGTH, **drafting("toy", draft, k))
        answer = service.ask(COMPLETION, request)
        assert answer["homespec"]["draft_tokens_proposed"] > 0
        return text_of(answer)

    cases = [(index, k) for index in range(len(PROMPTS)) for k in range(1, 9)]
    with ThreadPoolExecutor(4) as pool:
        texts = pool.map(lambda case: text(*case), cases)
        for (index, k), said in zip(cases, texts, strict=True):
            assert said == answers[index], (PROMPTS[index], k)


PROMPTS = prompts(50)
LENGTH = 16


@pytest.fixture(scope="module")
def answers() -> Mapping[int, str]:
    return {index: spoken(TOY, prompt, LENGTH) for index, prompt in enumerate(PROMPTS)}


@pytest.mark.parametrize("draft", DRAFTS)
def test_penalties_see_what_was_committed_and_nothing_else(service: Service, draft: str) -> None:
    """E2: each penalty alone, greedy."""
    prompt = [*b"the cat and the hat, the cat", 258]

    def penalised(
        *, presence: float = 0.0, frequency: float = 0.0, repetition: float = 1.0
    ) -> Callable[[list[float], Sequence[int]], None]:
        def adjust(logits: list[float], output: Sequence[int]) -> None:
            for token in {*prompt, *output} if repetition != 1.0 else ():
                up = logits[token] > 0
                logits[token] *= 1 / repetition if up else repetition
            for token, count in Counter(output).items():
                logits[token] -= presence + frequency * count

        return adjust

    plain = spoken(TOY, prompt, 120)
    for name, value, adjust in (
        ("presence_penalty", 1.5, penalised(presence=1.5)),
        ("frequency_penalty", 0.75, penalised(frequency=0.75)),
        ("repetition_penalty", 1.25, penalised(repetition=1.25)),
    ):
        expected = Oracle.text(spoken_with(TOY, prompt, 120, adjust))
        assert expected != plain
        asked = complete("toy", prompt, max_tokens=120, **{name: value})
        answer = service.ask(COMPLETION, {**asked, **drafting("toy", draft, 6)})
        assert text_of(answer) == expected, name


# -- sampled -----------------------------------------------------------------------------------

# Without its merges a toy says one letter per token, so that a text tells its tokens.
NO_MERGES = {str(256 + index): -100 for index in range(len(MERGES))}
SUSPICIOUS = 1e-3


@pytest.mark.parametrize("seeded", [False, True], ids=["unseeded", "seeded"])
@pytest.mark.parametrize(
    ("draft", "k", "count"),
    [("toy-d3", 1, 3000), ("flat", 3, 2000)],
)
def test_sampled_tokens_have_the_targets_distribution(
    service: Service, draft: str, k: int, count: int, seeded: bool
) -> None:
    """B3: a draft that is wrong about the first token, and one that is less sure than the target:
    what it samples is often, but not always, to be rejected.

    Without a seed each run is another sample, and one in a thousand looks suspicious by chance.
    Such a one is taken again; a wrong distribution looks so each time.
    """
    prompt = prompts(1, length=12)[0]
    expected = {pair: p * count for pair, p in pairs_after(prompt).items()}

    def sample(index: int) -> tuple[str, int]:
        wish = {"speculation": "on", "drafter": draft, "max_draft_tokens": k}
        asked = complete("toy", prompt, max_tokens=k + 1, homespec=wish)
        asked |= {"temperature": 1.0, "logit_bias": NO_MERGES}
        answer = service.ask(COMPLETION, asked | ({"seed": 1000 + index} if seeded else {}))
        return text_of(answer)[:2], answer["homespec"]["draft_tokens_proposed"]

    def likelihood() -> float:
        with ThreadPoolExecutor(4) as pool:
            samples = list(pool.map(sample, range(count)))
        assert sum(proposed for _, proposed in samples) >= count * k
        seen = Counter((ord(text[0]), ord(text[1])) for text, _ in samples)
        tokens = [fits(marginal(seen, i), marginal(expected, i), count) for i in (0, 1)]
        return min(*tokens, fits(seen, expected, count))

    assert likelihood() > SUSPICIOUS or (not seeded and likelihood() > SUSPICIOUS)


def pairs_after(prompt: Sequence[int]) -> dict[tuple[int, int], float]:
    """Probabilities of the two tokens after `prompt`, without those below one in a million."""

    def probabilities(tokens: Sequence[int]) -> dict[int, float]:
        single = dict(enumerate(Oracle(TOY).probabilities(tokens)[:256]))
        total = math.fsum(single.values())
        return {token: p / total for token, p in single.items() if p / total > 1e-6}

    return {
        (first, second): p * q
        for first, p in probabilities(prompt).items()
        for second, q in probabilities([*prompt, first]).items()
    }


def marginal(counts: Mapping[tuple[int, int], float], which: int) -> dict[int, float]:
    summed: dict[int, float] = defaultdict(float)
    for pair, number in counts.items():
        summed[pair[which]] += number
    return summed


def fits(seen: Mapping[Any, float], expected: Mapping[Any, float], count: int) -> float:
    """The p-value of a chi-square test; what is expected fewer than 5 times is one bin."""
    common = [value for value, number in expected.items() if number >= 5]
    observed = [seen.get(value, 0) for value in common]
    wanted = [expected[value] for value in common]
    observed.append(count - sum(observed))
    wanted.append(count - sum(wanted))
    if wanted[-1] < 5:
        observed[-2:], wanted[-2:] = [sum(observed[-2:])], [sum(wanted[-2:])]
    assert len(wanted) > 3
    return float(stats.chisquare(observed, wanted).pvalue)


def test_a_seed_means_the_same_text_alone_and_in_company(service: Service) -> None:
    """B6: with any drafter, others interleaved, three in parallel."""

    def text(seed: int, draft: str | None = "d3") -> str:
        asked = complete("toy", "once", max_tokens=40, **drafting("toy", draft, 4))
        answer = service.ask(COMPLETION, {**asked, "temperature": 1.0, "seed": seed})
        assert "seed" not in answer  # none is claimed, so no other one
        return text_of(answer)

    seven = text(7)
    assert text(8) != seven
    assert text(7) == seven
    for draft in (None, *DRAFTS):
        service.complete("toy", "something in between", max_tokens=5)
        assert text(7, draft) == seven, draft
    with ThreadPoolExecutor(3) as pool:
        assert list(pool.map(text, [7, 8, 7, 9, 7, 8])) == [
            seven, text(8), seven, text(9), seven, text(8)
        ]  # fmt: skip


FIELDS: list[dict[str, Any]] = [
    {"temperature": 0.3},
    {"temperature": 2},
    {"top_p": 0.3},
    {"top_k": 2},
    {"min_p": 0.4},
    {"seed": 6},
    {"presence_penalty": 2},
    {"frequency_penalty": 1.5},
    {"repetition_penalty": 1.5},
    {"logit_bias": {"101": 100}},
    {"logit_bias": {str(VOCAB - 6): 100}},  # an end id
    {"logit_bias": {str(VOCAB - 6): 100}, "min_tokens": 7},
    {"logit_bias": {str(VOCAB - 6): 100}, "ignore_eos": True},
    {"max_tokens": 7},
    {"stop": ["a", "e", "o"]},
]


@pytest.mark.parametrize("fields", FIELDS, ids=str)
def test_a_sampling_field_has_the_same_effect_with_any_draft(
    service: Service, fields: dict[str, Any]
) -> None:
    """E4: what changes the text in plain mode changes it in the same way under speculation."""
    base = complete("toy", "once upon a time", max_tokens=48, temperature=1.0, seed=5)

    def text(more: Mapping[str, Any], draft: str | None) -> tuple[str, str]:
        answer = service.ask(COMPLETION, {**base, **more, **drafting("toy", draft, 5)})
        return text_of(answer), answer["choices"][0]["finish_reason"]

    plain = text(fields, None)
    assert plain != text({}, None)
    for draft in DRAFTS:
        assert text(fields, draft) == plain, draft


@pytest.mark.parametrize(
    "fields",
    [{"suffix": "x"}, {"grammar": "x"}, {"best_of": 3}, {"mirostat": 1}, {"top_k": -1}],
    ids=str,
)
def test_what_is_refused_is_refused_in_both_modes(service: Service, fields: dict[str, Any]) -> None:
    """E4: by name, with the same body."""
    bodies = []
    for draft in (None, "d1"):
        response = service.post(
            COMPLETION, {**complete("toy", "x"), **fields, **drafting("toy", draft)}
        )
        assert response.status_code == 400
        bodies.append(response.json())
    assert bodies[0] == bodies[1]
    [name] = fields
    assert bodies[0]["error"]["param"] == name


# -- in company --------------------------------------------------------------------------------


@pytest.mark.parametrize("model", ["lanes", "toy"])
def test_four_conversations_at_once_give_the_texts_they_give_alone(
    service: Service, model: str
) -> None:
    toy = LANES if model == "lanes" else TOY
    chats = [f"number {index}: " + "word " * index for index in range(8)]
    drafts = ["d1", "d3", "ngram", None] * 2

    def text(message: str, draft: str | None) -> str:
        answer = service.chat(model, message, max_tokens=100, **drafting(model, draft, 5))
        return text_of(answer)

    expected = [spoken(toy, chat_ids(message), 100) for message in chats]
    assert [text(*one) for one in zip(chats, drafts, strict=True)] == expected
    with ThreadPoolExecutor(4) as pool:
        assert list(pool.map(text, chats, drafts)) == expected
    assert service.model(model)["loads"] == 1


def test_tokens_are_bytes_of_the_tokenizer_only(service: Service) -> None:
    """Nothing that is said has an id past the tokenizer's, whatever the temperature."""
    asked = complete("toy", "x", max_tokens=300, **drafting("toy", "d4", 8))
    answer = service.ask(COMPLETION, asked | {"temperature": 2.0})
    assert answer["usage"]["completion_tokens"] == 300
    assert len(text_of(answer)) >= 300
    letters = set("".join(piece.decode() for piece in PIECES if piece.isascii()))
    assert set(text_of(answer)) <= letters
