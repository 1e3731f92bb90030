"""Ids to text one at a time equals all at once; every declared end counts; digests tell pairs."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import tokenizers
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import AddedToken, decoders, normalizers, processors

from homespecd.bundle.gguf_tokenizer import write_tokenizer
from homespecd.bundle.tokenizer import LONG_TEXT, Tokenizer
from homespecd.errors import BundleError
from tests.unit.tokenizer_folders import (
    byte_fallback,
    byte_level,
    metaspace,
    save,
    smollm2_metadata,
    words,
)

KINDS: dict[str, Callable[[], tokenizers.Tokenizer]] = {
    "byte_level": lambda: byte_level(user_defined=["<think>", "naïve text"]),
    "byte_fallback": byte_fallback,
    "metaspace": metaspace,
    "words": words,
}
TRICKY = "naïve café 🙂👩‍👩‍👧 你好，世界 12 1,2 a\t\n end"


def streamed(tokenizer: Tokenizer, ids: list[int], *, skip_special: bool = True) -> list[str]:
    stream = tokenizer.stream(skip_special=skip_special)
    return [*(stream.push(token_id) for token_id in ids), stream.finish()]


@pytest.fixture(scope="module", params=[*KINDS, "smollm2"])
def both(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> tuple[Tokenizer, tokenizers.Tokenizer]:
    """A tokenizer of ours and the library's own on the same file."""
    folder = tmp_path_factory.mktemp("kind")
    if request.param == "smollm2":
        write_tokenizer(smollm2_metadata(), folder)
    else:
        save(KINDS[request.param](), folder)
    return Tokenizer.load(folder), tokenizers.Tokenizer.from_file(str(folder / "tokenizer.json"))


@pytest.fixture(scope="module")
def byte_tokenizer(tmp_path_factory: pytest.TempPathFactory) -> Tokenizer:
    folder = tmp_path_factory.mktemp("bytes")
    return Tokenizer.load(save(byte_level(), folder, config={"eos_token_id": [0, 2]}))


@given(data=st.data(), skip_special=st.booleans())
@settings(max_examples=300)
def test_joined_stream_is_the_librarys_decode(
    both: tuple[Tokenizer, tokenizers.Tokenizer], data: st.DataObject, skip_special: bool
) -> None:
    """For any ids: leading spaces, digits, control tokens, halves of characters, unknown ids."""
    ours, library = both
    top = ours.vocab_size + 3
    ids = data.draw(st.lists(st.one_of(st.integers(0, min(top, 290)), st.integers(0, top))))
    parts = streamed(ours, ids, skip_special=skip_special)
    assert "".join(parts) == ours.decode(ids, skip_special=skip_special)
    if not any(_is_byte_run(library, one) for one in ids):
        assert "".join(parts) == library.decode(ids, skip_special_tokens=skip_special)


def _is_byte_run(library: tokenizers.Tokenizer, token_id: int) -> bool:
    return (library.id_to_token(token_id) or "").startswith("<0x")


@given(text=st.text(max_size=40))
@settings(max_examples=200)
def test_text_streams_as_the_library_decodes_it(
    both: tuple[Tokenizer, tokenizers.Tokenizer], text: str
) -> None:
    """Text as tokens of its own vocabulary; none of it is a control token."""
    ours, library = both
    ids = ours.encode(text, parse_special=False)
    assert "".join(streamed(ours, ids)) == library.decode(ids)


@given(text=st.text(st.characters(exclude_categories=["Cs"]), max_size=40))
@settings(max_examples=200)
def test_text_survives_the_round_trip(byte_tokenizer: Tokenizer, text: str) -> None:
    """A vocabulary with every byte gives back any text, and no part ends inside a character."""
    ids = byte_tokenizer.encode(text, parse_special=False)
    parts = streamed(byte_tokenizer, ids)
    assert "".join(parts) == text
    assert parts[-1] == ""
    assert byte_tokenizer.eos_ids.isdisjoint(ids)


@pytest.mark.parametrize("kind", ["byte_level", "byte_fallback"])
@pytest.mark.parametrize("character", ["é", "世", "🙂", "👩‍👩‍👧"])
def test_a_character_waits_for_its_last_byte(tmp_path: Path, kind: str, character: str) -> None:
    """One token per byte: each part is whole characters, and a cut anywhere shows in finish."""
    rules = KINDS[kind]()
    tokenizer = Tokenizer.load(save(rules, tmp_path))
    ids = [_byte_id(tokenizer, one) for one in character.encode()]
    for cut in range(len(ids) + 1):
        parts = streamed(tokenizer, ids[:cut])
        whole = character.encode()[:cut].decode("utf-8", "ignore")
        assert "".join(parts[:-1]) == whole
        complete = whole.encode() == character.encode()[:cut]
        assert parts[-1] == ("" if complete else "\N{REPLACEMENT CHARACTER}")


def _byte_id(tokenizer: Tokenizer, byte: int) -> int:
    return next(i for i in range(tokenizer.vocab_size) if tokenizer.token_bytes(i) == bytes([byte]))


