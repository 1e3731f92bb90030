"""Grammars and JSON schemas as a constraint, by llguidance. The only module that imports it.

llguidance is an Earley parser over bytes that says for every token of a vocabulary whether its
bytes can go on from here. It can take tokens back, which is what makes it fit for blocks.
"""

from __future__ import annotations

import copy
import re
from collections.abc import Callable, Collection, Sequence

import llguidance
import numpy as np
import numpy.typing as npt

from homespecd.decoding.constraint import JSON_BLANKS, GrammarSpec
from homespecd.decoding.multiples import too_many_remainders
from homespecd.decoding.sequences import common_prefix
from homespecd.errors import RequestError

# A grammar comes from outside: no schema is echoed into errors. Building one, and the first look at
# what may come, can take seconds all the same (`worker.grammars` has it done beside the steps).
_LIMITS = llguidance.LLParserLimits(max_grammar_size=200_000, verbose_errors=False)

# No block is longer.
_REMEMBERED = 128


class GrammarVocabulary:
    """A vocabulary as llguidance wants it; made once per model (half a second for 49,152 ids).

    Args:
        pieces: the bytes of every id, b"" for ids that are never emitted.
        encode: text to ids as the model knows it; for stretches that a grammar leaves no choice in.
        special: ids that are no part of a text.
        end_ids: ids that end the text, at least one.
    """

    def __init__(
        self,
        pieces: Sequence[bytes],
        *,
        encode: Callable[[str], Sequence[int]],
        special: Collection[int],
        end_ids: Collection[int],
    ) -> None:
        self.size = len(pieces)
        ends = sorted(end_ids)
        self.end_ids = frozenset(ends)
        self._tokens = llguidance.LLTokenizer(
            llguidance.TokenizerWrapper(_Pieces(pieces, encode, sorted(special), ends[0])),
            n_vocab=self.size,
            eos_token=ends,
        )

    def matcher(self, spec: GrammarSpec) -> llguidance.LLMatcher:
        """A matcher at the beginning of the text. Raises RequestError (400): it cannot be used."""
        if too_many_remainders(spec.text):
            raise RequestError(
                f"{spec.param} cannot be used: its multiples of numbers have too many remainders",
                param=spec.param,
                hint="in multipleOf use rounder numbers, or fewer different ones",
            )
        try:
            matcher = llguidance.LLMatcher(
                self._tokens, _definition(spec), log_level=0, limits=_LIMITS
            )
            fault = matcher.get_error()
        except ValueError as error:
            fault = str(error)
        if fault:
            raise RequestError(
                f"{spec.param} cannot be used: {in_our_words(fault)}", param=spec.param
            )
        return matcher


class Grammar:
    """One answer's constraint.

    Args:
        prompt_length: tokens[prompt_length:] of a sequence are the text.

    Raises:
        RequestError: 400, the grammar cannot be used.
    """

    def __init__(
        self, vocabulary: GrammarVocabulary, spec: GrammarSpec, *, prompt_length: int
    ) -> None:
        self._size = vocabulary.size
        self._end_ids = vocabulary.end_ids
        self._spec = spec
        self._prompt_length = prompt_length
        self._matcher = vocabulary.matcher(spec)
        self._taken: list[int] = []
        # Bit masks of the last prefixes of `_taken`: draft and target ask about the same ones.
        self._known: dict[int, bytes] = {}

    def anew(self, *, prompt_length: int) -> Grammar:
        """The same constraint for another answer, in no time. Of one that has followed no text yet.

        Args:
            prompt_length: of that answer.
        """
        assert not self._taken
        other = copy.copy(self)
        other._prompt_length = prompt_length
        other._matcher = self._matcher.deep_copy()
        other._taken, other._known = [], dict(self._known)
        return other

    def impossible(self, tokens: Sequence[int]) -> npt.NDArray[np.int64]:
        self._follow(tokens)
        at = len(self._taken)
        mask = self._known.get(at)
        if mask is None:
            mask = self._known[at] = self._matcher.compute_bitmask()
            self._check()
            self._known.pop(at - _REMEMBERED, None)
        bits = np.frombuffer(mask, dtype=np.uint8)
        allowed = np.unpackbits(bits, count=self._size, bitorder="little")
        return np.flatnonzero(allowed == 0)

    def possible_run(self, tokens: Sequence[int], proposal: Sequence[int]) -> int:
        self._follow(tokens)
        if len(self._taken) < len(tokens) - self._prompt_length:
            return 0  # the text has ended already
        return self._matcher.validate_tokens(list(proposal))

    def _follow(self, tokens: Sequence[int]) -> None:
        """Take the text in, up to its end: a proposal may have gone on past it all the same.

        The end itself is never taken: llguidance counts it in some states and not in others, so
        that it could not be taken back.
        """
        text = tokens[self._prompt_length :]
        keep = common_prefix(self._taken, text)
        if keep < len(self._taken):
            self._matcher.rollback(len(self._taken) - keep)
            del self._taken[keep:]
            self._known = {at: ids for at, ids in self._known.items() if at <= keep}
        for token in text[keep:]:
            if token in self._end_ids:
                return
            self._matcher.consume_token(token)
            self._check()
            self._taken.append(token)

    def _check(self) -> None:
        if self._matcher.is_error():
            where = "cannot be followed any further" if self._taken else "cannot be followed"
            raise RequestError(
                f"{self._spec.param} {where}: {in_our_words(self._matcher.get_error())}",
                param=self._spec.param,
            )


class _Pieces:
    """What llguidance asks of a tokenizer."""

    bos_token_id = None

    def __init__(
        self,
        pieces: Sequence[bytes],
        encode: Callable[[str], Sequence[int]],
        special: list[int],
        end_id: int,
    ) -> None:
        self._encode = encode
        self.eos_token_id = end_id
        self.tokens = pieces
        self.special_token_ids = special

    def __call__(self, text: bytes) -> list[int]:
        return list(self._encode(text.decode("utf-8", "replace")))


def _definition(spec: GrammarSpec) -> str:
    """In llguidance's own form. Raises ValueError."""
    if spec.kind == "json":
        return llguidance.LLMatcher.grammar_from_json_schema(
            spec.text, overrides={"whitespace_pattern": JSON_BLANKS}
        )
    return llguidance.grammar_from("grammar", spec.text)


def in_our_words(fault: str) -> str:
    """What llguidance says is wrong, without its names for its own parts."""
    lines = [line.strip() for line in fault.splitlines() if line.strip()] or [""]
    first = lines[0]
    if first.startswith("NoExtension"):
        return "it allows no text here that this model can write"
    if first.startswith("panic"):
        return "its parser gives up on it"
    if "too many" in first.lower():
        return "it is too complex"
    if first.endswith("regex parse error:"):
        reason = next((line for line in lines if line.startswith("error: ")), "")
        first = f"{first} {reason.removeprefix('error: ')}".rstrip(": ")
    # A regular expression is quoted as its tree.
    return re.sub(r":\s+\((And|Or|Not|Regex|SearchRegex) .*", "", first) or "no reason was given"
