"""Pairs: drafts that are padded, different, slower, broken or missing; and long conversations."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import onnx
import pytest
from onnx import TensorProto, helper

from tests.integration.running_service import wait_for
from tests.integration.service import (
    COMPLETION,
    Served,
    Service,
    chat_ids,
    complete,
    drafting,
    module_service,
    prompts,
    serving,
    spoken,
    text_of,
)
from tests.oracle import Oracle, Toy
from tests.tiny_onnx import make_toy

pytestmark = pytest.mark.integration

PLAIN = Toy()
WIDE = Toy(pad_vocab=64, pad_wins=True)
CONTEXT = 80
SMALL = Toy(context=CONTEXT)
OTHER_KIND = Toy(layers=1, heads=3, head_dim=2, dtype="float16", position_ids=False)

running, service = module_service(
    Served(
        "plain",
        PLAIN,
        ("d1", "d2", "d3", "d4"),
        others={
            "loud": WIDE,
            "other": OTHER_KIND,
            "third": Toy(behaviour="every_third", layers=3, heads=1, head_dim=6),
            "nan": Toy(nan_at=40),
            "breaks": Toy(fail_at=200),
            "breaks-at-once": Toy(fail_at=0),
        },
    ),
    Served("wide", WIDE, ("d1", "d3"), others={"wider": Toy(pad_vocab=128)}),
    Served("lanes", Toy(layout="lanes"), others={"lanes-draft": Toy(layout="lanes")}, slots=2),
    Served(
        "small",
        SMALL,
        ("d1", "d3", "ngram"),
        others={"smaller": Toy(context=CONTEXT - 20), "larger": Toy(context=4096)},
        context=CONTEXT,
    ),
    Served("tiny", Toy(context=24), ("d1",), context=24),
    Served("talk", PLAIN, ("d1", "d3", "ngram"), slots=2),
)


def asked_for(name: str, k: int = 4) -> dict[str, Any]:
    return {"homespec": {"speculation": "on", "drafter": name, "max_draft_tokens": k}}


# -- pairing -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("model", "draft"),
    [
        ("plain", "plain-d4"),  # the draft is wider
        ("plain", "loud"),  # and a padded id is its favourite
        ("wide", "wide-d1"),  # the target is wider, a padded id its favourite
        ("wide", "wide-d3"),
        ("wide", "wider"),
    ],
)
def test_padding_pairs_and_is_never_said(service: Service, model: str, draft: str) -> None:
    """F1, both directions."""
    for index, prompt in enumerate(prompts(6)):
        answer = service.complete(model, prompt, max_tokens=40, **asked_for(draft, 1 + index))
        assert text_of(answer) == spoken(PLAIN, prompt, 40)
        assert answer["homespec"]["drafter"] == draft
        assert answer["homespec"]["draft_tokens_accepted"] > 0
    hot = {**complete(model, "x", max_tokens=200, **asked_for(draft, 4)), "temperature": 2.0}
    answer = service.ask(COMPLETION, hot)
    # Each token of a toy is at least one byte; a padded id would be none.
    assert len(text_of(answer)) >= answer["usage"]["completion_tokens"] == 200
    assert service.drafter(model, draft)["state"] == "ready"


@pytest.mark.parametrize(
    ("model", "draft"), [("plain", "other"), ("plain", "third"), ("lanes", "lanes-draft")]
)
def test_a_draft_is_fed_by_its_own_shape(service: Service, model: str, draft: str) -> None:
    """F6: other layers, heads, head size, dtype; no position_ids."""
    for index, prompt in enumerate(prompts(8)):
        answer = service.complete(model, prompt, max_tokens=60, **asked_for(draft, 1 + index))
        assert text_of(answer) == spoken(PLAIN, prompt, 60)
        proposed = answer["homespec"]["draft_tokens_proposed"]
        accepted = answer["homespec"]["draft_tokens_accepted"]
        assert 0 < accepted <= proposed
        if draft != "third":
            assert accepted == proposed


# -- drafts that fail --------------------------------------------------------------------------


@pytest.mark.parametrize(("name", "length"), [("nan", 20), ("breaks", 180)])
def test_a_draft_that_fails_later_is_given_up(service: Service, name: str, length: int) -> None:
    """NaN, or an error of the runtime, in the middle of an answer: the text does not notice."""
    # Not every row of a draft is looked at: after a block that was right it reads two at once.
    for more in range(8):
        prompt = prompts(1, length=length + more)[0]
        answer = service.complete("plain", prompt, max_tokens=60, **asked_for(name, 4))
        assert text_of(answer) == spoken(PLAIN, prompt, 60)
        if more == 0:
            assert answer["homespec"]["draft_tokens_accepted"] > 0
    assert answer["homespec"]["reason"] == "draft_failed"
    drafter = service.drafter("plain", name)
    assert (drafter["state"], drafter["reason"]) == ("failed", "draft_failed")
    assert drafter["error"]
    assert service.log().count(f"drafter {name} is off") == 1
    assert service.model("plain")["loads"] == 1


def test_a_draft_that_fails_at_once_is_no_reason_not_to_serve(service: Service) -> None:
    answer = service.complete("plain", "hello", max_tokens=20, **asked_for("breaks-at-once"))
    assert text_of(answer) == spoken(PLAIN, list(b"hello"), 20)
    assert answer["homespec"]["reason"] == "draft_failed"


@pytest.fixture(scope="module")
def broken(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Service]:
    """A service whose drafts cannot be loaded, each for another reason."""
    folder = tmp_path_factory.mktemp("broken")
    no_graph = make_toy(folder / "models" / "no-graph")
    (no_graph / "model.onnx").write_bytes(b"this is not ONNX" * 100)
    foreign = make_toy(folder / "models" / "foreign")
    tokenizer = json.loads((foreign / "tokenizer.json").read_text())
    vocab = tokenizer["model"]["vocab"]
    vocab["a"], vocab["b"] = vocab["b"], vocab["a"]
    (foreign / "tokenizer.json").write_text(json.dumps(tokenizer))
    strange = make_toy(folder / "models" / "strange")
    _identity_graph(strange / "model.onnx")
    served = [
        Served(f"with-{name}", PLAIN, others={name: f'kind = "model"\npath = "{name}"\n'})
        for name in REASONS
    ]
    with serving(folder, served) as service:
        yield service


REASONS = {
    "missing": "draft_failed",
    "no-graph": "draft_failed",
    "strange": "draft_failed",
    "foreign": "draft_incompatible",
}


def _identity_graph(path: Path) -> None:
    tensor = [helper.make_tensor_value_info(n, TensorProto.FLOAT, [1]) for n in ("x", "y")]
    node = helper.make_node("Identity", ["x"], ["y"])
    graph = helper.make_graph([node], "g", tensor[:1], tensor[1:])
    opsets = [helper.make_opsetid("", 17)]
    onnx.save(helper.make_model(graph, opset_imports=opsets, ir_version=9), path)


@pytest.mark.parametrize("name", REASONS)
def test_a_draft_that_does_not_load_is_shown(broken: Service, name: str) -> None:
    """F4, and a vocabulary that is another's: 200, with the reason in answer, status and log."""
    model = f"with-{name}"
    answer = broken.chat(model, "hi", max_tokens=20, homespec={"speculation": "on"})
    assert text_of(answer) == spoken(PLAIN, chat_ids("hi"), 20)
    assert answer["homespec"]["reason"] == REASONS[name]
    assert answer["homespec"]["mode"] == "plain"
    snapshot = broken.model(model)
    assert snapshot["state"] == "ready"
    assert snapshot["speculation"]["mode"] == "plain"
    assert snapshot["speculation"]["reason"] == REASONS[name]
    drafter = broken.drafter(model, name)
    assert (drafter["state"], drafter["reason"]) == ("failed", REASONS[name])
    assert name in drafter["error"]
    lines = [line for line in broken.log().splitlines() if f"drafter {name} is off" in line]
    assert len(lines) == 1
    assert lines[0].startswith("WARNING")
    assert model in lines[0]


