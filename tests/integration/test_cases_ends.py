"""Where an answer ends: end ids, stop strings, limits; and what is left in the caches after."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest

from tests.integration.service import (
    CHAT,
    COMPLETION,
    Served,
    Service,
    chat,
    chat_ids,
    complete,
    deltas,
    drafting,
    module_service,
    prompts,
    spoken,
    spoken_with,
    text_of,
)
from tests.oracle import ASSISTANT, END, END_IDS, STOP, Oracle, Toy, encode, say

pytestmark = pytest.mark.integration

ENDS_AT = 48
STORY = "Once upon the inner tether, the end of the winter."
USER = "Hello there\nUser: and so on, for quite a while"
ALMOST = "Hello there\nUs"

ENDING = Toy(script={ENDS_AT: END})
TELLING = Toy(script=say(STORY), script_after=ASSISTANT)
TURNING = Toy(script=say(USER), script_after=ASSISTANT)
BREAKING = Toy(script=say(ALMOST), script_after=ASSISTANT)
SECOND_END = Toy(script=say("bye", end=STOP), script_after=ASSISTANT)
TOKENIZERS_END = Toy(
    script=say("bye", end=STOP), script_after=ASSISTANT, generation_eos=(), tokenizer_eos=STOP
)
EARLY = Toy(script=say("abc"), script_after=ASSISTANT)
PLAIN = Toy()

running, service = module_service(
    Served("ending", ENDING, ("d1", "d3")),
    Served("telling", TELLING, ("d1", "d2", "d3")),
    Served("turning", TURNING, ("d1",)),
    Served("breaking", BREAKING, ("d1",)),
    Served("second", SECOND_END, ("d1", "d3")),
    Served("tokenizers", TOKENIZERS_END, ("d1",)),
    Served("early", EARLY, ("d1",)),
    Served("plain", PLAIN, ("d1", "d2", "d3")),
    blocks_as_asked=True,
)


@pytest.mark.parametrize("draft", ["d1", "d3"])
def test_an_end_inside_a_block_cuts_the_state_too(service: Service, draft: str) -> None:
    """C1: the end at each offset of a block of 8, and the turn that follows."""
    with_draft = drafting("ending", draft, 8)
    # Blocks are as long as the draft was right before.
    for prompt in prompts(4):
        service.complete("ending", prompt[:4], max_tokens=40, **with_draft)
    lengths = set()
    for offset in range(1, 19):
        prompt = prompts(1, length=ENDS_AT - offset)[0]
        answer = service.complete("ending", prompt, max_tokens=60, **with_draft)
        output = Oracle(ENDING).greedy(prompt, 60)
        assert output[-1] == END
        assert text_of(answer) == Oracle.text(output)
        assert answer["choices"][0]["finish_reason"] == "stop"
        assert answer["usage"]["completion_tokens"] == len(output) == offset + 1
        homespec = answer["homespec"]
        lengths.add(homespec["acceptance_length"])
        assert homespec["draft_tokens_accepted"] + homespec["rounds"] >= len(output)
        assert homespec["draft_tokens_accepted"] <= len(output)
        follow_up = [*prompt, *output, *encode("and then")]
        again = service.complete("ending", follow_up, max_tokens=20, **with_draft)
        assert text_of(again) == spoken(ENDING, follow_up, 20)
        cached = again["usage"]["prompt_tokens_details"]["cached_tokens"]
        assert len(prompt) + len(output) - 1 <= cached < len(follow_up)
    assert len(lengths) > 3  # the end came at different places of a block


@pytest.mark.parametrize("draft", [None, "d1", "d2", "d3"])
def test_a_stop_string_cuts_wherever_it_lies(service: Service, draft: str | None) -> None:
    """C2: every stretch of 1 to 12 letters of the text, within and across blocks and tokens."""
    with_draft = drafting("telling", draft, 8)
    assert text_of(service.chat("telling", "go on", **with_draft)) == STORY
    stretches = [(start, 1 + (5 * start) % 12) for start in range(len(STORY))]
    for start, length in stretches:
        stop = STORY[start : start + length]
        answer = service.chat("telling", "go on", stop=["not there", stop], **with_draft)
        assert text_of(answer) == STORY[: STORY.find(stop)], stop
        assert answer["choices"][0]["finish_reason"] == "stop"
    # The first to be complete counts, in whatever order they are given.
    answer = service.chat("telling", "go on", stop=["tether", "inner", "r t"], **with_draft)
    assert text_of(answer) == "Once upon the "


@pytest.mark.parametrize("path", [CHAT, COMPLETION])
@pytest.mark.parametrize("k", [None, 1, 3, 8])
def test_the_start_of_a_stop_string_is_held_back(
    service: Service, path: str, k: int | None
) -> None:
    """C4: nothing of a stop string is sent, and everything that is none."""

    def asked(model: str) -> dict[str, Any]:
        ask = {"stop": ["\nUser:"], **drafting(model, None if k is None else "d1", k or 1)}
        if path == CHAT:
            return chat(model, "hi", **ask)
        return complete(model, "<|user|>hi<|assistant|>", max_tokens=200, **ask)

    events = service.stream(path, asked("turning"))
    joined = "".join(deltas(events))
    assert joined == "Hello there"
    assert joined == text_of(service.ask(path, asked("turning")))
    assert events[-2][1]["choices"][0]["finish_reason"] == "stop"
    joined = "".join(deltas(service.stream(path, asked("breaking"))))
    assert joined == ALMOST
    assert joined == text_of(service.ask(path, asked("breaking")))


@pytest.mark.parametrize("draft", ["d1", "d2", "d3"])
def test_an_answer_is_as_long_as_asked(service: Service, draft: str) -> None:
    """C6: n = 1 … 2k + 2 tokens, with blocks of 4."""
    prompt = prompts(1)[0]
    expected = Oracle(PLAIN).greedy(prompt, 10)
    for count in range(1, 11):
        asked = complete("plain", prompt, max_tokens=count, **drafting("plain", draft, 4))
        answer = service.ask(COMPLETION, asked)
        assert answer["usage"]["completion_tokens"] == count
        assert answer["usage"]["total_tokens"] == len(prompt) + count
        assert answer["choices"][0]["finish_reason"] == "length"
        assert text_of(answer) == Oracle.text(expected[:count])


@pytest.mark.parametrize(("model", "toy"), [("second", SECOND_END), ("tokenizers", TOKENIZERS_END)])
@pytest.mark.parametrize("draft", [None, "d1"])
def test_every_declared_end_ends(service: Service, model: str, toy: Toy, draft: str | None) -> None:
    """C7: the second id of generation_config.json; one that only the tokenizer knows."""
    assert toy.config_eos == (END,)
    answer = service.chat(model, "hi", max_tokens=50, **drafting(model, draft, 8))
    assert text_of(answer) == "bye"
    assert answer["choices"][0]["finish_reason"] == "stop"
    assert answer["usage"]["completion_tokens"] == 4


@pytest.mark.parametrize("draft", [None, "d1"])
def test_ends_are_impossible_before_min_tokens(service: Service, draft: str | None) -> None:
    """C9: the draft proposes the end early."""
    asked = drafting("early", draft, 8)
    ids = chat_ids("hi")
    assert text_of(service.chat("early", "hi", max_tokens=40, **asked)) == "abc"

    def no_end_before(count: int) -> Any:
        def adjust(logits: list[float], output: Sequence[int]) -> None:
            for end in END_IDS if len(output) < count else ():
                logits[end] = float("-inf")

        return adjust

    for count in (4, 5, 10):
        answer = service.chat("early", "hi", max_tokens=40, min_tokens=count, **asked)
        expected = spoken_with(EARLY, ids, 40, no_end_before(count))
        assert text_of(answer) == Oracle.text(expected)
        assert answer["usage"]["completion_tokens"] == len(expected) >= 10
