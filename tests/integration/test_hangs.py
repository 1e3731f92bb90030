"""Workers that hang, each in its own way, on the real service; one beside them never notices."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest

from tests.integration.running_service import sse_events, wait_for
from tests.integration.service import Served, Service, complete, prompts, spoken, text_of
from tests.oracle import Toy

pytestmark = pytest.mark.integration

PLAIN = Toy()
LONG = Toy(context=1_000_000)  # an answer that is never done
STUCK, SILENT = 0x21, 0x22  # the first token of a prompt that does it
NAMES = ("m", "other")

# The engine of a worker is caught in a step; or sleeps and holds the interpreter, so that its
# reader cannot answer either.
_WORKER = f"""
import ctypes, sys, time
from tests.stepping_worker import main

def hanging(step, rows):
    first = rows[0].tokens[0] if len(rows[0].tokens) > 4 else None
    while first == {STUCK}:
        time.sleep(0.01)
    if first == {SILENT}:
        ctypes.PyDLL(None).sleep(1000)
    return step(rows)

sys.exit(main(int(sys.argv[1]), hanging))
"""

# A step of these toys takes a millisecond: a quarter of the usual patience is as much. It is longer
# than that for silence, which would be taken for a long step otherwise.
_LAUNCH = """
import sys
from homespecd.daemon.health import Patience
from homespecd.daemon.main import main
worker = (sys.executable, "-c", sys.argv[1])
sys.exit(main(sys.argv[2:], worker=worker, patience=Patience(step_s=2.5, unknown_step_s=30.0)))
"""


@pytest.fixture(scope="module")
def service(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Service]:
    served = tuple(Served(name, LONG, slots=2, context=1_000_000) for name in NAMES)
    service = Service(tmp_path_factory.mktemp("hangs"), served)
    service.command = ("-c", _LAUNCH, _WORKER)
    try:
        service.start()
        for name in NAMES:
            service.complete(name, prompts(1)[0], max_tokens=5)
        yield service
    finally:
        service.close()
        print(service.log())  # noqa: T201


@pytest.mark.parametrize(
    ("how", "why"),
    [("stopped", "was stopped"), ("stuck", "stuck in a step"), ("silent", "and did nothing")],
)
def test_a_worker_that_hangs_costs_its_own_requests_an_error(
    service: Service, how: str, why: str
) -> None:
    """Both of its conversations are told; the next request is answered; the other model goes on."""
    prompt = prompts(1)[0]
    before = {name: service.model(name) for name in NAMES}
    body = complete("m", prompt, max_tokens=500_000, stream=True, ignore_eos=True)
    with (
        ThreadPoolExecutor() as pool,
        service.http.stream("POST", "/v1/completions", json=body) as response,
    ):
        lines = response.iter_lines()
        first = next(lines)
        beside = pool.submit(service.complete, "other", prompt, max_tokens=600)
        if how == "stopped":
            os.kill(before["m"]["pid"], signal.SIGSTOP)
        else:
            poison = [STUCK if how == "stuck" else SILENT, *prompt]
            caught = pool.submit(service.post, "/v1/completions", complete("m", poison))
            assert caught.result().json()["error"]["code"] == "worker_died"
        rest = "\n".join([first, *lines])
        assert text_of(beside.result()) == spoken(PLAIN, prompt, 600)
    kind, data = sse_events(f"{rest}\n")[-1]
    assert kind == "error"
    assert data["error"]["code"] == "worker_died"
    assert why in data["error"]["message"]
    assert text_of(service.complete("m", prompt, max_tokens=5)) == spoken(PLAIN, prompt, 5)
    after = {name: service.model(name) for name in NAMES}
    assert after["m"]["loads"] == before["m"]["loads"] + 1
    assert after["other"]["pid"] == before["other"]["pid"]


def test_a_worker_that_is_stopped_while_it_loads_is_ended(service: Service) -> None:
    assert service.post("/homespec/models/m/unload").status_code == 200
    with ThreadPoolExecutor() as pool:
        loading = pool.submit(service.post, "/homespec/models/m/load")
        pid = wait_for(lambda: service.model("m")["pid"], what=service.log)
        os.kill(pid, signal.SIGSTOP)
        answer = loading.result()
    assert answer.status_code == 503
    message = answer.json()["error"]["message"]
    assert "was stopped" in message
    assert "before its model was loaded" in message
    assert text_of(service.complete("m", prompts(1)[0], max_tokens=5)) == spoken(
        PLAIN, prompts(1)[0], 5
    )
