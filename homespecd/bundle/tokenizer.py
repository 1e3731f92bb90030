"""Text to token ids and back, from the files of a model's folder.

Works on what `homespecctl import` writes and on any Hugging Face folder with a tokenizer.json.
"""

from __future__ import annotations

import hashlib
import json
import re
import threading
from collections.abc import Iterable, Mapping
from functools import cached_property
from pathlib import Path
from typing import Any

import tokenizers

from homespecd.bundle.control_keys import key_characters
from homespecd.bundle.end_ids import declared_end_ids, read_json, token_name
from homespecd.bundle.pieces import Pieces, pieces_of
from homespecd.bundle.text_stream import TextStream
from homespecd.errors import BundleError

# Characters from which a text takes so long (some 4 ms for these) that others must not wait.
LONG_TEXT = 16_384

_SURROGATES = re.compile("[\ud800-\udfff]")  # JSON can carry half a character; UTF-8 cannot


class Tokenizer:
    """One model's vocabulary, its rules, and which ids begin and end a text.

    Any thread may call it. Build it with `Tokenizer.load`.
    """

    def __init__(
        self,
        rules: tokenizers.Tokenizer,
        *,
        eos_ids: frozenset[int],
        bos_id: int | None,
        add_bos: bool,
    ) -> None:
        rules.no_truncation()  # both are training leftovers in many a published file
        rules.no_padding()
        self.eos_ids = eos_ids
        self.bos_id = bos_id
        self.add_bos = add_bos
        self.pieces: Pieces = pieces_of(_state(rules.decoder))
        self._rules = rules
        self._lock = threading.Lock()  # `encode_special_tokens` is a setting of the shared rules
        self._long_lock = threading.Lock()
        self._tokens = {i: text for text, i in rules.get_vocab(with_added_tokens=True).items()}
        added = rules.get_added_tokens_decoder()
        self._added = frozenset(added)
        self._special = frozenset(i for i, token in added.items() if token.special)
        self._bytes: dict[int, bytes] = {}

    @classmethod
    def load(cls, folder: Path) -> Tokenizer:
        """Read tokenizer.json and what the files beside it say about begin and end tokens.

        Raises:
            BundleError: a file is missing, is not valid, or needs a decoder that is not known.
        """
        path = folder / "tokenizer.json"
        if not path.is_file():
            raise BundleError(
                "there is no tokenizer.json in the model's folder",
                where=str(folder),
                hint="only models with a fast tokenizer can be served",
            )
        try:
            rules = tokenizers.Tokenizer.from_file(str(path))
        except Exception as error:  # the library raises nothing narrower
            raise BundleError(f"cannot be read: {error}", where=str(path)) from error
        eos_ids = declared_end_ids(folder, rules.token_to_id)
        rules = _hardened(rules, eos_ids)
        bos_id = _begin_id(folder, rules)
        return cls(
            rules, eos_ids=eos_ids, bos_id=bos_id, add_bos=_adds_begin(folder, rules, bos_id)
        )

    def encode(self, text: str, *, parse_special: bool, add_bos: bool = False) -> list[int]:
        """Token ids of `text`.

        Args:
            parse_special: text that spells a control token becomes that token. False for text from
                outside, which must not be able to end a turn or begin another.
            add_bos: put the begin-of-text token in front, if the model has one.
        """
        ids: list[int] = self._encoding(text, parse_special).ids
        return [self.bos_id, *ids] if add_bos and self.bos_id is not None else ids

    def encode_spans(self, text: str, parse_special: bool) -> list[tuple[int, tuple[int, int]]]:
        """Token ids with the span of `text`, in characters, that each stands for."""
        encoding = self._encoding(text, parse_special)
        return list(zip(encoding.ids, encoding.offsets, strict=True))

    def _encoding(self, text: str, parse_special: bool) -> tokenizers.Encoding:
        if not text.isascii():
            text = _SURROGATES.sub("\N{REPLACEMENT CHARACTER}", text)
        if len(text) < LONG_TEXT:
            with self._lock:
                self._rules.encode_special_tokens = not parse_special
                return self._rules.encode(text, add_special_tokens=False)
        # Of its calls, only the one for batches lets other Python threads run meanwhile; with rules
        # of their own, these need not wait for the lock either.
        with self._long_lock:
            self._long_rules.encode_special_tokens = not parse_special
            return self._long_rules.encode_batch([text], add_special_tokens=False)[0]

    @cached_property
    def _long_rules(self) -> tokenizers.Tokenizer:
        with self._lock:
            return tokenizers.Tokenizer.from_str(self._rules.to_str())

    def decode(self, ids: Iterable[int], *, skip_special: bool = True) -> str:
        """The text of `ids`. Bytes that are no UTF-8 become U+FFFD; unknown ids have no text.

        Equal to the `tokenizers` library's own, except that byte-fallback vocabularies keep the
        valid characters of a run of bytes in which one is invalid, and that added tokens of
        byte-level vocabularies are always their own text.
        """
        stream = self.stream(skip_special=skip_special)
        return "".join([stream.push(token_id) for token_id in ids]) + stream.finish()

    def stream(self, *, skip_special: bool = True) -> TextStream:
        """A fresh text to which tokens are added one at a time."""
        return TextStream(self, skip_special=skip_special)

    @cached_property
    def vocab_size(self) -> int:
        """One more than the highest id with a token. Logits may be wider."""
        return max(self._tokens, default=-1) + 1

    @cached_property
    def vocab_digest(self) -> str:
        """sha256 over every id, its token and whether it is special.

        Two models may be paired only when this is equal. The width of their logits is not in it.
        """
        entries = [(i, self._tokens[i], i in self._special) for i in sorted(self._tokens)]
        return hashlib.sha256(json.dumps(entries).encode()).hexdigest()

    @cached_property
    def special_tokens(self) -> Mapping[str, int]:
        """Text → id of every control token."""
        return {self._tokens[i]: i for i in sorted(self._special)}

    @cached_property
    def control_keys(self) -> frozenset[str]:
        """Characters of which every control token's text has at least one."""
        return key_characters(self.special_tokens)

    def knows(self, token_id: int) -> bool:
        """There is a token with this id."""
        return token_id in self._tokens

    def is_special(self, token_id: int) -> bool:
        """The id is a control token: no part of the text that a reader sees."""
        return token_id in self._special

    def token_id(self, text: str) -> int | None:
        """The id of the token that is stored as `text`; None when there is none."""
        return self._rules.token_to_id(text)

    def token_text(self, token_id: int) -> str:
        """A token's own text; U+FFFD where it holds a part of a character only."""
        return self.token_bytes(token_id).decode("utf-8", "replace")

    def token_bytes(self, token_id: int) -> bytes:
        """A token's own bytes in the middle of a text; b"" for an id without a token."""
        known = self._bytes.get(token_id)
        if known is None:
            token = self._tokens.get(token_id)
            if token is None:
                return b""
            known = self.pieces.of(token, added=token_id in self._added)
            self._bytes[token_id] = known
        return known

    def first_bytes(self, token_id: int) -> bytes:
        """A token's bytes when it opens a text (some vocabularies drop a space there)."""
        token = self._tokens.get(token_id, "")
        return self.pieces.of(token, added=token_id in self._added, first=True)


