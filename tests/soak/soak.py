"""Everything at once for minutes: what must be steady afterwards is memory, processes, descriptors.

Not part of the suite: `make soak` runs it, `SOAK_S=600 make soak` longer.
"""

from __future__ import annotations

import os
import random
import signal
import threading
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

import httpx
import psutil
import pytest

from tests.integration.running_service import PATIENCE_S, sse_events, wait_for
from tests.integration.service import CHAT, Served, Service, chat, complete, prompts, spoken
from tests.oracle import Toy

SOAK_S = float(os.environ.get("SOAK_S", "180"))
MIB = 2**20
TOY = Toy()
NAMES = ("a", "b", "c")
# A service without workers and clients holds a dozen.
FEW_DESCRIPTORS = 20


def served(number: int) -> tuple[Served, ...]:
    drafts: tuple[tuple[str, ...], ...] = (("d1", "ngram"), ("d3",), ("d1", "d2"))
    return (
        Served("a", TOY, drafts[number % 3], slots=2),
        Served("b", TOY, ("ngram",), slots=2, more='idle_unload = "500ms"'),
        Served("c", TOY, slots=1, context=512 if number % 2 else 1024),
    )


@dataclass(frozen=True)
class Seen:
    """What the supervisor held at one moment when nothing was going on."""

    rss: int
    descriptors: int
    threads: int
    children: int


@dataclass
class Load:
    """Clients that do what clients do, well-behaved or not, until told to stop."""

    service: Service
    ends: Counter[str] = field(default_factory=Counter)
    stop: threading.Event = field(default_factory=threading.Event)

    def client(self, seed: int) -> None:
        dice = random.Random(seed)
        asked = prompts(12)
        transport = httpx.HTTPTransport(uds=str(self.service.socket))
        with httpx.Client(transport=transport, base_url="http://h", timeout=PATIENCE_S) as http:
            while not self.stop.is_set():
                act = dice.choice(("whole", "stream", "hang up", "nonsense", "status"))
                with suppress(httpx.TransportError):
                    self.ends[f"{act} {self._act(act, http, dice, asked)}"] += 1

    def _act(
        self, act: str, http: httpx.Client, dice: random.Random, asked: list[list[int]]
    ) -> str:
        name, prompt, tokens = dice.choice(NAMES), dice.choice(asked), dice.randrange(1, 80)
        body = complete(name, prompt, max_tokens=tokens)
        if act == "whole":
            response = http.post("/v1/completions", json=body)
            if response.status_code == 200:
                assert response.json()["choices"][0]["text"] == spoken(TOY, prompt, tokens)
            return str(response.status_code)
        if act == "stream":
            response = http.post("/v1/completions", json={**body, "stream": True})
            if response.status_code != 200:
                return str(response.status_code)
            kind, last = sse_events(response.text)[-1]
            return "whole" if last == "[DONE]" else kind
        if act == "hang up":
            endless = {**body, "stream": True, "max_tokens": 400}
            with http.stream("POST", "/v1/completions", json=endless) as response:
                next(response.iter_raw())
            return "done"
        if act == "nonsense":
            return str(http.post(CHAT, json=chat("nobody", "x")).status_code)
        return str(http.get("/homespec/status").status_code)

    def operator(self) -> None:
        """Edits, loads, unloads, and a worker killed now and then."""
        dice = random.Random(0)
        number = 0
        while not self.stop.wait(1.0):
            number += 1
            act = dice.choice(("edit", "hangup", "unload", "kill"))
            if act == "edit":
                self.service.write_config(served(number))
            elif act == "hangup":
                assert self.service.process is not None
                self.service.process.send_signal(signal.SIGHUP)
            elif act == "unload":
                self.service.post(f"/homespec/models/{dice.choice(NAMES)}/unload")
            else:
                pid = self.service.model(dice.choice(NAMES))["pid"]
                if pid:
                    with suppress(ProcessLookupError):
                        os.kill(pid, signal.SIGKILL)
            self.ends[f"operator {act}"] += 1


def run(load: Load, seconds: float) -> None:
    load.stop.clear()
    with ThreadPoolExecutor(8) as pool:
        doing = [pool.submit(load.client, seed) for seed in range(4)]
        doing.append(pool.submit(load.operator))
        ended = time.monotonic() + seconds
        while time.monotonic() < ended and not any(one.done() for one in doing):
            time.sleep(0.2)
        load.stop.set()
        for one in doing:
            one.result()


def quiet(service: Service) -> Seen:
    """Unload everything and look."""
    assert service.process is not None
    supervisor = psutil.Process(service.process.pid)
    wait_for(lambda: service.status()["queue"] == {"waiting": 0, "active": 0}, what=service.log)
    for name in NAMES:
        assert service.post(f"/homespec/models/{name}/unload").status_code == 200
    wait_for(lambda: not supervisor.children(), what=service.log)
    # Connections of clients that are gone are closed a moment later.
    wait_for(lambda: supervisor.num_fds() < FEW_DESCRIPTORS, what=service.log)
    return Seen(
        rss=supervisor.memory_info().rss,
        descriptors=supervisor.num_fds(),
        threads=supervisor.num_threads(),
        children=len(supervisor.children(recursive=True)),
    )


@pytest.mark.timeout(0)  # it takes as long as it is told to
def test_everything_at_once(tmp_path: Path) -> None:
    """A third of the time warms up; what is held after it must be all that is held at the end."""
    everything = (Served("a", TOY, ("d1", "d2", "d3", "ngram")), Served("b", TOY), Served("c", TOY))
    service = Service(tmp_path, everything)
    service.write_config(served(0))
    service.start()
    try:
        load = Load(service)
        run(load, SOAK_S / 3)
        before = quiet(service)
        run(load, SOAK_S * 2 / 3)
        after = quiet(service)
        lag_s = service.status()["loop_lag_s"]
        print(f"\n{before}\n{after}\n{dict(load.ends)}\nloop lag (s): {lag_s}")  # noqa: T201
        assert after.children == before.children == 0
        assert after.descriptors <= before.descriptors + 3
        assert after.threads <= before.threads + 8
        assert after.rss < before.rss + 8 * MIB
        assert load.ends["whole 200"] > 0
        assert "Traceback" not in service.log()
        assert service.stop() == 0
        assert not service.socket.exists()
    finally:
        service.close()
