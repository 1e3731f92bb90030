"""Where an answer is cut, and which of its tokens can be seen in its text."""

from __future__ import annotations

import pytest

from homespecd.worker.answer import Answer

END = 99


class Spelled:
    """Token i spells texts[i]; "-" has no text of its own and is the first half of the next."""

    def __init__(self, *texts: str) -> None:
        self._texts = texts

    def push(self, token: int) -> str:
        return "" if token == END or self._texts[token] == "-" else self._texts[token]

    def finish(self) -> str:
        return ""


def shown(texts: list[str], *stop: str, ends: bool = False) -> tuple[str, list[int]]:
    """The text, and how many tokens were shown after each."""
    answer = Answer(
        stream=Spelled(*texts), stop=stop, end_ids=frozenset({END}), max_tokens=len(texts) + ends
    )
    tokens = [*range(len(texts)), *[END] * ends]
    text, counts = "", []
    for token in tokens:
        kept = answer.commit([token])
        text += kept.text
        counts.append(kept.shown)
        if kept.finish_reason is not None:
            break
    return text, counts


@pytest.mark.parametrize(
    ("texts", "stop", "ends", "text", "counts"),
    [
        (["a", "b", "c"], (), False, "abc", [1, 2, 3]),
        (["a", "b", "c"], ("x",), True, "abc", [1, 2, 3, 4]),
        # A stop string that is a token, one in a token, over two, and one that begins in a token.
        (["a", "b", "c"], ("b",), False, "a", [1, 1]),
        (["a", "xbx"], ("b",), False, "ax", [1, 2]),
        (["a", "b", "c", "d"], ("bc",), False, "a", [1, 1, 1]),
        (["a", "xb", "c"], ("bc",), False, "ax", [1, 2, 2]),
        # What was held back for nothing is shown after all.
        (["a", "b", "d"], ("bc",), False, "abd", [1, 1, 3]),
        (["a", "b"], ("bc",), True, "ab", [1, 1, 3]),
        (["a", "b"], ("bc",), False, "ab", [1, 2]),
        # Half a character belongs to what completes it.
        (["a", "-", "é", "b"], ("b",), False, "aé", [1, 1, 3, 3]),
        (["a", "-", "é"], ("é",), False, "a", [1, 1, 1]),
    ],
)
def test_tokens_are_shown_with_their_text(
    texts: list[str], stop: tuple[str, ...], ends: bool, text: str, counts: list[int]
) -> None:
    assert shown(texts, *stop, ends=ends) == (text, counts)


def test_a_block_is_as_its_tokens() -> None:
    answer = Answer(
        stream=Spelled("a", "b", "c", "d"), stop=("bc",), end_ids=frozenset(), max_tokens=9
    )
    kept = answer.commit([0, 1, 2, 3])
    assert (kept.count, kept.text, kept.finish_reason, kept.shown) == (3, "a", "stop", 1)
