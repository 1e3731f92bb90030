"""Counting tokens over the real service, and what is honestly not served."""

from __future__ import annotations

from typing import Any

import pytest

from tests.integration.service import Served, Service, chat_ids, module_service
from tests.oracle import USER, Toy, encode

pytestmark = pytest.mark.integration

running, service = module_service(Served("toy", Toy()), Served("lanes", Toy(layout="lanes")))

TEXT = "the \N{GRINNING FACE} in there"


def test_there_and_back(service: Service) -> None:
    found = service.ask("/tokenize", {"model": "toy", "content": TEXT})
    assert found == {"tokens": encode(TEXT), "count": len(encode(TEXT)), "max_model_len": 4096}
    again = service.ask("/detokenize", {"model": "toy", "tokens": found["tokens"]})
    assert again == {"content": TEXT}
    assert service.ask("/tokenize", {"model": "toy", "prompt": ""})["tokens"] == []
    control = service.ask("/detokenize", {"model": "toy", "tokens": [USER, 65]})
    assert control["content"] == "<|user|>A"


def test_messages_are_counted_as_they_will_be_asked(service: Service) -> None:
    said = [{"role": "user", "content": "hello"}]
    found = service.ask("/tokenize", {"model": "lanes", "messages": said})
    assert found["tokens"] == chat_ids("hello")
    answer = service.chat("lanes", "hello", max_tokens=1)
    assert answer["usage"]["prompt_tokens"] == found["count"]


@pytest.mark.parametrize(
    ("path", "body", "param"),
    [
        ("/tokenize", {"model": "toy"}, "content"),
        ("/tokenize", {"content": "x"}, "model"),
        ("/tokenize", {"model": "toy", "content": 3}, "content"),
        ("/tokenize", {"model": "toy", "content": "x", "prompt": "y"}, "prompt"),
        ("/tokenize", {"model": "toy", "content": "x", "messages": [{"role": "user",
         "content": "x"}]}, "content"),
        ("/tokenize", {"model": "toy", "messages": [{"role": "user", "content": "x"}],
         "tools": [{"type": "function", "function": {"name": "f"}}]}, "tools"),
        ("/detokenize", {"model": "toy", "tokens": [999999]}, "tokens"),
        ("/detokenize", {"model": "toy", "tokens": [-1]}, "tokens"),
        ("/detokenize", {"model": "toy", "tokens": "x"}, "tokens"),
    ],
)  # fmt: skip
def test_what_is_refused_is_named(
    service: Service, path: str, body: dict[str, Any], param: str
) -> None:
    response = service.post(path, body)
    assert response.status_code == 400, response.text
    assert response.json()["error"]["param"] == param


def test_embeddings_are_not_served(service: Service) -> None:
    response = service.post("/v1/embeddings", {"model": "toy", "input": "x"})
    assert response.status_code == 501
    assert response.json()["error"]["code"] == "not_served"
    assert service.post("/tokenize", {"model": "absent", "content": "x"}).status_code == 404
