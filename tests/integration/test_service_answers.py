"""Answers over the real socket: shapes, refusals, hang-ups, crashes, cold starts, queues."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import socket
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import openai
import pytest

from tests.integration.running_service import (
    MODEL,
    PATIENCE_S,
    RunningService,
    chat,
    held_port,
    sse_events,
    wait_for,
)

pytestmark = pytest.mark.integration

TEXT = "".join(f'"é{index}\n' for index in range(5))


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningService]:
    """One service for the tests that leave no trace in it."""
    with held_port() as port:
        server = f'max_body = "64KiB"\nlisten = ["127.0.0.1:{port}"]'
        service = RunningService(tmp_path_factory.mktemp("shared"), server=server).start()
        yield service
        assert service.stop() == 0


@pytest.fixture
def service(tmp_path: Path) -> Iterator[RunningService]:
    """A service of the test's own, not started."""
    service = RunningService(tmp_path)
    yield service
    if service.process is not None:
        service.stop(signal.SIGKILL)


async def post(service: RunningService, body: Any, path: str = "/v1/chat/completions") -> Any:
    async with service.client() as client:
        return await client.post(path, json=body)


async def status(service: RunningService) -> Any:
    async with service.client() as client:
        return (await client.get("/homespec/status")).json()


# -- shapes ------------------------------------------------------------------------------------


async def test_a_chat_is_answered_whole(shared: RunningService) -> None:
    body = (await post(shared, chat())).json()
    assert body["object"] == "chat.completion"
    [choice] = body["choices"]
    assert choice["message"]["content"] == TEXT
    assert choice["finish_reason"] == "stop"
    assert body["usage"]["total_tokens"] == 10
    assert body["usage"]["prompt_tokens_details"] == {"cached_tokens": 1}
    assert body["homespec"]["draft_tokens_accepted"] == 3


async def test_a_chat_is_streamed_without_a_usage_chunk(shared: RunningService) -> None:
    response = await post(shared, chat(stream=True))
    assert response.headers["content-type"].startswith("text/event-stream")
    events = [data for _, data in sse_events(response.text)]
    assert events[-1] == "[DONE]"
    chunks = events[:-1]
    assert chunks[0]["choices"][0]["delta"]["role"] == "assistant"
    assert "".join(c["choices"][0]["delta"].get("content", "") for c in chunks) == TEXT
    reasons = [chunk["choices"][0]["finish_reason"] for chunk in chunks]
    assert reasons == [None] * (len(chunks) - 1) + ["stop"]
    assert chunks[-1]["homespec"]["mode"] == "mixed"
    assert all("usage" not in chunk for chunk in chunks)


async def test_the_usage_chunk_comes_last_and_equals_the_whole_answer(
    shared: RunningService,
) -> None:
    asked = chat(stream=True, stream_options={"include_usage": True})
    events = [data for _, data in sse_events((await post(shared, asked)).text)]
    last = events[-2]
    assert last["choices"] == []
    assert last["usage"] == (await post(shared, chat())).json()["usage"]
    assert last["homespec"]["rounds"] == 5
    assert all(chunk["usage"] is None for chunk in events[:-2])


async def test_a_text_completion_both_ways(shared: RunningService) -> None:
    asked = {"model": "m", "prompt": "x", "max_tokens": 2}
    whole = (await post(shared, asked, "/v1/completions")).json()
    assert whole["object"] == "text_completion"
    assert whole["choices"][0]["text"] == TEXT[:8]
    assert whole["choices"][0]["finish_reason"] == "length"
    streamed = await post(shared, {**asked, "stream": True}, "/v1/completions")
    events = [data for _, data in sse_events(streamed.text)]
    assert "".join(chunk["choices"][0]["text"] for chunk in events[:-1]) == TEXT[:8]


