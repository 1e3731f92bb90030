"""A model without weights, for tests: its logits are a function of the whole sequence.

`FakeModel` implements `homespecd.runtime.step.Model`. The next token's logits come from a callable
of the tokens in the cache, position by position, so a cache that was rewound too far, too little or
not at all gives other tokens at once; a memoryless toy would hide that. It is strict where a real
model is forgiving: caches of another model, one cache twice in a step, more lanes than it has and
positions past the context raise, and the logits of one step turn into NaN at the next, so that
nobody keeps them.

    target = FakeModel(HistoryLogits(vocab=16, seed=1))
    draft = FakeModel(WrongEvery(target.logits, 3))       # the target's argmax, save every third
    proposal = drive(drafter.propose(committed, 4, draw))
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Generator, Sequence
from typing import TypeVar

import numpy as np

from homespecd.drafters.protocol import StepResult, Work
from homespecd.errors import ModelError
from homespecd.runtime.step import KVCache, Logits, ModelSpec, Rows

# From all tokens so far (never empty) to float32 [vocab] for the next one.
LogitsOf = Callable[[tuple[int, ...]], Logits]

BYTES_PER_TOKEN = 64

_T = TypeVar("_T")


class FakeClock:
    """A clock that moves when it is told to. Call it for the time in seconds."""

    def __init__(self, now_s: float = 1000.0) -> None:
        self.now_s = now_s

    def __call__(self) -> float:
        return self.now_s

    def advance_ms(self, ms: float) -> None:
        assert ms >= 0
        self.now_s += ms / 1000


class HistoryLogits:
    """Random logits, fixed by the seed and by every token and position before.

    sharpness: standard deviation; 1 is a flat distribution, 8 nearly greedy.
    """

    def __init__(self, vocab: int, *, seed: int = 0, sharpness: float = 2.0) -> None:
        self.vocab = vocab
        self._seed = seed
        self._sharpness = sharpness
        self._known: dict[tuple[int, ...], Logits] = {}

    def __call__(self, tokens: tuple[int, ...]) -> Logits:
        if tokens not in self._known:
            self._known[tokens] = self._logits(tokens)
            self._known[tokens].flags.writeable = False
        return self._known[tokens]

    def _logits(self, tokens: tuple[int, ...]) -> Logits:
        digest = hashlib.blake2b(repr((self._seed, tokens)).encode(), digest_size=8).digest()
        rng = np.random.Generator(np.random.Philox(key=int.from_bytes(digest, "little")))
        return (self._sharpness * rng.standard_normal(self.vocab)).astype(np.float32)


class Scripted:
    """Always continues `script` (all tokens, the prompt included), then token `after`."""

    def __init__(self, vocab: int, script: Sequence[int], *, after: int = 0) -> None:
        self.vocab = vocab
        self._script = tuple(script)
        self._after = after

    def __call__(self, tokens: tuple[int, ...]) -> Logits:
        on_script = tokens == self._script[: len(tokens)] and len(tokens) < len(self._script)
        logits = np.zeros(self.vocab, dtype=np.float32)
        logits[self._script[len(tokens)] if on_script else self._after] = 10.0
        return logits


class WrongEvery:
    """`base`, but at every `period`-th position the logits are shifted by one id.

    period 1 is a draft whose argmax is always wrong, 3 one that is wrong at every third position.
    """

    def __init__(self, base: LogitsOf, period: int) -> None:
        self._base = base
        self._period = period

    def __call__(self, tokens: tuple[int, ...]) -> Logits:
        logits = self._base(tokens)
        return np.roll(logits, 1) if len(tokens) % self._period == 0 else logits


class Padded:
    """`base` with `extra` ids past the vocabulary; the last of them always has the top logit."""

    def __init__(self, base: LogitsOf, extra: int) -> None:
        self._base = base
        self._extra = extra

    def __call__(self, tokens: tuple[int, ...]) -> Logits:
        logits = self._base(tokens)
        padding = np.zeros(self._extra, dtype=np.float32)
        padding[-1] = logits.max() + 100
        return np.concatenate([logits, padding])


class FakeCache:
    """The tokens of one sequence, standing for their keys and values."""

    def __init__(self, owner: FakeModel) -> None:
        self.owner = owner
        self.tokens: list[int] = []

    @property
    def length(self) -> int:
        return len(self.tokens)

    @property
    def nbytes(self) -> int:
        return BYTES_PER_TOKEN * len(self.tokens)

    def rewind_to(self, length: int) -> None:
        if not 0 <= length <= len(self.tokens):
            raise ValueError(f"cannot rewind {len(self.tokens)} tokens to {length}")
        del self.tokens[length:]


class FakeCopyingCache(FakeCache):
    """One that can begin as another does."""

    def take_from(self, other: KVCache, length: int) -> None:
        assert isinstance(other, FakeCache)
        assert other.owner is self.owner
        self.tokens = other.tokens[:length]


class FakeModel:
    """See the module's text.

    Args:
        logits: float32 [vocab] from all tokens so far. Its width is the model's vocab_size.
        context / lanes: as in `ModelSpec`.
        clock, step_ms: with a clock, a step of r rows advances it by step_ms(r).
        fail_at_step: the step with this number (from 1), and only that, raises ModelError.
        width_invariant / logits_last_only: what the spec says; with logits_last_only a step returns
            one row of logits for every entry that asks for any.
        copying: its caches can begin as others do.
    """

    def __init__(
        self,
        logits: LogitsOf,
        *,
        context: int = 512,
        lanes: int = 4,
        clock: FakeClock | None = None,
        step_ms: Callable[[int], float] = lambda rows: 1.0 + 0.1 * rows,
        fail_at_step: int | None = None,
        width_invariant: bool = True,
        logits_last_only: bool = False,
        copying: bool = False,
    ) -> None:
        self.logits = logits
        self._copying = copying
        self.spec = ModelSpec(
            vocab_size=len(logits((0,))),
            context=context,
            lanes=lanes,
            width_invariant=width_invariant,
            logits_last_only=logits_last_only,
            requested_provider="fake",
            provider="fake",
            threads=1,
            weights_bytes=1024,
            kv_bytes_per_token=BYTES_PER_TOKEN,
        )
        self.fail_at_step = fail_at_step
        self.closed = False
        # What each step was: per entry (cache length before, number of rows, logits asked for).
        self.steps: list[list[tuple[int, int, int]]] = []
        self._clock = clock
        self._step_ms = step_ms
        self._lent: list[Logits] = []

    def new_cache(self) -> FakeCache:
        return FakeCopyingCache(self) if self._copying else FakeCache(self)

    def step(self, rows: Sequence[Rows]) -> list[Logits]:
        self._check(rows)
        for logits in self._lent:
            logits.fill(np.nan)
        self.steps.append(
            [(r.cache.length, len(r.tokens), len(r.tokens) - r.logits_from) for r in rows]
        )
        if self._clock is not None:
            self._clock.advance_ms(self._step_ms(sum(len(r.tokens) for r in rows)))
        if len(self.steps) == self.fail_at_step:
            raise ModelError("the fake model was told to fail here")
        self._lent = [self._append(entry) for entry in rows]
        return list(self._lent)

    def close(self) -> None:
        self.closed = True

    def _check(self, rows: Sequence[Rows]) -> None:
        assert not self.closed, "step after close"
        assert 1 <= len(rows) <= self.spec.lanes, f"{len(rows)} entries in {self.spec.lanes} lanes"
        assert len({id(entry.cache) for entry in rows}) == len(rows), "one cache twice in a step"
        for entry in rows:
            assert isinstance(entry.cache, FakeCache), "a cache of another kind"
            assert entry.cache.owner is self, "a cache of another model"
            if entry.cache.length + len(entry.tokens) > self.spec.context:
                raise ValueError(
                    f"{entry.cache.length} + {len(entry.tokens)} rows, context {self.spec.context}"
                )

    def _append(self, entry: Rows) -> Logits:
        cache = entry.cache
        assert isinstance(cache, FakeCache)
        before = cache.length
        cache.tokens.extend(int(token) for token in entry.tokens)
        first = before + entry.logits_from
        if self.spec.logits_last_only and entry.logits_from < len(entry.tokens):
            first = cache.length - 1
        wanted = [self.logits(tuple(cache.tokens[: i + 1])) for i in range(first, cache.length)]
        return np.array(wanted, dtype=np.float32).reshape(-1, self.spec.vocab_size)


def drive(work: Generator[Work, StepResult, _T], *, ms: float = 1.0) -> _T:
    """Run a conversation's work alone, step by step; a model's error is thrown into it."""
    try:
        request = next(work)
        while True:
            try:
                (logits,) = request.model.step([request.rows])
            except ModelError as error:
                request = work.throw(error)
                continue
            total = len(request.rows.tokens)
            request = work.send(StepResult(logits=logits, ms=ms, total_rows=total, lanes=1))
    except StopIteration as stop:
        result: _T = stop.value
        return result


def greedy(model: FakeModel, prompt: Sequence[int], count: int) -> list[int]:
    """The oracle: `count` greedy tokens after `prompt`, from the logits function alone."""
    tokens = list(prompt)
    for _ in range(count):
        tokens.append(int(np.argmax(model.logits(tuple(tokens)))))
    return tokens[len(prompt) :]