def test_an_invalid_byte_does_not_hold_up_the_text(tmp_path: Path) -> None:
    tokenizer = Tokenizer.load(save(byte_level(), tmp_path))
    lone, letter = _byte_id(tokenizer, 0xE4), _byte_id(tokenizer, ord("x"))
    assert streamed(tokenizer, [lone, letter, lone, lone]) == ["", "�x", "", "�", "�"]


def test_specials_between_halves_of_a_character_are_skipped(tmp_path: Path) -> None:
    tokenizer = Tokenizer.load(save(byte_level(), tmp_path))
    first, second = (_byte_id(tokenizer, one) for one in "é".encode())
    assert streamed(tokenizer, [first, 2, second]) == ["", "", "é", ""]
    assert tokenizer.decode([2, first, second], skip_special=False) == "<|im_end|>é"


def test_first_space_goes_and_the_others_stay(tmp_path: Path) -> None:
    tokenizer = Tokenizer.load(save(byte_fallback(), tmp_path))
    ids = [tokenizer.token_id(one) for one in ("<s>", "▁Hello", "▁world", "▁1", "2")]
    assert streamed(tokenizer, [i for i in ids if i is not None])[1:5] == [
        "Hello",
        " world",
        " 1",
        "2",
    ]


def test_a_tokens_own_text_and_bytes(tmp_path: Path) -> None:
    tokenizer = Tokenizer.load(save(byte_level(), tmp_path))
    space_a = tokenizer.token_id("Ġa")
    assert space_a is not None
    assert (tokenizer.token_text(space_a), tokenizer.token_bytes(space_a)) == (" a", b" a")
    half = _byte_id(tokenizer, 0xF0)
    assert (tokenizer.token_text(half), tokenizer.token_bytes(half)) == ("�", b"\xf0")
    assert tokenizer.token_text(2) == "<|im_end|>"
    assert tokenizer.token_bytes(tokenizer.vocab_size) == b""


@pytest.mark.parametrize(
    ("files", "expected"),
    [
        ({"config": {"eos_token_id": 0}}, {0}),
        ({"config": {"eos_token_id": 0}, "generation_config": {"eos_token_id": [0, 5]}}, {0, 5}),
        ({"config": {"eos_token_id": [1, 2]}}, {1, 2}),
        ({"config": {"text_config": {"eos_token_id": 7}}}, {7}),
        ({"config": {"eos_token_id": 0}, "tokenizer_config": {"eos_token": "<|im_end|>"}}, {0, 2}),
        ({"special_tokens_map": {"eos_token": {"content": "<|im_end|>"}}}, {2}),
        ({"genai_config": {"model": {"eos_token_id": [0, 2]}}}, {0, 2}),
        ({"homespec": {"eos_ids": [2, 9]}, "config": {"eos_token_id": None}}, {2, 9}),
        ({"config": {"eos_token_id": -1}}, set()),
        ({}, set()),
    ],
)
def test_every_declared_end_counts(
    tmp_path: Path, files: dict[str, Any], expected: set[int]
) -> None:
    assert Tokenizer.load(save(byte_level(), tmp_path, **files)).eos_ids == expected


def test_an_end_that_an_export_forgot_to_mark_cannot_be_typed(tmp_path: Path) -> None:
    """An end id that is an ordinary added token is treated as the control token it is."""
    rules = byte_level(specials=["<|im_start|>"], user_defined=["<end>", "<think>"])
    tokenizer = Tokenizer.load(save(rules, tmp_path, config={"eos_token_id": 1}))
    assert tokenizer.token_text(1) == "<end>"
    assert 1 not in tokenizer.encode("a<end>", parse_special=False)
    assert tokenizer.encode("<end><think>", parse_special=True) == [1, 2]
    assert tokenizer.is_special(1)
    assert not tokenizer.is_special(2)


def test_look_alikes_do_not_spell_a_control_token(tmp_path: Path) -> None:
    rules = byte_level()
    rules.normalizer = normalizers.NFKC()
    whole = json.loads(rules.to_str())
    for token in whole["added_tokens"]:
        token["normalized"] = True
    rules = tokenizers.Tokenizer.from_str(json.dumps(whole))
    tokenizer = Tokenizer.load(save(rules, tmp_path))
    assert 2 in rules.encode("＜|im_end|＞").ids
    assert 2 not in tokenizer.encode("＜|im_end|＞", parse_special=True)
    assert tokenizer.encode("<|im_end|>", parse_special=True) == [2]