async def test_the_openai_client_understands_all_of_it(shared: RunningService) -> None:
    port = int(shared.config.read_text().partition("127.0.0.1:")[2].partition('"')[0])
    async with openai.AsyncOpenAI(
        base_url=f"http://127.0.0.1:{port}/v1", api_key="-", max_retries=0
    ) as client:
        messages: Any = [{"role": "user", "content": "hi"}]
        whole = await client.chat.completions.create(model="m", messages=messages)
        assert whole.choices[0].message.content == TEXT
        stream = await client.chat.completions.create(model="m", messages=messages, stream=True)
        texts = [chunk.choices[0].delta.content or "" async for chunk in stream]
        assert "".join(texts) == TEXT
        assert [one.id async for one in client.models.list()] == ["m"]
        with pytest.raises(openai.NotFoundError, match="there is no model"):
            await client.chat.completions.create(model="x", messages=messages)
        bad: Any = [{"role": "user", "content": "explode"}]
        stream = await client.chat.completions.create(model="m", messages=bad, stream=True)
        seen = []
        with pytest.raises(openai.APIError, match="the graph failed"):
            seen.extend([chunk async for chunk in stream])


async def test_an_error_in_a_stream_is_no_success(shared: RunningService) -> None:
    response = await post(shared, chat("explode", stream=True))
    assert response.status_code == 200
    events = sse_events(response.text)
    kind, last = events[-1]
    assert kind == "error"
    assert last["error"]["code"] == "model_error"
    assert all(data["choices"][0]["finish_reason"] is None for _, data in events[:-1])
    assert (await post(shared, chat("explode"))).status_code == 500


async def test_a_prompt_too_long_is_a_plain_400_even_for_a_stream(shared: RunningService) -> None:
    response = await post(shared, chat("x" * 3000, stream=True))
    assert response.status_code == 400
    assert response.json()["error"]["code"] == "context_length_exceeded"


# -- refusals ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("method", "path", "body", "expected"),
    [
        ("POST", "/v1/chat/completions", b"{", 400),
        ("POST", "/v1/chat/completions", json.dumps(chat(n=0)).encode(), 400),
        ("POST", "/v1/chat/completions", json.dumps(chat(model="x")).encode(), 404),
        ("POST", "/v1/chat/completions", b"x" * 70_000, 413),
        ("GET", "/v1/chat/completions", b"", 405),
        ("DELETE", "/v1/models", b"", 405),
        ("GET", "/v1/models/x", b"", 404),
        ("GET", "/nowhere", b"", 404),
        ("POST", "/homespec/models/x/load", b"", 404),
        ("POST", "/homespec/models/m/verify", b"[]", 400),
        ("POST", "/homespec/models/m/verify", b'{"sample": 3}', 400),
        ("POST", "/homespec/models/m/bench", b'{"prompts": []}', 400),
        ("POST", "/homespec/models/m/dance", b"", 404),
    ],
)
async def test_refusals_have_an_openai_body(
    shared: RunningService, method: str, path: str, body: bytes, expected: int
) -> None:
    async with shared.client() as client:
        response = await client.request(method, path, content=body)
        assert response.status_code == expected
        assert set(response.json()["error"]) == {"message", "type", "param", "code"}
        assert (await client.get("/healthz")).status_code == 200


async def test_a_body_without_a_length_is_measured_too(shared: RunningService) -> None:
    async def endless() -> Any:
        for _ in range(100):
            yield b"x" * 1000

    async with shared.client() as client:
        response = await client.post("/v1/chat/completions", content=endless())
    assert response.status_code == 413


async def test_an_unknown_drafter_is_named(shared: RunningService) -> None:
    response = await post(shared, chat(homespec={"drafter": "zzz"}))
    assert response.status_code == 400
    assert response.json()["error"]["param"] == "homespec.drafter"


# -- who asks ----------------------------------------------------------------------------------


async def test_the_kernel_says_who_asks(shared: RunningService) -> None:
    await post(shared, chat(user="somebody else"))
    clients = (await status(shared))["clients"]
    [client] = [one for one in clients if one["uid"] is not None]
    assert (client["uid"], client["gid"]) == (os.getuid(), os.getgid())
    assert client["pid"] == os.getpid()
    assert client["active"] == 0
    assert client["requests"] > 0


