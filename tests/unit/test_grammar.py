"""Constraints against texts that are known to be right or wrong, in any order of questions."""

from __future__ import annotations

import json
import random
from typing import Literal

import numpy as np
import pytest

from homespecd.decoding.constraint import GrammarSpec
from homespecd.decoding.grammar import Grammar, GrammarVocabulary, in_our_words
from homespecd.decoding.params import SamplingParams
from homespecd.decoding.sampling import Sampler
from homespecd.errors import RequestError

# Bytes, a few merges, two ends, and one control token that spells something a grammar might want.
PIECES = [bytes([i]) for i in range(256)] + [b'{"', b'":', b"true", b"</s>", b"<eot>", b"}"]
END, EOT, CONTROL = 259, 260, 261
PROMPT = [1, 2, 3]


def longest_first(text: str) -> list[int]:
    data, ids = text.encode(), list[int]()
    while data:
        fits = [i for i in range(END) if data.startswith(PIECES[i])]
        ids.append(max(fits, key=lambda i: len(PIECES[i])))
        data = data[len(PIECES[ids[-1]]) :]
    return ids


@pytest.fixture(scope="module")
def vocabulary() -> GrammarVocabulary:
    return GrammarVocabulary(
        PIECES, encode=longest_first, special=[END, EOT, CONTROL], end_ids=[END, EOT]
    )


def json_schema(**schema: object) -> GrammarSpec:
    return GrammarSpec("json", json.dumps(schema), "response_format")


def grammar(vocabulary: GrammarVocabulary, spec: GrammarSpec) -> Grammar:
    return Grammar(vocabulary, spec, prompt_length=len(PROMPT))


def possible(constraint: Grammar, text: list[int]) -> set[int]:
    return set(range(len(PIECES))) - set(constraint.impossible([*PROMPT, *text]).tolist())


def test_only_what_can_go_on_is_possible(vocabulary: GrammarVocabulary) -> None:
    constraint = grammar(vocabulary, json_schema(type="object"))
    assert possible(constraint, []) == {ord("{"), 256}
    assert possible(constraint, list(b'{"a')) >= {ord('"'), ord("z"), 0xC3, 257}
    assert possible(constraint, list(b'{"a":t')) == {ord("r")}


def test_control_tokens_are_no_text_and_ends_come_when_it_is_complete(
    vocabulary: GrammarVocabulary,
) -> None:
    constraint = grammar(vocabulary, json_schema(type="object"))
    assert possible(constraint, list(b"{")) & {END, EOT, CONTROL} == set()
    assert possible(constraint, list(b"{}")) == {END, EOT}
    assert possible(constraint, [*b"{}", END]) == {END, EOT}
    assert possible(constraint, [*b"{}", END, 65, END]) == {END, EOT}


def test_answers_do_not_depend_on_the_order_of_questions(vocabulary: GrammarVocabulary) -> None:
    text = [256, *b'k":[1,2.5,', 258, *b',"x\xc3\xa9"]', *b"}", EOT]
    spec = json_schema(type="object")
    fresh = [possible(grammar(vocabulary, spec), text[:i]) for i in range(len(text) + 1)]
    constraint = grammar(vocabulary, spec)
    order = [random.Random(3).randrange(len(text) + 1) for _ in range(200)]
    assert [possible(constraint, text[:i]) for i in order] == [fresh[i] for i in order]


def test_another_branch_is_another_text(vocabulary: GrammarVocabulary) -> None:
    constraint = grammar(vocabulary, json_schema(type="array", items={"type": "integer"}))
    assert ord("]") in possible(constraint, list(b"[1"))
    assert possible(constraint, list(b"[-")) == set(range(0x30, 0x3A))
    assert ord("]") in possible(constraint, list(b"[1"))


def test_a_proposal_runs_as_far_as_it_can_stand(vocabulary: GrammarVocabulary) -> None:
    constraint = grammar(vocabulary, json_schema(type="object"))
    said = [*PROMPT, ord("{")]
    assert constraint.possible_run(said, list(b'"a":1}')) == 6
    assert constraint.possible_run(said, [*b'"a":1}', END]) == 7
    assert constraint.possible_run(said, list(b'"a":oops')) == 4
    assert constraint.possible_run(said, list(b"no")) == 0
    assert constraint.possible_run([*said, ord("}"), END], list(b"{")) == 0
    assert possible(constraint, list(b"{")) >= {ord('"'), ord("}")}  # asking commits nothing


def test_white_space_ends_some_time(vocabulary: GrammarVocabulary) -> None:
    constraint = grammar(vocabulary, json_schema(type="object"))
    blanks = 0
    while ord("\n") in possible(constraint, [ord("{"), *b"\n" * blanks]):
        blanks += 1
    assert 0 < blanks <= 64