# -- what a response says ----------------------------------------------------------------------


def test_every_eligible_request_drafts(service: Service) -> None:
    """A5: the fifth as much as the first."""
    before = service.model("plain")["totals"]["proposed"]
    counts = []
    for _ in range(5):
        answer = service.chat(
            "plain", "the same again", max_tokens=60, **drafting("plain", "d1", 4)
        )
        counts.append(answer["homespec"]["draft_tokens_proposed"])
        assert answer["homespec"]["draft_tokens_accepted"] == counts[-1]
    assert min(counts) >= 25  # how long a block pays is the governor's business
    assert service.model("plain")["totals"]["proposed"] == before + sum(counts)


def test_a_response_tells_what_speculation_did(service: Service) -> None:
    """A9: the counters with a draft, and none without."""
    with_draft = service.chat("plain", "hi", max_tokens=30, **drafting("plain", "d3", 4))[
        "homespec"
    ]
    assert with_draft["drafter"] == "plain-d3"
    assert with_draft["mode"] in ("speculative", "mixed")
    assert with_draft["reason"] == "speculating"
    assert 0 < with_draft["draft_tokens_accepted"] < with_draft["draft_tokens_proposed"]
    assert with_draft["acceptance_length"] == pytest.approx(30 / with_draft["rounds"], abs=0.01)
    assert with_draft["draft_ms"] > 0
    without = service.chat("plain", "hi", max_tokens=30, **drafting("plain", None))["homespec"]
    assert without["draft_tokens_proposed"] == without["draft_tokens_accepted"] == 0
    assert (without["mode"], without["drafter"]) == ("plain", None)
    assert without["reason"] == "disabled_by_request"
    assert without["rounds"] == 30