async def test_no_text_reaches_the_log(shared: RunningService) -> None:
    secret = "a secret nobody may read"
    await post(shared, chat(secret))
    log = shared.log()
    assert f"request model=m uid={os.getuid()} " in log
    assert "secret" not in log
    assert "é0" not in log
    assert "\x1b" not in log


async def test_jobs_run_in_the_worker(shared: RunningService) -> None:
    result = await post(shared, {"samples": 3}, "/homespec/models/m/verify")
    assert result.json() == {"kind": "verify", "options": {"samples": 3}}
    prompts = [{"category": "chat", "messages": [{"role": "user", "content": "hi"}]}]
    options = {"prompts": prompts, "seed": 2}
    result = await post(shared, options, "/homespec/models/m/bench")
    assert result.json() == {"kind": "bench", "options": options}
    result = await post(shared, {}, "/homespec/models/m/bench")
    assert result.json()["kind"] == "bench"


def test_a_client_that_shut_its_sending_side_is_answered(shared: RunningService) -> None:
    body = json.dumps(chat()).encode()
    head = f"POST /v1/chat/completions HTTP/1.1\r\nHost: h\r\nContent-Length: {len(body)}\r\n\r\n"
    with socket.socket(socket.AF_UNIX) as sock:
        sock.settimeout(PATIENCE_S)
        sock.connect(str(shared.socket))
        sock.sendall(head.encode() + body)
        sock.shutdown(socket.SHUT_WR)
        answer = b""
        while piece := sock.recv(65536):  # ends: the service closes what can bring no more
            answer += piece
    assert answer.startswith(b"HTTP/1.1 200")
    assert json.loads(answer.partition(b"\r\n\r\n")[2])["choices"][0]["message"]["content"] == TEXT


# -- hang-ups ----------------------------------------------------------------------------------


@pytest.mark.parametrize("stream", [True, False])
@pytest.mark.parametrize("half_closed", [False, True])
def test_a_hang_up_stops_the_generation(
    service: RunningService, stream: bool, half_closed: bool
) -> None:
    service.knobs(tokens=100_000, token_s=0.01)
    service.start()
    body = json.dumps(chat(stream=stream)).encode()
    head = f"POST /v1/chat/completions HTTP/1.1\r\nHost: h\r\nContent-Length: {len(body)}\r\n\r\n"
    with socket.socket(socket.AF_UNIX) as sock:
        sock.connect(str(service.socket))
        sock.sendall(head.encode() + body)
        if half_closed:
            sock.shutdown(socket.SHUT_WR)
        wait_for(lambda: service.events("generate"))
        assert not service.events("cancel")
    wait_for(lambda: service.events("cancel"), what=service.log)
    assert service.stop() == 0
    assert "end=cancelled" in service.log()


async def test_a_hang_up_while_waiting_does_not_cancel_the_load(service: RunningService) -> None:
    service.knobs(load_gate=True)
    service.start()
    async with service.client() as client:
        waiting = asyncio.create_task(client.post("/v1/chat/completions", json=chat()))
        await asyncio.to_thread(wait_for, lambda: service.events("load"), what=service.log)
        waiting.cancel()
        while (await status(service))["models"][0]["waiting"]:
            pass
        (service.folder / "load").touch()
        assert (await client.post("/v1/chat/completions", json=chat())).status_code == 200
    assert len(service.events("load")) == 1
    assert len(service.events("generate")) == 1
    [model] = (await status(service))["models"]
    assert (model["active"], model["waiting"], model["loads"]) == (0, 0, 1)


# -- workers that die or do not load -----------------------------------------------------------


