"""Many clients, slow ones, and ones that stop half-way: the service answers the others."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import pwd
import signal
import socket
from collections import Counter
from pathlib import Path

import httpx
import psutil
import pytest

from homespecd.api.connections import MOST_CONNECTIONS
from tests.integration.running_service import PATIENCE_S, wait_for
from tests.integration.service import Served, Service, chat, module_service, serving
from tests.oracle import ASSISTANT, Toy, say

pytestmark = pytest.mark.integration

HELLO = Toy(layout="lanes", script=say("Hello there, all of you"), script_after=ASSISTANT)

running, service = module_service(Served("hello", HELLO, ("d1",), slots=2), slowed=True)


async def test_two_hundred_at_once_are_answered_or_told_to_come_again(service: Service) -> None:
    """32 may wait and 2 are answered; nobody hangs, and health is answered all the time."""
    transport = httpx.AsyncHTTPTransport(uds=str(service.socket))
    limits = httpx.Timeout(PATIENCE_S)
    async with httpx.AsyncClient(
        transport=transport, base_url="http://x", timeout=limits, limits=httpx.Limits()
    ) as client:

        async def ask(index: int) -> httpx.Response:
            path = "/v1/chat/completions"
            return await client.post(path, json=chat("hello", f"hi {index}", max_tokens=30))

        asked = [asyncio.create_task(ask(index)) for index in range(200)]
        while not all(one.done() for one in asked):
            assert (await client.get("/healthz")).status_code == 200
            await asyncio.sleep(0.05)
        answers = [one.result() for one in asked]
    counts = Counter(answer.status_code for answer in answers)
    assert set(counts) <= {200, 503}
    assert counts[200] >= 34
    for answer in answers:
        if answer.status_code == 200:
            text = answer.json()["choices"][0]["message"]["content"]
            assert text == "Hello there, all of you"
        else:
            assert answer.json()["error"]["code"] == "queue_full"
            assert int(answer.headers["Retry-After"]) >= 1
    queue = service.status()["queue"]
    assert queue == {"waiting": 0, "active": 0}


def connected(service: Service) -> socket.socket:
    sock = socket.socket(socket.AF_UNIX)
    sock.connect(str(service.socket))
    return sock


def test_whoever_comes_while_the_service_is_busy_waits_at_the_door(service: Service) -> None:
    """Three hundred that do not block, all before one is let in: none is turned away."""
    assert service.process is not None
    waiting: list[socket.socket] = []
    service.process.send_signal(signal.SIGSTOP)
    try:
        for _ in range(300):
            waiting.append(socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_NONBLOCK))
            waiting[-1].connect(str(service.socket))
            waiting[-1].sendall(b"GET /healthz HTTP/1.1\r\nHost: x\r\n\r\n")
        service.process.send_signal(signal.SIGCONT)
        for sock in waiting:
            sock.settimeout(PATIENCE_S)
            assert sock.recv(65536).startswith(b"HTTP/1.1 200")
    finally:
        service.process.send_signal(signal.SIGCONT)
        for sock in waiting:
            sock.close()


def test_half_requests_hold_nobody_up(service: Service) -> None:
    """Heads that never end, bodies that never come, and connections that say nothing."""
    body = json.dumps(chat("hello", "hi")).encode()
    head = b"POST /v1/chat/completions HTTP/1.1\r\nHost: x\r\n"
    pieces = [
        b"",
        b"POST /v1/ch",
        head + b"X-Slow: 1",
        head + b"Content-Length: %d\r\n\r\n" % len(body),
        head + b"Content-Length: %d\r\n\r\n" % len(body) + body[:10],
        head + b'Transfer-Encoding: chunked\r\n\r\n5\r\n{"mod',
    ]
    assert service.process is not None
    service_itself = psutil.Process(service.process.pid)
    service.chat("hello", "hi", max_tokens=30)
    before_bytes = service_itself.memory_info().rss
    stuck: list[socket.socket] = []
    try:
        for index in range(MOST_CONNECTIONS + 100):
            stuck.append(connected(service))
            with contextlib.suppress(BrokenPipeError, ConnectionResetError):
                stuck[-1].sendall(pieces[index % len(pieces)])
        for _ in range(3):
            assert service.http.get("/healthz").status_code == 200
            answer = service.chat("hello", "hi", max_tokens=30)
            assert answer["choices"][0]["message"]["content"] == "Hello there, all of you"
        status = service.status()
        assert status["queue"]["waiting"] == 0
        assert service_itself.num_fds() < MOST_CONNECTIONS + 50
        assert service_itself.memory_info().rss - before_bytes < 48 * 2**20
    finally:
        for sock in stuck:
            sock.close()
    wait_for(lambda: service_itself.num_fds() < 50, what=service_itself.num_fds)


def test_whoever_never_reads_keeps_no_place(service: Service) -> None:
    """An answer that is made and not taken: no slot, no place in the queue, no running request."""
    asked = chat("hello", "hi", max_tokens=1500, ignore_eos=True, logprobs=True, top_logprobs=20)
    body = json.dumps({**asked, "stream": True}).encode()
    head = b"POST /v1/chat/completions HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\n\r\n"
    before = service.model("hello")["totals"]["requests"]
    with connected(service) as deaf:
        with service.slowly():
            deaf.sendall(head % len(body) + body)
            wait_for(lambda: service.status()["clients"][0]["active"] == 1, what=service.log)
        # Others are answered meanwhile, and afterwards it counts no more though nobody has read it.
        service.chat("hello", "hi", max_tokens=30)
        wait_for(lambda: service.status()["clients"][0]["active"] == 0, what=service.log)
        assert service.status()["queue"] == {"waiting": 0, "active": 0}
        assert service.model("hello")["totals"]["requests"] == before + 1
    wait_for(lambda: service.model("hello")["totals"]["requests"] == before + 2, what=service.log)


@pytest.mark.parametrize(
    "sent",
    [
        b"GET / HTTP/1.1\r\n" + b"X: " + b"a" * 200_000 + b"\r\n\r\n",
        b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" * 20 + b"\r\n\r\n",
        b"POST /v1/chat/completions HTTP/1.1\r\nHost: x\r\nContent-Length: -5\r\n\r\n",
        b"POST /v1/chat/completions HTTP/1.1\r\nHost: x\r\nContent-Length: 99999999999\r\n\r\n",
        b"POST /v1/chat/completions HTTP/1.1\r\nHost: x\r\nContent-Encoding: gzip\r\n"
        b"Content-Length: 2\r\n\r\n{}",
    ],
    ids=["a huge header", "not HTTP", "a negative length", "a huge length", "not compressed"],
)
def test_what_is_no_request_is_refused_at_once(service: Service, sent: bytes) -> None:
    with connected(service) as sock:
        sock.settimeout(PATIENCE_S)
        sock.sendall(sent)
        status = sock.recv(65536).split(b" ", 2)[1]
    assert status in (b"400", b"413", b"431")
    assert service.http.get("/healthz").status_code == 200
    assert "Traceback" not in service.log()


CONTROL = ("load", "unload", "bench", "verify")


def test_a_user_may_use_its_models_and_no_others(tmp_path: Path) -> None:
    """By any way: answers, Ollama's loads, token counts, control."""
    me = pwd.getpwuid(os.getuid()).pw_name
    rules = f'[clients."{me}"]\nallow_models = ["mine"]\nmax_tokens_per_minute = 40\n'
    served = (Served("mine", HELLO), Served("theirs", HELLO, more=rules))
    with serving(tmp_path, served) as one:
        for path, body in (
            ("/v1/chat/completions", chat("theirs", "hi")),
            ("/api/chat", {"model": "theirs", "messages": [{"role": "user", "content": "hi"}]}),
            ("/api/generate", {"model": "theirs"}),
            ("/tokenize", {"model": "theirs", "content": "hi"}),
            ("/detokenize", {"model": "theirs", "tokens": [65]}),
            *((f"/homespec/models/theirs/{what}", {}) for what in CONTROL),
        ):
            response = one.post(path, body)
            assert response.status_code == 403, (path, response.text)
        assert one.model("theirs")["loads"] == 0
        one.ask("/homespec/models/mine/load", None)
        refused = None
        for _ in range(10):
            response = one.post("/v1/chat/completions", chat("mine", "hi", max_tokens=8))
            if response.status_code != 200:
                refused = response
                break
        assert refused is not None
        assert refused.status_code == 429
        assert refused.json()["error"]["code"] == "token_quota_exceeded"
        assert 1 <= int(refused.headers["Retry-After"]) <= 60