# -- speed -------------------------------------------------------------------------------------


def test_a_draft_that_never_helps_is_given_up_visibly(tmp_path: Path) -> None:
    """A1: measured where it was insisted on; automatic answers are then plain and say why.

    Steps take what they are said to take, so what is measured is the same on every machine.
    """
    insisted = drafting("slow", "d2", 8)
    proposed, reasons = 0, set()
    with serving(tmp_path, [Served("slow", PLAIN, ("d2",))], paced=True) as service:
        for index in range(3):
            service.chat("slow", f"insist {index}", max_tokens=100, **insisted)
        for index in range(12):
            answer = service.chat("slow", f"number {index}", max_tokens=100)
            assert text_of(answer) == spoken(PLAIN, chat_ids(f"number {index}"), 100)
            homespec = answer["homespec"]
            proposed += homespec["draft_tokens_proposed"]
            if homespec["draft_tokens_proposed"] == 0:
                reasons.add(homespec["reason"])
        speculation = service.model("slow")["speculation"]
        drafter = service.drafter("slow", "slow-d2")

    # A probe now and then is allowed; drafting is not.
    assert proposed <= 60
    assert "slower_than_plain" in reasons
    assert (speculation["mode"], speculation["reason"]) == ("plain", "slower_than_plain")
    assert drafter["acceptance_rate"] == 0.0
    # 20.2 ms for a token, or 20.2 + 0.2 k + 1.01 k of which k drafted ones are lost.
    assert 20.2 / (20.2 + 8 * 1.21) < drafter["speedup"] < 20.2 / (20.2 + 1.2)
    assert drafter["measured"]["plain_samples"] > 0
    assert drafter["measured"]["speculative_samples"] > 0


# -- context -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "draft", [None, "small-d1", "small-d3", "small-ngram", "smaller", "larger"]
)
def test_the_context_ends_an_answer(service: Service, draft: str | None) -> None:
    """G1: prompts of context - 10 … context - 1 tokens, without a limit of their own."""
    asked = drafting("small", None) if draft is None else asked_for(draft, 8)
    overhead = len(chat_ids(""))
    for left in range(10, 0, -1):
        message = "x" * (CONTEXT - left - overhead)
        ids = chat_ids(message)
        assert len(ids) == CONTEXT - left
        answer = service.chat("small", message, **asked)
        assert text_of(answer) == spoken(SMALL, ids, left)
        assert answer["choices"][0]["finish_reason"] == "length"
        assert answer["usage"]["total_tokens"] == CONTEXT
    # From far below a smaller draft's end to past it.
    answer = service.chat("small", "go", **asked)
    ids = chat_ids("go")
    assert text_of(answer) == spoken(SMALL, ids, CONTEXT - len(ids))
    assert answer["usage"]["total_tokens"] == CONTEXT