async def test_a_killed_worker_costs_its_own_requests_an_error(service: RunningService) -> None:
    service.knobs(tokens=100_000, token_s=0.01)
    service.start()

    async with (
        service.client() as client,
        client.stream("POST", "/v1/chat/completions", json=chat(stream=True)) as streamed,
    ):
        lines = streamed.aiter_lines()
        await anext(lines)  # the stream has begun
        whole = asyncio.create_task(post(service, chat()))
        await asyncio.to_thread(wait_for, lambda: len(service.events("generate")) == 2)
        os.kill(service.events("load")[0]["pid"], signal.SIGKILL)
        rest = [line async for line in lines if line]
    assert rest[-2] == "event: error"
    assert (await whole).status_code == 503
    for error in (
        json.loads(rest[-1].removeprefix("data: "))["error"],
        (await whole).json()["error"],
    ):
        assert error["code"] == "worker_died"
        assert "SIGKILL" in error["message"]
    service.knobs(tokens=2)
    assert (await post(service, chat())).status_code == 200
    assert len(service.events("load")) == 2
    [model] = (await status(service))["models"]
    assert model["totals"]["failures"] == 2


@pytest.mark.parametrize(
    ("knobs", "message"),
    [({"fail": "the graph is truncated"}, "the graph is truncated (mend it)"),
     ({"die_in_load": True}, "exit code 3")],
)  # fmt: skip
async def test_a_model_that_does_not_load_says_why_and_recovers(
    service: RunningService, knobs: dict[str, Any], message: str
) -> None:
    service.knobs(**knobs)
    service.start()
    response = await post(service, chat(stream=True))
    assert response.status_code == 503
    assert message in response.json()["error"]["message"]
    assert "retry-after" in response.headers
    [model] = (await status(service))["models"]
    assert model["state"] == "failed"
    assert message in model["error"]
    service.knobs()
    assert (await post(service, chat())).status_code == 200
    [model] = (await status(service))["models"]
    assert (model["state"], model["error"]) == ("ready", None)


async def test_a_model_that_keeps_failing_is_not_started_for_every_request(
    service: RunningService,
) -> None:
    service.knobs(fail="broken")
    service.start()
    for _ in range(6):
        assert (await post(service, chat())).status_code == 503
    assert len(service.events("load")) < 6
    service.knobs()
    # Somebody says that it is worth a try.
    assert (await post(service, None, "/homespec/models/m/load")).status_code == 200


# -- loads and queues --------------------------------------------------------------------------


async def test_ten_cold_requests_load_once(service: RunningService) -> None:
    service.knobs(load_gate=True)
    service.start()
    asked = [asyncio.create_task(post(service, chat())) for _ in range(10)]
    while (await status(service))["models"][0]["waiting"] < 10:
        assert not any(one.done() for one in asked)
    (service.folder / "load").touch()
    responses = await asyncio.gather(*asked)
    assert [response.status_code for response in responses] == [200] * 10
    assert len(service.events("load")) == 1


async def test_the_control_plane_answers_while_a_model_loads(service: RunningService) -> None:
    service.write_config(models=MODEL + 'residency = "pinned"\n')
    service.knobs(load_gate=True)
    service.start()
    async with service.client() as client:
        [model] = (await client.get("/homespec/status")).json()["models"]
        assert model["state"] == "loading"
        assert (await client.get("/healthz")).status_code == 200
        not_ready = await client.get("/readyz")
        assert (not_ready.status_code, not_ready.json()["models"]) == (503, ["m"])
        (service.folder / "load").touch()
        assert (await client.post("/v1/chat/completions", json=chat())).status_code == 200
        assert (await client.get("/readyz")).status_code == 200


async def test_a_full_queue_says_so_and_the_rest_are_served_in_order(
    service: RunningService,
) -> None:
    """K4."""
    service.write_config(models=MODEL.replace("slots = 2", "slots = 1"), server="max_queue = 2")
    service.knobs(gate=True)
    service.start()
    served = []
    for index in range(3):
        served.append(asyncio.create_task(post(service, chat(f"number {index}"))))
        while (await status(service))["queue"] != {"active": 1, "waiting": index}:
            assert not served[-1].done()
    refused = await asyncio.gather(*(post(service, chat()) for _ in range(3)))
    (service.folder / "gate").touch()
    assert [response.status_code for response in await asyncio.gather(*served)] == [200] * 3
    prompts = [event["prompt"] for event in service.events("generate")]
    assert prompts == ["number 0", "number 1", "number 2"]
    for response in refused:
        assert response.status_code == 503
        assert response.json()["error"]["code"] == "queue_full"
        assert "retry-after" in response.headers


