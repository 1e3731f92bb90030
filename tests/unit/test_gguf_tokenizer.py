"""The tokenizer in a GGUF file agrees with llama.cpp, and what is not understood is refused."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import tokenizers

from homespecd.bundle.end_ids import known_enders
from homespecd.bundle.gguf_tokenizer import TokenizerFacts, write_tokenizer
from homespecd.bundle.tokenizer import Tokenizer
from homespecd.errors import BundleError
from tests.unit.tokenizer_folders import byte_alphabet, smollm2_metadata

VECTORS = json.loads(
    (Path(__file__).parent.parent / "data" / "tokenizers.json").read_text(encoding="utf-8")
)["smollm2-135m-instruct"]


@pytest.fixture(scope="module")
def smollm2(tmp_path_factory: pytest.TempPathFactory) -> tuple[TokenizerFacts, Tokenizer]:
    folder = tmp_path_factory.mktemp("smollm2")
    return write_tokenizer(smollm2_metadata(), folder), Tokenizer.load(folder)


def tiny(pre: str = "gpt2", **changed: Any) -> dict[str, Any]:
    """Metadata of a byte-level vocabulary with control, user-defined and padding tokens."""
    alphabet = byte_alphabet()
    merged = ["ab", "abc", "12", "123", "Ġa"]
    tokens = [*alphabet, *merged, "<|eot_id|>", "<|start|>", "<think>", "[PAD264]", "[PAD265]"]
    assert len(tokens) == 266
    types = [1] * 261 + [3, 3, 4, 5, 5]
    metadata: dict[str, Any] = {
        "model": "gpt2",
        "pre": pre,
        "tokens": tokens,
        "token_type": types,
        "merges": ["a b", "1 2", "12 3", "Ġ a"],
        "bos_token_id": 262,
        "eos_token_id": 97,
    }
    metadata.update(changed)
    return {f"tokenizer.ggml.{key}": value for key, value in metadata.items()}


@pytest.mark.parametrize("vector", VECTORS["tokenize"], ids=lambda one: repr(one["text"][:20]))
def test_ids_are_those_of_llama_cpp(
    smollm2: tuple[TokenizerFacts, Tokenizer], vector: dict[str, Any]
) -> None:
    """Digits, spaces, scripts, emoji, and control tokens parsed or not."""
    actual = smollm2[1].encode(vector["text"], parse_special=vector["parse_special"])
    assert actual == vector["ids"]


def test_begin_token_is_added_only_where_the_file_asks(
    smollm2: tuple[TokenizerFacts, Tokenizer],
) -> None:
    facts, tokenizer = smollm2
    example = VECTORS["bos_example"]
    ids = tokenizer.encode(example["text"], parse_special=True, add_bos=tokenizer.add_bos)
    assert ids == example["ids"]
    assert (facts.add_bos, facts.bos_id) == (False, 1)
    assert tokenizer.encode("Hello", parse_special=False, add_bos=True) == [1, 19556]


def test_facts_and_files_say_the_same(smollm2: tuple[TokenizerFacts, Tokenizer]) -> None:
    facts, tokenizer = smollm2
    assert facts.eos_ids == (0, 2)
    assert tokenizer.eos_ids == {0, 2}
    assert tokenizer.vocab_size == facts.vocab_size == 49152
    assert (tokenizer.bos_id, tokenizer.add_bos) == (facts.bos_id, facts.add_bos)
    assert facts.chat_template == smollm2_metadata()["tokenizer.chat_template"]


@pytest.mark.parametrize(
    ("pre", "text", "pieces"),
    [
        ("gpt2", " a1234", ["Ġa", "123", "4"]),
        ("smollm", " a123", ["Ġa", "1", "2", "3"]),
        ("llama-bpe", "1234", ["123", "4"]),
        ("llama-bpe", "abc", ["abc"]),  # a whole word, though no merge leads there
        ("gpt2", "abc", ["ab", "c"]),
        ("qwen2", "abc 123", ["ab", "c", "Ġ", "1", "2", "3"]),
        ("qwen2", "e\u0301", ["Ã", "©"]),  # composed first
        ("gpt2", "e\u0301", ["e", "Ì", "ģ"]),
    ],
)
def test_pre_tokenizers_cut_as_their_names_say(
    tmp_path: Path, pre: str, text: str, pieces: list[str]
) -> None:
    write_tokenizer(tiny(pre), tmp_path)
    rules = tokenizers.Tokenizer.from_file(str(tmp_path / "tokenizer.json"))
    assert rules.encode(text).tokens == pieces


def test_token_types_keep_their_meaning(tmp_path: Path) -> None:
    """Control tokens are special, user-defined ones are text, padding is no token at all."""
    facts = write_tokenizer(tiny(), tmp_path)
    tokenizer = Tokenizer.load(tmp_path)
    assert tokenizer.encode("<think><|start|>", parse_special=True) == [263, 262]
    literal = tokenizer.encode("<think><|start|>", parse_special=False)
    assert literal[0] == 263
    assert 262 not in literal
    assert tokenizer.decode([263, 262]) == "<think>"
    assert facts.vocab_size == tokenizer.vocab_size == 264
    assert facts.eos_ids == (97, 261)


@pytest.mark.parametrize(
    ("pre", "said", "expected"),
    [("gpt2", None, False), ("llama-bpe", None, True), ("llama-bpe", False, False)],
)
def test_begin_token_default_depends_on_the_pre_tokenizer(
    tmp_path: Path, pre: str, said: bool | None, expected: bool
) -> None:
    changed = {} if said is None else {"add_bos_token": said}
    assert write_tokenizer(tiny(pre, **changed), tmp_path).add_bos is expected
    assert Tokenizer.load(tmp_path).add_bos is expected


@pytest.mark.parametrize(
    ("changed", "words"),
    [
        ({"pre": "viking"}, ["'viking'", "gpt2, llama-bpe", "smollm"]),
        ({"pre": None}, ["None", "smollm"]),
        ({"model": "llama"}, ["'llama'", "gpt2"]),
        ({"tokens": None}, ["tokenizer.ggml.tokens"]),
        ({"tokens": ["a", "a"], "token_type": [1, 1]}, ["0 and 1", "'a'"]),
        ({"tokens": [], "token_type": []}, ["no tokens"]),
        ({"token_type": [1]}, ["token_type", "266"]),
        ({"merges": ["ab"]}, ["'ab'", "merges"]),
        ({"merges": ["x y"]}, ["'x y'", "merges"]),
        ({"eos_token_id": 999}, ["999", "eos_token_id"]),
        ({"bos_token_id": "1"}, ["'1'", "bos_token_id"]),
    ],
)
def test_what_cannot_be_right_is_refused_by_name(
    tmp_path: Path, changed: dict[str, Any], words: list[str]
) -> None:
    with pytest.raises(BundleError) as caught:
        write_tokenizer(tiny(**changed), tmp_path)
    assert [word for word in words if word not in str(caught.value)] == []
    assert list(tmp_path.iterdir()) == []


def test_an_answers_channel_does_not_end_the_answer() -> None:
    """`<|end|>` is an end, except where `<|return|>` and `<|call|>` are."""
    assert known_enders({"<|end|>": 1, "<|endoftext|>": 2}) == {1, 2}
    assert known_enders({"<|end|>": 1, "<|return|>": 2, "<|call|>": 3}) == {2, 3}
