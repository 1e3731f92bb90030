"""What the toy decoder must say, in plain Python: an oracle with none of the project's code in it.

The toy (built as ONNX by `tests.tiny_onnx`) keeps in its KV cache, for the token `t` at position
`p`, numbers that add up (with a weight per cell) to `(t + h(t, p)) mod 2039`. The state of a row is
the sum of that over every cached token, weighted by the *slot* it lies in, and the logits are a
permutation chosen by the state. So a stale, missing, shifted or swapped cache entry, a wrong
position id or a wrong mask changes the text from there on. All numbers are small integers or
eighths: exact in float16, so tests compare with `==`.

    toy = Toy(script=say("Hello 😀"))        # what to build, shared with `make_toy(folder, toy)`
    oracle = Oracle(toy)
    oracle.logits([72, 105])                 # list of toy.width floats for the token that follows
    oracle.greedy([72, 105], 20)             # token ids, ends with an end id where one comes
    oracle.probabilities([72, 105], 1.0)     # exact softmax, one float per id
    oracle.text(ids)                         # bytes → text, control tokens left out
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

MODULUS = 2039  # prime, below 2048: every cell is exact in float16
PERMUTED = 521  # prime, the most ids a toy can have
SLOT_CYCLE = 1021
FORCED = 184.0  # added to a scripted token's logit; the sum stays exact in float16
SUPPRESSED = -64.0  # added to ids outside the alphabet: they never win and are never drawn
PAD_WINS = 184.0

# Ids 0…255 are the bytes themselves, then merges, then control tokens.
MERGES: tuple[tuple[bytes, bytes], ...] = (
    (b"t", b"h"),
    (b"th", b"e"),
    (b" ", b"the"),
    (b"i", b"n"),
    (b"e", b"r"),
    (b" ", b"a"),
    (b"\xf0", b"\x9f"),  # an emoji's first half
    (b"\x98", b"\x80"),  # 😀 = two tokens; every other 4-byte emoji three
)
CONTROL = ("<|end|>", "<|stop|>", "<|system|>", "<|user|>", "<|assistant|>", "<|pad|>")
PIECES: tuple[bytes, ...] = tuple(bytes([b]) for b in range(256)) + tuple(a + b for a, b in MERGES)
END, STOP, SYSTEM, USER, ASSISTANT, PAD = (len(PIECES) + i for i in range(len(CONTROL)))
END_IDS = (END, STOP)  # two end-of-text ids
VOCAB = len(PIECES) + len(CONTROL)  # what the tokenizer knows
_PRINTABLE = (*range(0x20, 0x7F), 0x0A, *range(256, 262))


@dataclass(frozen=True)
class Toy:
    """Everything that can be chosen about a toy; the defaults are a plain, well-made target.

    What it says
        behaviour: "perfect"; "wrong" (its favourite is never the perfect one's); "every_third"
            (wrong for tokens at positions divisible by 3). For drafts of a "perfect" target.
        alphabet: which ids can win: "printable" (ASCII, newline and merges of them), "bytes" (all
            but control tokens; mostly not UTF-8), "all" (control and end tokens too).
        script: {offset: token id} said for certain while the history is intact, that is while every
            scripted offset already passed holds its scripted token. Offsets are absolute positions,
            or, with `script_after`, count from the last occurrence of that id (the first token
            after it has offset 1, and the script starts anew at every occurrence). See `say`.
        spread: logit units between neighbours; 1/8 gives a favourite of about one half at
            temperature 1, less is flatter. A power of two.
        fail_at: a step that carries a row at this position fails inside onnxruntime.
        nan_at: the row at this position has NaN logits.
        not_causal: logits of a row depend on later rows of the same step (single steps are right).

    How it is exported
        layout: "single" (model.onnx), "merged" (decoder_model_merged.onnx with use_cache_branch),
            "two_file" (decoder_model.onnx and decoder_with_past_model.onnx), "lanes" (the graphs of
            docs/design.md for 1, 2 and 4 lanes, as model.lanesN.onnx).
        position_ids, attention_mask: whether the graph has these inputs.
        dtype: "float32" or "float16", for caches and logits.
        layers, heads, head_dim: shape of the cache; has no influence on what is said.
        pad_vocab: ids past the tokenizer's; pad_wins: they have the highest logits of all.
        external_data: weights in a file beside the graph (model.onnx_data).
        last_only: logits for the last row only.
        ballast_bytes: size of a weight that changes nothing, for tests of memory.

    What its folder says
        context: max_position_embeddings.
        config_eos, generation_eos, tokenizer_eos: end ids in config.json (one is written as a
            scalar), generation_config.json and tokenizer_config.json (at most one).
    """

    behaviour: str = "perfect"
    alphabet: str = "printable"
    script: Mapping[int, int] = field(default_factory=dict)
    script_after: int | None = None
    spread: float = 0.125
    fail_at: int | None = None
    nan_at: int | None = None
    not_causal: bool = False

    layout: str = "single"
    position_ids: bool = True
    attention_mask: bool = True
    dtype: str = "float32"
    layers: int = 2
    heads: int = 2
    head_dim: int = 4
    pad_vocab: int = 0
    pad_wins: bool = False
    external_data: bool = False
    last_only: bool = False
    ballast_bytes: int = 0

    context: int = 4096
    config_eos: tuple[int, ...] = (END,)
    generation_eos: tuple[int, ...] = END_IDS
    tokenizer_eos: int | None = END

    def __post_init__(self) -> None:
        assert self.behaviour in ("perfect", "wrong", "every_third"), self.behaviour
        assert self.alphabet in ("printable", "bytes", "all"), self.alphabet
        assert self.layout in ("single", "merged", "two_file", "lanes"), self.layout
        assert self.dtype in ("float32", "float16"), self.dtype
        assert self.width <= PERMUTED

    @property
    def width(self) -> int:
        """Width of the logits."""
        return VOCAB + self.pad_vocab


def encode(text: str) -> list[int]:
    """Token ids of `text` as the toy's tokenizer makes them; control tokens are recognised."""
    ids: list[int] = []
    while text:
        found = [(text.index(name), name) for name in CONTROL if name in text]
        start, name = min(found, default=(len(text), ""))
        ids += _encode_bytes(text[:start].encode())
        if name:
            ids.append(len(PIECES) + CONTROL.index(name))
        text = text[start + len(name) :]
    return ids


def _encode_bytes(data: bytes) -> list[int]:
    parts = [bytes([b]) for b in data]
    for left, right in MERGES:  # byte-pair merges in order of rank
        i = 0
        while i + 1 < len(parts):
            if (parts[i], parts[i + 1]) == (left, right):
                parts[i : i + 2] = [left + right]
            i += 1
    return [PIECES.index(part) for part in parts]


def say(text: str, *, end: int | None = END, start: int = 1) -> dict[int, int]:
    """A `script` that says `text` from offset `start` on, then `end` (None = go on freely)."""
    ids = encode(text) + ([] if end is None else [end])
    return {start + i: token for i, token in enumerate(ids)}


class Oracle:
    """What a toy says after a list of tokens; see the module."""

    def __init__(self, toy: Toy) -> None:
        self.toy = toy

    def logits(self, tokens: Sequence[int]) -> list[float]:
        """Logits [width] for the token that follows `tokens` (at least one)."""
        toy = self.toy
        last = len(tokens) - 1
        if last == toy.nan_at:
            return [math.nan] * toy.width
        state = sum(
            (slot % SLOT_CYCLE + 1)
            * ((t + t * 613 + slot * 331 + (t + 1) * (slot + 1) * 17) % MODULUS)
            for slot, t in enumerate(tokens)
        )
        state %= MODULUS
        slope, offset = 1 + state % (PERMUTED - 1), (state * 7 + 3) % PERMUTED
        logits = [
            (slope * v + offset) % PERMUTED * toy.spread + bias
            for v, bias in enumerate(biases(toy))
        ]
        forced = self._scripted(tokens)
        if forced is not None:
            logits[forced] += FORCED
        if toy.behaviour == "wrong" or (toy.behaviour == "every_third" and (last + 1) % 3 == 0):
            logits = logits[1:VOCAB] + logits[:1] + logits[VOCAB:]
        return logits

    def _scripted(self, tokens: Sequence[int]) -> int | None:
        toy, anchor = self.toy, 0
        if toy.script_after is not None:
            if toy.script_after not in tokens:
                return None
            anchor = max(i for i, t in enumerate(tokens) if t == toy.script_after)
        spoken = tokens[anchor:]
        if any(toy.script.get(i, t) != t for i, t in enumerate(spoken)):
            return None
        return toy.script.get(len(spoken))

    def probabilities(self, tokens: Sequence[int], temperature: float = 1.0) -> list[float]:
        """The softmax of `logits / temperature` over the tokenizer's ids, 0 for padded ids."""
        logits = self.logits(tokens)[:VOCAB]
        top = max(logits)
        weights = [math.exp((x - top) / temperature) for x in logits]
        total = math.fsum(weights)
        return [w / total for w in weights] + [0.0] * self.toy.pad_vocab

    def greedy(
        self, prompt: Sequence[int], max_tokens: int, *, ends: Sequence[int] = END_IDS
    ) -> list[int]:
        """The most likely continuation; an end id is its last element when one comes."""
        tokens, said = list(prompt), list[int]()
        while len(said) < max_tokens and not (said and said[-1] in ends):
            logits = self.logits(tokens)[:VOCAB]  # padded ids are never said
            said.append(max(range(VOCAB), key=lambda v: (logits[v], -v)))
            tokens.append(said[-1])
        return said

    @staticmethod
    def text(tokens: Sequence[int]) -> str:
        """The text of token ids, control tokens left out, broken UTF-8 replaced."""
        return b"".join(PIECES[t] for t in tokens if t < len(PIECES)).decode(errors="replace")


def biases(toy: Toy) -> list[float]:
    """What is added to each id's logit [width]."""
    allowed = {
        "printable": set(_PRINTABLE),
        "bytes": set(range(len(PIECES))),
        "all": set(range(VOCAB)),
    }[toy.alphabet]
    known = [0.0 if v in allowed else SUPPRESSED for v in range(VOCAB)]
    return known + [PAD_WINS if toy.pad_wins else SUPPRESSED] * toy.pad_vocab