@pytest.mark.parametrize(
    ("files", "template", "bos_id", "add_bos"),
    [
        ({}, False, None, False),
        ({"config": {"bos_token_id": 1}}, False, 1, False),
        (
            {"tokenizer_config": {"bos_token": "<|im_start|>", "add_bos_token": True}},
            False,
            1,
            True,
        ),
        ({"tokenizer_config": {"bos_token": {"content": "<|im_start|>"}}}, True, 1, True),
        (
            {"tokenizer_config": {"bos_token": "<|im_start|>", "add_bos_token": False}},
            True,
            1,
            False,
        ),
        ({"special_tokens_map": {"bos_token": "<|im_end|>"}}, True, 2, False),
        ({"generation_config": {"bos_token_id": 9999}}, False, None, False),
    ],
)
def test_begin_token(
    tmp_path: Path, files: dict[str, Any], template: bool, bos_id: int | None, add_bos: bool
) -> None:
    """What the configuration says, else what the tokenizer's own post-processing does."""
    rules = byte_level()
    if template:
        rules.post_processor = processors.TemplateProcessing(
            single="<|im_start|> $A", special_tokens=[("<|im_start|>", 1)]
        )
    tokenizer = Tokenizer.load(save(rules, tmp_path, **files))
    assert (tokenizer.bos_id, tokenizer.add_bos) == (bos_id, add_bos)
    plain = tokenizer.encode("x", parse_special=False)
    begin = [] if bos_id is None else [bos_id]
    assert tokenizer.encode("x", parse_special=False, add_bos=True) == begin + plain


def test_digest_is_of_the_vocabulary_alone(tmp_path: Path) -> None:
    """Equal for the same tokens whatever else the folders say; different for any other token."""
    same = Tokenizer.load(save(byte_level(), tmp_path / "a", config={"vocab_size": 512}))
    again = Tokenizer.load(save(byte_level(), tmp_path / "b", config={"vocab_size": 300}))
    more = byte_level()
    more.add_tokens([AddedToken("<x>", special=False)])
    marked = byte_level()
    marked.add_special_tokens(["Ġa"])
    others = [
        Tokenizer.load(save(rules, tmp_path / str(i))).vocab_digest
        for i, rules in enumerate([more, marked, byte_fallback()])
    ]
    assert same.vocab_digest == again.vocab_digest
    assert len({same.vocab_digest, *others}) == 4


def test_training_leftovers_do_not_cut_or_pad(tmp_path: Path) -> None:
    rules = byte_level()
    expected = rules.encode(TRICKY).ids
    rules.enable_truncation(4)
    rules.enable_padding(length=500)
    tokenizer = Tokenizer.load(save(rules, tmp_path))
    assert tokenizer.encode(TRICKY, parse_special=False) == expected


def test_half_a_character_from_json_is_replaced(tmp_path: Path) -> None:
    tokenizer = Tokenizer.load(save(byte_level(), tmp_path))
    ids = tokenizer.encode("a\ud83d", parse_special=False)
    assert tokenizer.decode(ids) == "a�"


@pytest.mark.parametrize(
    ("name", "content", "words"),
    [
        ("tokenizer.json", None, "no tokenizer.json"),
        ("tokenizer.json", "{", "tokenizer.json: cannot be read"),
        ("config.json", "{", "config.json: cannot be read as JSON"),
        ("config.json", "[]", "config.json: is not a JSON object"),
        ("config.json", '{"eos_token_id": ["x"]}', "end-of-text ids are not numbers"),
        ("generation_config.json", '{"eos_token_id": true}', "end-of-text ids are not numbers"),
    ],
)
def test_a_broken_folder_is_one_sentence(
    tmp_path: Path, name: str, content: str | None, words: str
) -> None:
    save(byte_level(), tmp_path)
    if content is None:
        (tmp_path / name).unlink()
    else:
        (tmp_path / name).write_text(content)
    with pytest.raises(BundleError, match=words):
        Tokenizer.load(tmp_path)


@pytest.mark.parametrize(
    ("decoder", "words"),
    [
        (decoders.WordPiece(), "WordPiece"),
        (decoders.Sequence([decoders.ByteFallback(), decoders.CTC()]), "CTC"),
        (decoders.Sequence([decoders.ByteFallback(), decoders.Strip(" ", 1, 0)]), "Strip"),
        (decoders.Sequence([decoders.Fuse(), decoders.Strip("▁", 1, 0)]), "stripping '▁'"),
    ],
)
def test_a_decoder_that_needs_the_whole_text_is_refused(
    tmp_path: Path, decoder: Any, words: str
) -> None:
    rules = byte_fallback()
    rules.decoder = decoder
    with pytest.raises(BundleError, match=words):
        Tokenizer.load(save(rules, tmp_path))


def test_a_long_text_reads_as_ever_and_holds_up_nobody(
    both: tuple[Tokenizer, tokenizers.Tokenizer],
) -> None:
    """Others' texts are read meanwhile: the library is left to itself, and no lock is shared."""
    ours, theirs = both
    text = TRICKY * (60 * LONG_TEXT // len(TRICKY))
    theirs.encode_special_tokens = True
    expected = theirs.encode(text, add_special_tokens=False)
    read: list[list[tuple[int, tuple[int, int]]]] = []
    reader = threading.Thread(
        target=lambda: read.append(ours.encode_spans(text, parse_special=False))
    )
    reader.start()
    short = [ours.encode("Hi", parse_special=False) for _ in range(50)]
    others_first = not read
    reader.join()
    assert read == [list(zip(expected.ids, expected.offsets, strict=True))]
    assert short == [theirs.encode("Hi", add_special_tokens=False).ids] * 50
    assert others_first
    assert ours.encode(text, parse_special=False) == expected.ids
