"""From logits to the distribution of the next token, and to the replayable draw from it.

The order, and every tie:
1. repetition penalty, presence and frequency penalties, logit_bias, then ids that may not come now
   (banned ids; end ids before min_tokens; what a constraint does not allow) are made impossible;
2. temperature 0: all the probability on the highest logit, the lowest id among equals;
3. temperature divides the logits;
4. top_k keeps exactly k ids (or all there are): the highest, the lower id among equals;
5. top_p keeps the fewest ids, highest first and the lower id first among equals, that together hold
   at least top_p of what top_k left; never none;
6. min_p keeps ids at least min_p times as likely as the likeliest;
7. what is left is normalised.

Logits come from a model whose output may be padded past the tokenizer's vocabulary (those ids are
never emitted) or, for a draft, narrower than the target's (missing ids are impossible).

A row that lies on a device (`decoding.distant`) is asked for its highest ids alone where
step 1 changes at most which ids may come, and greed or top_k look at no others; else it is fetched.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Sequence

import numpy as np
import numpy.typing as npt

from homespecd.decoding.constraint import Constraint
from homespecd.decoding.distant import DistantRow
from homespecd.decoding.noise import gumbel
from homespecd.decoding.params import SamplingParams
from homespecd.decoding.penalties import Penalties
from homespecd.errors import ModelError, RequestError

Floats = npt.NDArray[np.float32] | npt.NDArray[np.float64]
Row = Floats | DistantRow
Ids = npt.NDArray[np.int64]
Probabilities = npt.NDArray[np.float64]

# How many of the likeliest ids top_p sorts at first: a usual nucleus has fewer, and finding so many
# costs a third of sorting a vocabulary of 49,152. Only speed depends on it, not the result.
_FIRST_NUCLEUS = 1024


class Sampler:
    """One request's rule for choosing tokens. Holds no randomness and no position of its own.

    Every method takes the logits of one row, [width], and the sequence that precedes the token to
    be chosen: prompt, output so far and, inside a block, the proposal before that position. Calls
    may come with any sequences in any order.

    Args:
        params: checked sampling parameters.
        vocab_size: ids below it may be emitted (the tokenizer's vocabulary).
        prompt_length: tokens[prompt_length:] of a sequence are the output.
        end_ids: ids that end the text; impossible before `min_tokens` tokens of output.
        banned: ids that are never emitted.
        constraint: what the text as a whole must be.

    Raises:
        RequestError: logit_bias names an id outside the vocabulary.
    """

    def __init__(
        self,
        params: SamplingParams,
        *,
        vocab_size: int,
        prompt_length: int,
        end_ids: Collection[int] = (),
        min_tokens: int = 0,
        banned: Collection[int] = (),
        constraint: Constraint | None = None,
    ) -> None:
        for token in params.logit_bias:
            if not 0 <= token < vocab_size:
                raise RequestError(
                    f"logit_bias names token {token}, which does not exist",
                    param="logit_bias",
                    hint=f"ids are 0 to {vocab_size - 1}",
                )
        self.params = params
        self.vocab_size = vocab_size
        self._prompt_length = prompt_length
        self._min_tokens = min_tokens
        self._constraint = constraint
        self._penalties = Penalties(params, vocab_size=vocab_size, prompt_length=prompt_length)
        self._bias_ids = np.array(list(params.logit_bias.keys()), dtype=np.int64)
        self._bias = np.array(list(params.logit_bias.values()), dtype=np.float64)
        self._banned = _sorted_ids(banned, vocab_size)
        self._banned_early = _sorted_ids({*banned, *end_ids}, vocab_size)
        # How many of the highest logits decide, 0 = any may.
        changed = self._penalties.active or self._bias_ids.size > 0 or constraint is not None
        self._few = 0 if changed else 1 if params.greedy else params.top_k

    def adjusted(self, logits: Floats, tokens: Sequence[int]) -> Floats:
        """Step 1: logits [vocab_size] after penalties, bias and bans (−inf = impossible).

        Without any of those it is a view of `logits` in its own dtype: nothing is copied.
        """
        assert logits.ndim == 1, "one row at a time"
        row = logits[: self.vocab_size]
        if row.size < self.vocab_size:
            missing = np.full(self.vocab_size - row.size, -np.inf, dtype=row.dtype)
            row = np.concatenate([row, missing])
        banned = self._banned_now(tokens)
        bound = self._constraint is not None
        if not (self._penalties.active or self._bias_ids.size or banned.size or bound):
            return row
        changed = row.astype(np.float64)
        if self._penalties.active:
            self._penalties.apply(changed, tokens)
        changed[self._bias_ids] += self._bias
        changed[banned] = -np.inf
        if self._constraint is not None:
            changed[self._constraint.impossible(tokens)] = -np.inf
        return changed

    def probabilities(self, logits: Row, tokens: Sequence[int]) -> Probabilities:
        """Steps 1–7: float64 [vocab_size], sums to 1.

        Raises:
            ModelError: the logits hold NaN or +inf, or leave no id possible.
        """
        ids, row = self._candidates(logits, tokens)
        result = np.zeros(self.vocab_size)
        if self.params.greedy:
            best = _argmax(row)
            result[best if ids is None else ids[best]] = 1.0
            return result
        ids, scaled = self._support(ids, row)
        weights = np.exp(scaled, out=scaled)
        weights /= weights.sum()
        if ids is None:
            return weights
        result[ids] = weights
        return result

    def draw(self, logits: Row, tokens: Sequence[int]) -> int:
        """The replayable draw: the same for the same logits, sequence length and seed.

        Greedy is the argmax. With a seed it is the argmax of the logits after steps 1–6 plus Gumbel
        noise for position len(tokens), which is distributed as `probabilities`.

        Raises:
            ModelError: as for `probabilities`.
            ValueError: the parameters fix no draw (neither greedy nor seeded).
        """
        ids, row = self._candidates(logits, tokens)
        if self.params.greedy:
            best = _argmax(row)
            return best if ids is None else int(ids[best])
        if self.params.seed is None:
            raise ValueError("a request without a seed has no replayable draw")
        ids, scaled = self._support(ids, row)
        scaled += gumbel(self.params.seed, len(tokens), self.vocab_size, ids=ids)
        best = int(scaled.argmax())
        return best if ids is None else int(ids[best])

    def _candidates(self, logits: Row, tokens: Sequence[int]) -> tuple[Ids | None, Floats]:
        """Step 1: ascending ids (None = all) that hold every one steps 2 to 4 leave, and theirs."""
        if isinstance(logits, np.ndarray):
            return None, self.adjusted(logits, tokens)
        if self._few:
            banned = self._banned_now(tokens)
            found = logits.top(self.vocab_size, self._few + banned.size)
            if found is not None:
                ids, row = found
                if banned.size:
                    left = ~np.isin(ids, banned)
                    ids, row = ids[left], row[left]
                return ids, row
        return None, self.adjusted(logits.whole(), tokens)

    def _banned_now(self, tokens: Sequence[int]) -> Ids:
        early = len(tokens) - self._prompt_length < self._min_tokens
        return self._banned_early if early else self._banned

    def _support(self, ids: Ids | None, row: Floats) -> tuple[Ids | None, npt.NDArray[np.float64]]:
        """Steps 3–6: ascending ids that are left (None = all), and log-weights ≤ 0 of those."""
        params = self.params
        peak = _checked(float(row.max()))
        if 0 < params.top_k < row.size:
            chosen = _largest(row, params.top_k)
            ids = chosen if ids is None else ids[chosen]
            row = row[chosen]
        # Peak first: then a tiny temperature can only overflow to −inf, which is right.
        scaled = row.astype(np.float64)
        scaled -= peak
        with np.errstate(over="ignore"):
            scaled /= params.temperature
        if params.top_p < 1.0:
            chosen = _largest(row, _nucleus_size(scaled, params.top_p))
            ids = chosen if ids is None else ids[chosen]
            scaled = scaled[chosen]
        if params.min_p > 0.0:
            chosen = np.flatnonzero(np.exp(scaled) >= params.min_p)
            ids = chosen if ids is None else ids[chosen]
            scaled = scaled[chosen]
        return ids, scaled


def _sorted_ids(ids: Collection[int], vocab_size: int) -> Ids:
    """Distinct ids below vocab_size: past it nothing is emitted anyway."""
    return np.array(sorted({i for i in ids if i < vocab_size}), dtype=np.int64)


def _argmax(row: Floats) -> int:
    best = int(row.argmax())  # the lowest id among equals, the first NaN if there is one
    _checked(float(row[best]))
    return best


def _checked(peak: float) -> float:
    """`peak`, the highest logit (NaN if any is NaN). Raises ModelError where none can be chosen."""
    if math.isfinite(peak):
        return peak
    if peak == -math.inf:
        raise ModelError("no token is possible: every logit is -inf")
    raise ModelError(f"the model returned a logit that is {'NaN' if math.isnan(peak) else 'inf'}")


def _largest(row: Floats, count: int) -> Ids:
    """Ascending indices of the `count` largest entries, the lower index first among equals."""
    edge = np.partition(row, row.size - count)[row.size - count]
    above = np.flatnonzero(row > edge)
    level = np.flatnonzero(row == edge)[: count - above.size]
    return np.sort(np.concatenate([above, level]))


def _nucleus_size(scaled: npt.NDArray[np.float64], top_p: float) -> int:
    """How many entries, highest first, it takes to hold top_p of the weight."""
    goal = top_p * float(np.exp(scaled).sum())
    start = max(0, scaled.size - _FIRST_NUCLEUS)
    held = np.cumsum(np.exp(np.sort(np.partition(scaled, start)[start:])[::-1]))
    if held[-1] < goal and start > 0:
        held = np.cumsum(np.exp(np.sort(scaled)[::-1]))
    return min(int(np.searchsorted(held, goal)) + 1, scaled.size)