def test_a_context_shorter_than_what_is_measured(service: Service) -> None:
    """Loading times steps of up to 64 rows; a context may be shorter."""
    answer = service.complete("tiny", "abc", max_tokens=100, **drafting("tiny", "d1", 8))
    assert text_of(answer) == spoken(PLAIN, list(b"abc"), 21)


def test_a_prompt_longer_than_the_context_is_refused(service: Service) -> None:
    """G7: both lengths are named, on both routes, and the service goes on."""
    for length in (CONTEXT, CONTEXT + 50):
        response = service.post(COMPLETION, complete("small", [65] * length))
        assert response.status_code == 400
        error = response.json()["error"]
        assert error["code"] == "context_length_exceeded"
        assert f"{length} tokens" in error["message"]
        assert str(CONTEXT) in error["message"]
    long = "y" * (CONTEXT + 50)
    response = service.post(
        "/v1/chat/completions",
        {"model": "small", "messages": [{"role": "user", "content": long}], "stream": True},
    )
    assert response.status_code == 400
    assert response.json()["error"]["param"] == "messages"
    assert text_of(service.complete("small", "ok", max_tokens=5)) == spoken(SMALL, [111, 107], 5)


@pytest.mark.parametrize("draft", [None, "plain-d1", "plain-d3", "other"])
def test_a_prompt_of_one_token(service: Service, draft: str | None) -> None:
    """I8: the first step has an empty past."""
    asked = drafting("plain", None) if draft is None else asked_for(draft, 4)
    for token in (0x48, 0x20, 258):
        answer = service.complete("plain", [token], max_tokens=20, **asked)
        assert text_of(answer) == spoken(PLAIN, [token], 20)
        assert answer["usage"]["prompt_tokens"] == 1


# -- conversations -----------------------------------------------------------------------------


@pytest.mark.parametrize("draft", ["d1", "d3", "ngram"])
def test_every_turn_of_a_conversation_is_the_oracles(service: Service, draft: str) -> None:
    """G4: six turns, then an edited early message, then the first turn again."""
    asked = {"max_tokens": 24, **drafting("talk", draft, 4)}
    messages: list[dict[str, str]] = [{"role": "system", "content": f"be {draft}"}]

    def turn(content: str) -> None:
        messages.append({"role": "user", "content": content})
        answer = service.chat("talk", messages, **asked)
        ids = chat_ids(messages)
        assert text_of(answer) == Oracle.text(Oracle(PLAIN).greedy(ids, 24)), content
        cached.append(answer["usage"]["prompt_tokens_details"]["cached_tokens"])
        sizes.append(len(ids))
        messages.append({"role": "assistant", "content": text_of(answer)})

    cached: list[int] = []
    sizes: list[int] = []
    for index in range(6):
        turn(f"question {index}")
    # All of an earlier turn is reused: its prompt, at least.
    assert all(now >= before for now, before in zip(cached[1:], sizes, strict=False))
    first = messages[:1]
    messages[1] = {"role": "user", "content": "another question 0"}
    turn("and now?")
    messages[:] = first
    turn("question 0")


def test_warmth_does_not_change_a_text(service: Service) -> None:
    """The same request on a warm cache, a cold one, and after the model was loaded anew."""
    ids = prompts(1, length=90)[0]
    texts = []
    for _ in range(2):
        for prompt in (ids, ids[:40], ids):
            answer = service.complete("talk", prompt, max_tokens=30, **drafting("talk", "d3", 5))
            texts.append(text_of(answer))
        assert service.post("/homespec/models/talk/unload").status_code == 200
        wait_for(lambda: service.model("talk")["state"] == "unloaded", what=service.log)
    assert texts == [spoken(PLAIN, one, 30) for one in (ids, ids[:40], ids)] * 2
