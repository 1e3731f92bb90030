"""The parser's tables over a model's vocabulary: made when the first request has a grammar, on a
thread of their own, while the conversations of others go on."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import Future

from homespecd.bundle.tokenizer import Tokenizer
from homespecd.decoding.grammar import GrammarVocabulary
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


class GrammarTables:
    """The tables of one model, and the requests that wait for them. Used by the engine's thread.

    Args:
        make: makes them; called once, on another thread.
        wake: called there when they are made: `release` has something to do.
    """

    def __init__(self, make: Callable[[], GrammarVocabulary], *, wake: Callable[[], None]) -> None:
        self._make = make
        self._wake = wake
        self._made: Future[GrammarVocabulary] | None = None
        self._held: dict[int, Callable[[], None]] = {}

    def get(self) -> GrammarVocabulary:
        """The tables; waits for them. Raises what making them raised."""
        return self._begun().result()

    def hold(self, request_id: int, begin: Callable[[], None]) -> bool:
        """Whether the request has to wait; `release` calls `begin` when it has waited."""
        if self._begun().done():
            return False
        self._held[request_id] = begin
        return True

    def cancel(self, request_id: int) -> None:
        """The request need not begin."""
        self._held.pop(request_id, None)

    def release(self) -> None:
        """Begin what has waited, in its order."""
        if not self._held or not self._begun().done():
            return
        held, self._held = self._held, {}
        for begin in held.values():
            begin()

    def _begun(self) -> Future[GrammarVocabulary]:
        if self._made is None:
            self._made = Future()
            # A daemon: a worker that is told to stop does not wait for tables.
            threading.Thread(
                target=self._run, args=(self._made,), name="grammars", daemon=True
            ).start()
        return self._made

    def _run(self, made: Future[GrammarVocabulary]) -> None:
        try:
            made.set_result(self._make())
        except BaseException as error:
            made.set_exception(error)
        self._wake()
