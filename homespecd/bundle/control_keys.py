"""Which characters a text must hold to spell a control token."""

from __future__ import annotations

from collections.abc import Iterable


def key_characters(control_tokens: Iterable[str]) -> frozenset[str]:
    """A small set of characters of which every control token's text has at least one.

    Punctuation is preferred: it leaves words, and what chat templates ask about them, alone.
    """
    left = [text for text in control_tokens if text]
    keys: set[str] = set()
    while left:
        counts: dict[str, int] = {}
        for text in left:
            for one in set(text):
                counts[one] = counts.get(one, 0) + 1
        best = max(counts, key=lambda one: (not (one.isalnum() or one.isspace()), counts[one], one))
        keys.add(best)
        left = [text for text in left if best not in text]
    return frozenset(keys)