@pytest.mark.parametrize(
    ("text", "said"),
    [('start: "yes" | "no"', b"no"), ('root ::= "yes" | "no"', b"yes")],
    ids=["lark", "gbnf"],
)
def test_grammars_of_both_kinds(vocabulary: GrammarVocabulary, text: str, said: bytes) -> None:
    constraint = grammar(vocabulary, GrammarSpec("grammar", text, "grammar"))
    assert possible(constraint, []) == {ord("y"), ord("n")}
    assert possible(constraint, list(said)) == {END, EOT}


@pytest.mark.parametrize(
    "spec",
    [
        GrammarSpec("grammar", 'start: "a" | missing', "grammar"),
        GrammarSpec("grammar", "", "grammar"),
        GrammarSpec("grammar", "\x00(((", "grammar"),
        GrammarSpec("json", '{"type": "objekt"}', "response_format"),
        GrammarSpec("json", '{"$ref": "http://example.org/schema"}', "response_format"),
    ],
)
def test_what_cannot_be_used_is_refused_by_name(
    vocabulary: GrammarVocabulary, spec: GrammarSpec
) -> None:
    with pytest.raises(RequestError) as caught:
        grammar(vocabulary, spec)
    assert (caught.value.status, caught.value.param) == (400, spec.param)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("kind", "text", "said"),
    [
        ("grammar", "start: a\na: a", "followed: it allows no text here that this model can write"),
        ("grammar", "start: A\nA: /a/ & /b/", "followed: it allows no text here that this"),
        ("json", '{"$ref": "#/$defs/x", "$defs": {"x": {"$ref": "#/$defs/x"}}}', "allows no text"),
        ("json", '{"type": "string", "pattern": "(a"}', "used: regex parse error: unclosed group"),
        ("grammar", "start: /(/", "regex parse error: unclosed group"),
        ("json", '{"type": "string", "pattern": "^a$", "maxLength": 0}', "Regex is empty"),
    ],
)
def test_what_is_wrong_is_said_in_words(
    vocabulary: GrammarVocabulary, kind: Literal["json", "grammar"], text: str, said: str
) -> None:
    with pytest.raises(RequestError) as caught:
        grammar(vocabulary, GrammarSpec(kind, text, "it")).impossible(PROMPT)
    assert str(caught.value).startswith("it cannot be ")
    assert said in str(caught.value)
    for internal in ("NoExtension", "panic", "non-verbose", "ff_tokens", "(And"):
        assert internal not in str(caught.value)


@pytest.mark.parametrize(
    ("fault", "said"),
    [
        ("parser error: Too many items (limit 50000; ff_tokens)\n<non-verbose/>", "too complex"),
        ("lexer error: too many expressions constructed", "it is too complex"),
        ("panic: removal index (is 0) should be < len (is 0)", "its parser gives up on it"),
        ("", "no reason was given"),
        ('at 1(8): unknown name: "x"\n 1 | start: x', 'at 1(8): unknown name: "x"'),
    ],
)
def test_faults_of_the_parsers_own(fault: str, said: str) -> None:
    assert in_our_words(fault).endswith(said)


def test_a_grammar_with_no_way_out_says_how_far_it_led(vocabulary: GrammarVocabulary) -> None:
    constraint = grammar(vocabulary, GrammarSpec("grammar", 'start: "a" B\nB: /b/ & /c/', "it"))
    with pytest.raises(RequestError, match="it cannot be followed any further: it allows no text"):
        constraint.impossible([*PROMPT, ord("a")])


@pytest.mark.parametrize("seed", range(8))
def test_whatever_a_sampler_draws_under_it_is_valid(
    vocabulary: GrammarVocabulary, seed: int
) -> None:
    """Flat logits: nothing but the constraint keeps the text in shape."""
    spec = json_schema(
        type="object",
        properties={"n": {"type": "integer"}, "ok": {"type": "boolean"}},
        required=["n", "ok"],
        additionalProperties=False,
    )
    constraint = grammar(vocabulary, spec)
    sampler = Sampler(
        SamplingParams(seed=seed, logit_bias={ord("0"): -2.0, END: 3.0}),
        vocab_size=len(PIECES),
        prompt_length=len(PROMPT),
        constraint=constraint,
    )
    tokens = list(PROMPT)
    while tokens[-1] not in (END, EOT):
        tokens.append(sampler.draw(np.zeros(len(PIECES)), tokens))
        assert len(tokens) < 400
    value = json.loads(b"".join(PIECES[t] for t in tokens[len(PROMPT) : -1]))
    assert set(value) == {"n", "ok"}
    assert isinstance(value["ok"], bool)
