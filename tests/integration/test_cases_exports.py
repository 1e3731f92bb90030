"""What exports may lack, lay out differently or get wrong, and files that are damaged."""

from __future__ import annotations

from pathlib import Path

import onnx
import pytest
from onnx import TensorProto, helper

from tests.integration.service import (
    Served,
    Service,
    chat_ids,
    drafting,
    module_service,
    prompts,
    serving,
    spoken,
    text_of,
)
from tests.oracle import Toy
from tests.tiny_onnx import make_toy

pytestmark = pytest.mark.integration

PLAIN = Toy()
EXPORTS = {
    "both": PLAIN,
    "no-positions": Toy(position_ids=False),
    "no-mask": Toy(attention_mask=False),
    "neither": Toy(position_ids=False, attention_mask=False),
    "merged": Toy(layout="merged"),
    "two-file": Toy(layout="two_file"),
    "lanes": Toy(layout="lanes"),
    "half": Toy(dtype="float16"),
}

running, service = module_service(
    *(Served(name, toy, ("d3",)) for name, toy in EXPORTS.items()),
    Served("last-only", Toy(last_only=True), ("d1", "ngram")),
    Served("not-causal", Toy(not_causal=True), ("d1", "ngram")),
    blocks_as_asked=True,
)


@pytest.mark.parametrize("name", EXPORTS)
def test_every_export_says_the_same(service: Service, name: str) -> None:
    """J1: with and without position_ids and attention_mask; J2: one file, merged, two files.

    The toys' caches hold what positions they were given, so a wrong one after a rewind shows.
    """
    rejected = 0
    for index, prompt in enumerate(prompts(8)):
        expected = spoken(PLAIN, prompt, 40)
        for draft in ("d3", None):
            asked = drafting(name, draft, 1 + index)
            answer = service.complete(name, prompt, max_tokens=40, **asked)
            assert text_of(answer) == expected, (index, draft)
            homespec = answer["homespec"]
            rejected += homespec["draft_tokens_proposed"] - homespec["draft_tokens_accepted"]
    assert rejected > 50
    exactness = service.model(name)["speculation"]["exactness"]
    assert exactness["block_causal"] is True
    assert exactness["max_logit_diff"] == 0.0
    # A prompt of several chunks, and one that follows it.
    long = prompts(1, length=200)[0]
    answer = service.complete(name, long, max_tokens=20, **drafting(name, "d3"))
    assert text_of(answer) == spoken(PLAIN, long, 20)
    follow_up = [*long, *b"more"]
    answer = service.complete(name, follow_up, max_tokens=20, **drafting(name, "d3"))
    assert text_of(answer) == spoken(PLAIN, follow_up, 20)
    assert answer["usage"]["prompt_tokens_details"]["cached_tokens"] >= len(long)


@pytest.mark.parametrize(
    ("name", "reason"), [("last-only", "logits_last_only"), ("not-causal", "not_block_causal")]
)
def test_blocks_that_cannot_be_trusted_are_not_used(
    service: Service, name: str, reason: str
) -> None:
    """Served plain, whatever is asked, with the reason in answer and status."""
    for draft in ("d1", "ngram"):
        for prompt in prompts(3):
            answer = service.complete(name, prompt, max_tokens=30, **drafting(name, draft, 4))
            assert text_of(answer) == spoken(PLAIN, prompt, 30)
            homespec = answer["homespec"]
            assert (homespec["mode"], homespec["reason"]) == ("plain", reason)
            assert homespec["draft_tokens_proposed"] == 0
            assert homespec["rounds"] == 30
    speculation = service.model(name)["speculation"]
    assert (speculation["mode"], speculation["reason"]) == ("plain", reason)


def test_external_data_is_found_from_anywhere(tmp_path: Path) -> None:
    """J4: the working directory is /, and a data file that is missing is named."""
    toy = Toy(external_data=True)
    served = [
        Served("outside", toy, ("d1",)),
        Served("lanes", Toy(external_data=True, layout="lanes")),
        Served("lost", toy),
    ]
    with serving(tmp_path, served, cwd=Path("/")) as service:
        for name in ("outside", "lanes"):
            answer = service.chat(name, "hi", max_tokens=20)
            assert text_of(answer) == spoken(PLAIN, chat_ids("hi"), 20)
        data = service.model_folder("lost") / "model.onnx_data"
        assert data.is_file()
        data.unlink()
        response = service.post("/v1/completions", {"model": "lost", "prompt": "hi"})
        assert response.status_code == 503
        assert "model.onnx_data" in response.json()["error"]["message"]
        model = service.model("lost")
        assert model["state"] == "failed"
        assert "model.onnx_data" in model["error"]


@pytest.mark.parametrize("damage", ["truncated", "empty", "garbage", "missing"])
def test_a_damaged_model_fails_alone_and_recovers(tmp_path: Path, damage: str) -> None:
    """J7: the service is up, other models answer, and a mended file is served."""
    served = [Served("damaged"), Served("sound")]
    with serving(tmp_path, served) as service:
        graph = service.model_folder("damaged") / "model.onnx"
        whole = graph.read_bytes()
        if damage == "missing":
            graph.unlink()
        else:
            part = {"truncated": whole[: len(whole) // 2], "empty": b"", "garbage": b"\0" * 4096}
            graph.write_bytes(part[damage])
        response = service.post("/v1/completions", {"model": "damaged", "prompt": "hi"})
        assert response.status_code == 503
        error = response.json()["error"]
        assert str(service.model_folder("damaged")) in error["message"]
        assert "retry-after" in response.headers
        assert service.model("damaged")["state"] == "failed"
        assert text_of(service.complete("sound", "hi", max_tokens=5))
        graph.write_bytes(whole)
        if damage == "garbage":  # a command does as well as a request
            assert service.post("/homespec/models/damaged/load").status_code == 200
        answer = service.complete("damaged", "hi", max_tokens=20)
        assert text_of(answer) == spoken(PLAIN, list(b"hi"), 20)
        assert service.model("damaged")["error"] is None
        assert "Traceback" not in service.log()


def test_an_unknown_layout_is_described(tmp_path: Path) -> None:
    """J2: what the graph has, or what the folder holds, is in the message."""
    served = [Served("strange", None), Served("files", None), Served("several", None)]
    strange = make_toy(tmp_path / "models" / "strange")
    tensors = [helper.make_tensor_value_info(n, TensorProto.FLOAT, [1]) for n in ("ins", "outs")]
    node = helper.make_node("Identity", ["ins"], ["outs"])
    graph = helper.make_graph([node], "g", tensors[:1], tensors[1:])
    opsets = [helper.make_opsetid("", 17)]
    model = helper.make_model(graph, opset_imports=opsets, ir_version=9)
    onnx.save(model, strange / "model.onnx")
    files = make_toy(tmp_path / "models" / "files")
    (files / "model.onnx").rename(files / "pytorch_model.bin")
    several = make_toy(tmp_path / "models" / "several")
    (several / "model_q4.onnx").write_bytes((several / "model.onnx").read_bytes())
    with serving(tmp_path, served) as service:
        for name, words in (
            ("strange", ("unknown layout", "ins", "outs")),
            ("files", ("pytorch_model.bin", "tokenizer.json")),
            ("several", ("model_q4.onnx", "model.onnx", "variant")),
        ):
            response = service.post("/v1/completions", {"model": name, "prompt": "hi"})
            assert response.status_code == 503
            message = response.json()["error"]["message"]
            assert all(word in message for word in words), message
