"""Two real imports and a cap that holds one of them, over the real socket."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from homespecd.cli.client import Client
from tests.smollm2 import TIMEOUT_S, ask, said, served

pytestmark = [pytest.mark.model, pytest.mark.integration, pytest.mark.slow]

MODELS = """\
[models.int4]
path = INT4
context = 512
slots = 1
drafters = ["ngram"]
[models.int8]
path = INT8
context = 512
slots = 1
drafters = ["ngram"]
[drafters.ngram]
kind = "ngram"
"""


@pytest.fixture
def client(smollm2_int4: Path, smollm2_int8: Path) -> Iterator[Client]:
    folders = {"INT4": smollm2_int4, "INT8": smollm2_int8}
    with served(MODELS, folders, cap="550MiB") as client:
        yield client


def test_one_at_a_time_and_no_answer_lost(client: Client) -> None:
    """A request for the second model waits for the first one's answer, then takes its place."""
    hello = [{"role": "user", "content": "Tell me about rivers."}]
    alone = said(ask(client, "int4", hello, 80))
    loads = {}
    order: list[str] = []

    def answer(model: str, tokens: int) -> None:
        reply = ask(client, model, hello, tokens)
        order.append(model)
        loads[model] = said(reply)

    threads = [threading.Thread(target=answer, args=one) for one in (("int4", 80), ("int8", 16))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert loads["int4"] == alone
    assert loads["int8"]
    snapshot = client.get("/homespec/status", timeout_s=TIMEOUT_S)
    states = {model["name"]: model["state"] for model in snapshot["models"]}
    assert sorted(states.values()) == ["ready", "unloaded"]
    assert snapshot["memory"]["used_bytes"] <= snapshot["memory"]["cap_bytes"]


def test_a_second_turn_computes_only_what_is_new(client: Client) -> None:
    """Its text is that of a cold run, and `cached_tokens` says what was reused."""
    turns = [{"role": "user", "content": "Name a river."}]
    first = ask(client, "int4", turns, 24)
    turns += [
        {"role": "assistant", "content": said(first)},
        {"role": "user", "content": "And another one?"},
    ]
    warm = ask(client, "int4", turns, 24)
    reused = warm["usage"]["prompt_tokens_details"]["cached_tokens"]
    assert reused >= first["usage"]["prompt_tokens"]
    client.post("/homespec/models/int4/unload", timeout_s=TIMEOUT_S)
    cold = ask(client, "int4", turns, 24)
    assert cold["usage"]["prompt_tokens_details"]["cached_tokens"] == 0
    assert said(cold) == said(warm)
