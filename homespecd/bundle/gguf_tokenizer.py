"""The tokenizer inside a GGUF file, written out as the files every other program reads.

A GGUF file carries the vocabulary, the merges and the *name* of a pre-tokenizer, not its rules.
The rules behind a name live here, in a table; a name that is not in it is refused, because a wrong
pre-tokenizer gives text that looks right and numbers that are not.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

from tokenizers import (
    AddedToken,
    Regex,
    Tokenizer,
    decoders,
    models,
    normalizers,
    pre_tokenizers,
)
from tokenizers.normalizers import Normalizer
from tokenizers.pre_tokenizers import PreTokenizer

from homespecd.bundle.end_ids import known_enders
from homespecd.errors import BundleError

_PREFIX = "tokenizer.ggml."
_CONTROL, _USER_DEFINED, _UNUSED = 3, 4, 5  # GGUF's token types that matter here

# Words with one leading non-letter, runs of up to DIGITS digits, punctuation, line breaks, spaces.
_WORDS = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|DIGITS"
    r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)


@dataclass(frozen=True)
class TokenizerFacts:
    """What the rest of an import needs to know about the tokenizer that was written.

    vocab_size: ids the tokenizer knows; the logits may be wider (padding has no token).
    eos_ids: every id that ends an answer, ascending. chat_template: Jinja source, None if absent.
    """

    vocab_size: int
    bos_id: int | None
    add_bos: bool
    eos_ids: tuple[int, ...]
    chat_template: str | None


@dataclass(frozen=True)
class _Family:
    """What a pre-tokenizer's name stands for.

    whole_words: a word that is a token of its own is not split by merges.
    add_bos: the begin-of-text token is added when the file does not say.
    """

    split: Callable[[], PreTokenizer]
    normalize: Callable[[], Normalizer] | None = None
    whole_words: bool = False
    add_bos: bool = False


def _byte_level_words() -> PreTokenizer:
    return pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True)


def _single_digits() -> PreTokenizer:
    digits = pre_tokenizers.Digits(individual_digits=True)
    return pre_tokenizers.Sequence([digits, _byte_level_words()])


def _words(digits: str) -> Callable[[], PreTokenizer]:
    def build() -> PreTokenizer:
        split = pre_tokenizers.Split(Regex(_WORDS.replace("DIGITS", digits)), "isolated")
        raw = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
        return pre_tokenizers.Sequence([split, raw])

    return build


def _families() -> dict[str, _Family]:
    gpt2 = _Family(_byte_level_words)
    llama = _Family(_words(r"\p{N}{1,3}"), whole_words=True, add_bos=True)
    return {
        "gpt2": gpt2,
        "gpt-2": gpt2,
        "smollm": _Family(_single_digits),
        "llama-bpe": llama,
        "llama3": llama,
        "llama-v3": llama,
        "qwen2": _Family(_words(r"\p{N}"), normalize=normalizers.NFC),
    }


def write_tokenizer(metadata: Mapping[str, object], folder: Path) -> TokenizerFacts:
    """Write the tokenizer of a GGUF file into `folder`.

    Files: `tokenizer.json`, `tokenizer_config.json` (begin and end tokens),
    `generation_config.json` (all end ids), and `chat_template.jinja` if the file has a template.

    Args:
        metadata: GGUF keys and their values as plain Python values.

    Raises:
        BundleError: a kind of tokenizer or a pre-tokenizer that is not known, by name, or
            metadata that is missing or contradicts itself.
        OSError: the folder cannot be written.
    """
    family = _family(metadata)
    tokens, types = _vocabulary(metadata)
    tokenizer = _build(tokens, types, _merges(metadata), family)
    control = {text: i for i, text in enumerate(tokens) if types[i] == _CONTROL}
    bos_id = _one_id(metadata, "bos", len(tokens))
    declared = [_one_id(metadata, kind, len(tokens)) for kind in ("eos", "eot", "eom")]
    ends = {i for i in declared if i is not None} | known_enders(control)
    template = metadata.get("tokenizer.chat_template")
    facts = TokenizerFacts(
        vocab_size=len(tokens),
        bos_id=bos_id,
        add_bos=bos_id is not None
        and bool(metadata.get(_PREFIX + "add_bos_token", family.add_bos)),
        eos_ids=tuple(sorted(ends)),
        chat_template=template if isinstance(template, str) and template else None,
    )
    _write(folder, tokenizer, facts, tokens, declared[0])
    return facts


def _write(
    folder: Path, tokenizer: Tokenizer, facts: TokenizerFacts, tokens: list[str], eos: int | None
) -> None:
    _text(folder / "tokenizer.json", tokenizer.to_str())
    config = {
        "add_bos_token": facts.add_bos,
        "bos_token": None if facts.bos_id is None else tokens[facts.bos_id],
        "eos_token": None if eos is None else tokens[eos],
    }
    _text(folder / "tokenizer_config.json", json.dumps(config, ensure_ascii=False, indent=2))
    ids = {"bos_token_id": facts.bos_id, "eos_token_id": list(facts.eos_ids)}
    _text(folder / "generation_config.json", json.dumps(ids, indent=2))
    if facts.chat_template is not None:
        _text(folder / "chat_template.jinja", facts.chat_template)


def _text(path: Path, content: str) -> None:
    path.write_text(content, encoding="utf-8", newline="")


def _family(metadata: Mapping[str, object]) -> _Family:
    kind = metadata.get(_PREFIX + "model")
    if kind != "gpt2":
        raise BundleError(
            f"tokenizer of kind {kind!r} cannot be converted; only 'gpt2' (byte-level BPE) can",
            where=_PREFIX + "model",
            hint="import the Hugging Face folder of this model, which has a tokenizer.json",
        )
    known = _families()
    name = metadata.get(_PREFIX + "pre")
    family = known.get(name) if isinstance(name, str) else None
    if family is None:
        raise BundleError(
            f"pre-tokenizer {name!r} is not known; known are {', '.join(sorted(known))}",
            where=_PREFIX + "pre",
            hint="import the Hugging Face folder of this model, which has a tokenizer.json",
        )
    return family


def _strings(metadata: Mapping[str, object], key: str) -> list[str]:
    value = metadata.get(_PREFIX + key)
    if not isinstance(value, (list, tuple)) or not all(isinstance(one, str) for one in value):
        raise BundleError("is missing or not a list of strings", where=_PREFIX + key)
    return list(value)


def _vocabulary(metadata: Mapping[str, object]) -> tuple[list[str], list[int]]:
    """Tokens and their types, without the padding at the end that only widens the logits."""
    tokens = _strings(metadata, "tokens")
    types = metadata.get(_PREFIX + "token_type")
    if not isinstance(types, (list, tuple)) or len(types) != len(tokens):
        raise BundleError(
            f"is missing or does not have one entry for each of {len(tokens)} tokens",
            where=_PREFIX + "token_type",
        )
    size = len(tokens)
    while size and types[size - 1] == _UNUSED and tokens[size - 1] == f"[PAD{size - 1}]":
        size -= 1
    tokens = tokens[:size]
    if not tokens:
        raise BundleError("has no tokens", where=_PREFIX + "tokens")
    seen: dict[str, int] = {}
    for token_id, text in enumerate(tokens):
        if seen.setdefault(text, token_id) != token_id:
            raise BundleError(
                f"ids {seen[text]} and {token_id} are both {text!r}", where=_PREFIX + "tokens"
            )
    return tokens, [int(one) for one in types[:size]]


def _merges(metadata: Mapping[str, object]) -> list[tuple[str, str]]:
    merges = []
    for line in _strings(metadata, "merges"):
        at = line.find(" ", 1)  # a space in first place belongs to the left half
        if at < 0 or at + 1 == len(line):
            raise BundleError(f"{line!r} is not two parts", where=_PREFIX + "merges")
        merges.append((line[:at], line[at + 1 :]))
    return merges


def _build(
    tokens: list[str], types: list[int], merges: list[tuple[str, str]], family: _Family
) -> Tokenizer:
    vocabulary = {text: token_id for token_id, text in enumerate(tokens)}
    for left, right in merges:
        if not {left, right, left + right} <= vocabulary.keys():
            raise BundleError(
                f"'{left} {right}' makes a token that does not exist", where=_PREFIX + "merges"
            )
    tokenizer = Tokenizer(
        models.BPE(vocab=vocabulary, merges=merges, ignore_merges=family.whole_words)
    )
    if family.normalize is not None:
        tokenizer.normalizer = family.normalize()
    tokenizer.pre_tokenizer = family.split()
    tokenizer.decoder = decoders.ByteLevel()
    added = {
        kind: [
            AddedToken(text, special=kind == _CONTROL, normalized=False)
            for text, of in zip(tokens, types, strict=True)
            if of == kind and text
        ]
        for kind in (_CONTROL, _USER_DEFINED)
    }
    tokenizer.add_special_tokens(added[_CONTROL])
    tokenizer.add_tokens(added[_USER_DEFINED])
    return tokenizer


def _one_id(metadata: Mapping[str, object], kind: str, size: int) -> int | None:
    key = f"{_PREFIX}{kind}_token_id"
    value = metadata.get(key)
    if value is None:
        return None
    if not isinstance(value, int) or not 0 <= value < size:
        raise BundleError(f"{value!r} is not one of the {size} token ids", where=key)
    return value
