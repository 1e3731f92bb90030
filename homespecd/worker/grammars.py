"""Grammars for a model's vocabulary: the parser's tables over it, and one grammar's beginning.

Both are made beside the engine's steps (`worker.requests`).
"""

from __future__ import annotations

from homespecd.bundle.tokenizer import Tokenizer
from homespecd.decoding.constraint import GrammarSpec
from homespecd.decoding.grammar import Grammar, GrammarVocabulary
from homespecd.errors import RequestError


def grammar_vocabulary(tokenizer: Tokenizer, *, vocab_size: int) -> GrammarVocabulary:
    """The ids below `vocab_size` as grammars are written over them: a third of a second for 49,152,
    of which half holds up all of Python.

    Raises:
        RequestError: the model has no end id, so no text could ever be complete.
    """
    ids = range(vocab_size)
    end_ids = [token for token in ids if token in tokenizer.eos_ids]
    if not end_ids:
        raise RequestError(
            "this model knows no end of a text, so none can be asked for",
            code="unsupported_parameter",
        )
    return GrammarVocabulary(
        [tokenizer.token_bytes(token) for token in ids],
        encode=lambda text: tokenizer.encode(text, parse_special=False),
        special=[token for token in ids if tokenizer.is_special(token)],
        end_ids=end_ids,
    )


def begun(vocabulary: GrammarVocabulary, spec: GrammarSpec) -> Grammar:
    """A grammar that knows what a text may begin with: for one that is made to be difficult, that
    and the building take seconds. Whoever answers takes it `anew`.

    Raises:
        RequestError: it cannot be used.
    """
    grammar = Grammar(vocabulary, spec, prompt_length=0)
    grammar.impossible(())
    return grammar
