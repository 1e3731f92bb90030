"""A provider that is not there, takes a part, or goes away: what people are told and what goes on.

The second service's workers have an onnxruntime that claims a graphics card, which runs on the CPU:
its nodes, its failures and its end are ours to choose, everything around it is real.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.integration.running_service import wait_for
from tests.integration.service import (
    CHAT,
    COMPLETION,
    LAUNCH_WITH_WORKER,
    Served,
    Service,
    chat,
    complete,
    drafting,
    text_of,
)
from tests.oracle import Toy

pytestmark = pytest.mark.integration

TOY = Toy()
# A model can be its own draft.
DRAFT = 'kind = "model"\npath = "card"\nprovider = '

_PRETENDING_WORKER = """
import sys
from pathlib import Path
from homespecd.runtime import session
from homespecd.runtime.backend import LoadedGraph, OnnxRuntime
from homespecd.runtime.placement import DeviceMemory, PlacedNode
from homespecd.runtime.providers import PROVIDERS, Attempt
from homespecd.worker import process

LOST = Path(LOST_FILE)

class Raw:
    def __init__(self, real):
        self._real, self._sess = real, self
    def __getattr__(self, name):
        return getattr(self._real, name)
    def run_with_iobinding(self, binding, options):
        if LOST.exists():
            raise RuntimeError("CUDA failure 999: unknown error ; GPU=0")
        self._real._sess.run_with_iobinding(binding, options)

class Pretending(OnnxRuntime):
    def listed(self):
        return (*super().listed(), PROVIDERS["cuda"], PROVIDERS["directml"])
    def load(self, graph, attempt, settings):
        loaded = super().load(graph, Attempt("cpu"), settings)
        if attempt.provider == "cpu":
            return loaded
        if LOST.exists():
            return LoadedGraph(loaded.raw, loaded.active, complaint="no CUDA-capable device")
        name = PROVIDERS[attempt.provider]
        left = ["Softmax"] * (attempt.provider == "directml")
        nodes = [PlacedNode(name, "MatMul"), *[PlacedNode(PROVIDERS["cpu"], one) for one in left]]
        return LoadedGraph(Raw(loaded.raw), [name, PROVIDERS["cpu"]], nodes)

session.OnnxRuntime = Pretending
session.memory_of = lambda attempt: DeviceMemory()  # the card's memory is the machine's
sys.exit(process.main(int(sys.argv[1])))
"""


@pytest.fixture(scope="module")
def without(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Service]:
    """A machine without a card, where two models ask for one."""
    service = Service(
        tmp_path_factory.mktemp("without"),
        [
            Served("hopeful", TOY, more='provider = "cuda"'),
            Served("strict", TOY, more='provider = "cuda"\nprovider_required = true'),
            Served("other", TOY),
        ],
    )
    service.start()
    yield service
    service.close()


@pytest.fixture
def device(tmp_path: Path) -> Iterator[Service]:
    """A machine with a card that goes away when the file `lost` is there."""
    service = Service(
        tmp_path,
        [
            Served("card", TOY, others={"card-host": DRAFT + '"cpu"\n'}, more='provider = "cuda"'),
            Served("host", TOY, others={"host-card": DRAFT + '"cuda"\n'}, more='provider = "cpu"'),
            Served("part", TOY, more='provider = "directml"'),
            Served("whole", TOY, more='provider = "directml"\nprovider_required = true'),
        ],
    )
    service.command = (
        "-c",
        LAUNCH_WITH_WORKER,
        _PRETENDING_WORKER.replace("LOST_FILE", repr(str(tmp_path / "lost"))),
    )
    service.start()
    yield service
    service.close()


def completion(service: Service, model: str, **more: object) -> str:
    return text_of(service.complete(model, "abc", max_tokens=8, **more))


def test_a_provider_that_is_not_there_is_shown_and_logged(without: Service) -> None:
    assert completion(without, "hopeful") == completion(without, "other")
    model = without.model("hopeful")
    assert (model["requested_provider"], model["provider"]) == ("cuda", "cpu")
    reason = "CUDAExecutionProvider is not in the installed onnxruntime"
    assert model["provider_reason"] == reason
    placement = model["placement"]
    assert (placement["requested"], placement["provider"]) == ("cuda", "cpu")
    assert (placement["device"], placement["reason"]) == ("CPU", reason)
    wait_for(
        lambda: f"model hopeful: asked for cuda and runs on cpu (CPU): {reason}" in without.log(),
        what=without.log,
    )
    assert "model other: asked" not in without.log()


def test_a_required_provider_that_is_not_there_is_that_models_failure(without: Service) -> None:
    refused = without.post(CHAT, chat("strict", "hello"))
    assert refused.status_code == 503
    said = "provider cuda is required, but CUDAExecutionProvider is not in the installed"
    assert said in refused.json()["error"]["message"]
    model = without.model("strict")
    assert (model["state"], said in model["error"]) == ("failed", True)
    assert completion(without, "other")


def test_a_part_elsewhere_is_shown_and_refused_where_all_is_required(device: Service) -> None:
    completion(device, "part")
    placement = device.model("part")["placement"]
    assert (placement["provider"], placement["device"]) == ("directml", "GPU 0")
    assert (placement["share_elsewhere"], placement["operators_elsewhere"]) == (0.5, {"Softmax": 1})
    refused = device.post(CHAT, chat("whole", "hello"))
    assert refused.status_code == 503
    assert (
        "leaves 50.0% of this graph to the CPU: Softmax (1)" in refused.json()["error"]["message"]
    )


def test_a_device_that_goes_away_costs_one_answer_and_is_never_claimed_again(
    device: Service, tmp_path: Path
) -> None:
    """A target on the card with its draft on the CPU, and the reverse: then the card is gone."""
    on_card, on_host = drafting("card", "host"), drafting("host", "card")
    text = completion(device, "card", **on_card)
    assert completion(device, "host", **on_host) == text == completion(device, "host")
    assert places(device, "card") == (("cuda", "GPU 0"), ("cpu", "CPU"))
    assert places(device, "host") == (("cpu", "CPU"), ("cuda", "GPU 0"))
    (tmp_path / "lost").touch()
    failed = device.post(COMPLETION, complete("card", "abc", max_tokens=8))
    assert (failed.status_code, failed.json()["error"]["code"]) == (503, "device_lost")
    assert "the device is lost: CUDA failure 999" in failed.json()["error"]["message"]
    # Without its draft the target goes on.
    assert completion(device, "host", **on_host) == text
    for name, draft in (("card", on_card), ("host", on_host)):
        wait_for(lambda name=name: device.model(name)["state"] == "failed", what=device.log)
        assert "its worker was ended: the device is lost" in device.model(name)["error"]
        # The next request has a new worker, which opens both where it can and says so.
        assert completion(device, name, **draft) == text
        assert places(device, name) == (("cpu", "CPU"), ("cpu", "CPU"))
    reason = "CUDAExecutionProvider did not start: no CUDA-capable device"
    assert device.model("card")["provider_reason"] == reason
    assert device.drafter("host", "host-card")["placement"]["reason"] == reason


def places(service: Service, model: str) -> tuple[tuple[str, str], tuple[str, str]]:
    """Provider and device of a target and of its only drafter."""
    target = service.model(model)
    [draft] = target["speculation"]["drafters"]
    both = (target["placement"], draft["placement"])
    one, other = [(placement["provider"], placement["device"]) for placement in both]
    return one, other