async def test_options_of_requests_never_reload(service: RunningService) -> None:
    service.start()
    for index in range(4):
        await post(service, chat(temperature=index / 4, seed=index, stop=[str(index)]))
    assert len(service.events("load")) == 1


async def test_an_idle_model_is_unloaded_after_its_last_request(service: RunningService) -> None:
    service.write_config(models=MODEL + 'idle_unload = "1s"\n')
    service.knobs(tokens=6, token_s=0.25)
    service.start()
    # The answer takes longer than the idle time.
    assert (await post(service, chat())).json()["usage"]["completion_tokens"] == 6
    assert len(service.events("load")) == 1
    await asyncio.to_thread(wait_for, lambda: service.events("stop"))
    assert (await post(service, chat(max_tokens=1))).status_code == 200
    assert len(service.events("load")) == 2


async def test_models_that_exclude_each_other_take_turns(service: RunningService) -> None:
    """The one that is answering finishes; then it goes, and the other comes."""
    models = "".join(f'[models.{name}]\npath = "{name}"\n' for name in "ab")
    # What a worker is thought to need before it was measured is more than half of this.
    service.write_config(models=models, memory='cap = "210MiB"')
    service.knobs("a", tokens=20, gate=True)
    service.start()
    first = asyncio.create_task(post(service, chat(model="a")))
    await asyncio.to_thread(wait_for, lambda: service.events("generate", "a"))
    second = asyncio.create_task(post(service, chat(model="b")))
    while {one["name"]: one["waiting"] for one in (await status(service))["models"]}["b"] == 0:
        pass
    assert service.events("stop", "a") == service.events("load", "b") == []
    (service.folder / "gate").touch()
    assert (await first).json()["usage"]["completion_tokens"] == 20
    assert (await second).status_code == 200
    assert len(service.events("stop", "a")) == 1
    log = service.log()
    assert log.index("model a: unloading") < log.index("model b: loading")


async def test_what_cannot_fit_is_refused_with_the_numbers(service: RunningService) -> None:
    service.write_config(memory='cap = "10MiB"')
    service.start()
    response = await post(service, chat())
    assert response.status_code == 503
    error = response.json()["error"]
    assert error["code"] == "insufficient_memory"
    assert "10.0 MiB" in error["message"]
    assert service.events("load") == []
    # The start said so too, and a reload does.
    async with service.client() as client:
        [warning] = (await client.post("/homespec/reload")).json()["warnings"]
    assert "warning: models.m: needs about 2" in warning
    assert warning.partition("warning: ")[2] in service.log()


@pytest.mark.parametrize(
    "junk",
    [
        b"GET / HTTP/9.9\r\n\r\n",
        b"POST /v1/models HTTP/1.1\r\nHost: x\r\nContent-Length: -5\r\n\r\n",
        b"GET /" + b"a" * 20_000 + b" HTTP/1.1\r\nHost: x\r\n\r\n",
        b"GET / HTTP/1.1\r\nX: " + b"a" * 100_000 + b"\r\n\r\n",
    ],
    ids=["version", "length", "address", "header"],
)
def test_what_is_not_http_leaves_no_trace_of_the_program(
    service: RunningService, junk: bytes
) -> None:
    """Anybody may send it, so it must not fill the log."""
    service.start()
    with socket.socket(socket.AF_UNIX) as sock:
        sock.settimeout(PATIENCE_S)
        sock.connect(str(service.socket))
        sock.sendall(junk)
        assert sock.recv(65536).split()[1].startswith(b"4")
    service.stop()
    assert "Traceback" not in service.log()