def _state(part: Any) -> Any:
    return None if part is None else json.loads(part.__getstate__())


def _hardened(rules: tokenizers.Tokenizer, eos_ids: frozenset[int]) -> tokenizers.Tokenizer:
    """Close two doors that some exports leave open to text that poses as a control token.

    An end id that is not marked special would be parsed from any text, and a special token that
    is matched after normalization could be spelled with look-alike characters.
    """
    added = rules.get_added_tokens_decoder()
    ends_are_special = all(added[i].special for i in eos_ids if i in added)
    if ends_are_special and not any(one.special and one.normalized for one in added.values()):
        return rules
    whole = json.loads(rules.to_str())
    for token in whole["added_tokens"]:
        token["special"] = token["special"] or token["id"] in eos_ids
        token["normalized"] = token["normalized"] and not token["special"]
    return tokenizers.Tokenizer.from_str(json.dumps(whole))


def _begin_id(folder: Path, rules: tokenizers.Tokenizer) -> int | None:
    for source in ("tokenizer_config.json", "special_tokens_map.json"):
        name = token_name(read_json(folder / source).get("bos_token"))
        if name is not None and (token_id := rules.token_to_id(name)) is not None:
            return token_id
    for source in ("generation_config.json", "config.json"):
        declared = read_json(folder / source).get("bos_token_id")
        if isinstance(declared, int) and rules.id_to_token(declared) is not None:
            return declared
    return None


def _adds_begin(folder: Path, rules: tokenizers.Tokenizer, bos_id: int | None) -> bool:
    """As the configuration says, else as the tokenizer's own post-processing does."""
    if bos_id is None:
        return False
    said = read_json(folder / "tokenizer_config.json").get("add_bos_token")
    return said if isinstance(said, bool) else rules.encode("").ids[:1] == [bos_id]
