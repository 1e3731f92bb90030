"""Several answers at once: more tokens in all, and nobody pays for what another one gains."""

from __future__ import annotations

import pytest

from homespecd.governor.measured import DrafterSpec, MeasuredGovernor
from tests.governor_answers import Lookup
from tests.governor_company import decode_together
from tests.governor_machine import FP32, Machine
from tests.governor_sim import Fixed
from tests.governor_texts import CATEGORIES, INT4_EXACT, real_answers

LOOKUP = Lookup()
COMPUTE_BOUND, MEMORY_BOUND = ("int4", INT4_EXACT), ("fp32", FP32)


def compared(
    kind: tuple[str, dict[int, float]], categories: list[str]
) -> tuple[float, list[float], list[float]]:
    """Against nobody speculating: tokens in all; each one's time per token; times ÷ their mean."""
    precision, curve = kind
    machine = Machine(curve)
    texts = dict(zip(CATEGORIES, real_answers(precision, [LOOKUP], 128), strict=True))
    answers = [texts[one] for one in categories]
    governor = MeasuredGovernor([DrafterSpec("ngram", 16)], step_ms=curve)
    plain = decode_together(machine, [LOOKUP], answers, Fixed(), steps=400, learning=200)
    auto = decode_together(machine, [LOOKUP], answers, governor, steps=700, learning=400)
    own = auto.ms_per_token
    slower = [a / b for a, b in zip(own, plain.ms_per_token, strict=True)]
    in_all = sum(auto.tokens) / auto.ms / (sum(plain.tokens) / plain.ms)
    return in_all, slower, [ms / (sum(own) / len(own)) for ms in own]


@pytest.mark.parametrize("kind", [COMPUTE_BOUND, MEMORY_BOUND], ids=["compute", "memory"])
@pytest.mark.parametrize(
    "categories",
    [
        ["chat", "code edit"],
        ["chat", "summary", "translation", "list copy"],
        ["chat", "question", "code edit", "translation"],
    ],
    ids=["2", "4", "4-one-chat"],
)
def test_a_chat_is_not_held_up_by_those_who_copy(
    kind: tuple[str, dict[int, float]], categories: list[str]
) -> None:
    in_all, slower, _ = compared(kind, categories)

    assert in_all > 1.04
    assert max(slower) <= (1.22 if len(categories) == 2 else 1.12)


def test_on_a_compute_bound_machine_shares_stay_even() -> None:
    for categories in (
        ["chat", "list copy"],
        ["chat", "summary", "translation", "list copy"],
        ["chat", "question", "code edit", "translation"],
    ):
        _, _, shares = compared(COMPUTE_BOUND, categories)
        assert max(shares) <= 1.3


@pytest.mark.parametrize("kind", [COMPUTE_BOUND, MEMORY_BOUND], ids=["compute", "memory"])
@pytest.mark.parametrize("clients", [2, 4])
def test_where_all_of_them_gain_steps_may_be_long(
    kind: tuple[str, dict[int, float]], clients: int
) -> None:
    in_all, slower, _ = compared(kind, ["question"] * clients)

    assert in_all > 1.3
    assert max(slower) < 1.0


@pytest.mark.parametrize("kind", [COMPUTE_BOUND, MEMORY_BOUND], ids=["compute", "memory"])
def test_four_who_gain_nothing_lose_nothing(kind: tuple[str, dict[int, float]]) -> None:
    in_all, slower, shares = compared(kind, ["chat"] * 4)

    assert in_all >= 0.98
    assert max(slower) <= 1.05
    assert max(shares) <= 1.05
