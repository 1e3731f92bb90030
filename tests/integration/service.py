"""A real `homespecd` with real workers on toy models, for as long as a block runs.

    SERVED = (Served("chatty", Toy(script=say("Hi"), script_after=ASSISTANT), drafts=("d1", "d3")),)

    with serving(folder, SERVED) as service:
        service.chat("chatty", "hello")["choices"][0]["message"]["content"]

The drafts of a target are toys made from the target's own: `d1` perfect, `d2` always wrong, `d3`
wrong at every third position, `d4` perfect with 64 ids of padding; `ngram` looks things up. A
request says which with `drafting("chatty", "d1", k=8)`; drafters are called MODEL-DRAFT.

What the models must say comes from `tests.oracle`.

The governor proposes what pays, which with toys is often one token. `blocks_as_asked=True` replaces
it by one that proposes as many as the request allows, in every round; all else is the real thing.

A toy is done with thousands of tokens in a moment. Who looks at a service in the middle of an
answer makes it with `slowed=True` and asks in a `with service.slowly():`.
"""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.integration.running_service import PATIENCE_S, ROOT, sse_events, wait_for
from tests.oracle import ASSISTANT, END_IDS, VOCAB, Oracle, Toy, encode
from tests.tiny_onnx import make_toy

CHAT = "/v1/chat/completions"
COMPLETION = "/v1/completions"

_WORKER_WITH_BLOCKS_AS_ASKED = """
import sys
from homespecd.governor.fixed import FixedGovernor
from homespecd.worker import process
from homespecd.worker.governing import LearnedGovernor

def fixed(loaded):
    usable = {name: one.settings for name, one in loaded.drafts.items() if one.usable}
    return FixedGovernor({name: one.max_draft_tokens for name, one in usable.items()})

class AsAsked(LearnedGovernor):
    def renew(self, loaded, **_):
        self.governor = fixed(loaded)
        yield

process.make_governor = lambda loaded: AsAsked(fixed(loaded), None)
sys.exit(process.main(int(sys.argv[1])))
"""

# Every step takes a tenth of a second for as long as the file is there.
_WORKER_SLOWED = """
import sys, time
from pathlib import Path
from tests.stepping_worker import main

slowly = Path(FILE)

def slowed(step, rows):
    if slowly.exists():
        time.sleep(0.1)
    return step(rows)

sys.exit(main(int(sys.argv[1]), slowed))
"""

_WORKER_PACED = """
import sys
from tests.paced_worker import main
sys.exit(main(int(sys.argv[1])))
"""

LAUNCH_WITH_WORKER = """
import sys
from homespecd.daemon.main import main
sys.exit(main(sys.argv[2:], worker=(sys.executable, "-c", sys.argv[1])))
"""


@dataclass(frozen=True)
class Served:
    """One model: its toy (None = no folder is made), its drafts, and further lines of its section.

    others: drafter name → the toy of a draft that is no variation of the target, or the lines of
    its section.
    """

    name: str
    toy: Toy | None = field(default_factory=Toy)
    drafts: Sequence[str] = ()
    others: Mapping[str, Toy | str] = field(default_factory=dict)
    slots: int = 1
    context: int = 4096
    more: str = ""

    @property
    def drafters(self) -> list[str]:
        return [*(drafter(self.name, draft) for draft in self.drafts), *self.others]


def drafter(model: str, draft: str) -> str:
    """The name of a model's drafter in the configuration."""
    return f"{model}-{draft}"


def drafting(model: str, draft: str | None, k: int = 4) -> dict[str, Any]:
    """The part of a request that asks for this draft and block length, or (None) for none."""
    if draft is None:
        return {"homespec": {"speculation": "off"}}
    name = drafter(model, draft)
    return {"homespec": {"speculation": "on", "drafter": name, "max_draft_tokens": k}}


def draft_toy(toy: Toy, draft: str) -> Toy:
    """The toy of draft `d1` … `d4` of a target."""
    behaviour = {"d2": "wrong", "d3": "every_third"}.get(draft, "perfect")
    padding = 64 if draft == "d4" else 0
    return replace(toy, behaviour=behaviour, pad_vocab=padding, pad_wins=False, layout="single")


class Service:
    """A running service and its client. Made by `serving`."""

    def __init__(
        self,
        folder: Path,
        served: Sequence[Served],
        *,
        server: str = "",
        blocks_as_asked: bool = False,
        slowed: bool = False,
        paced: bool = False,
    ) -> None:
        self.folder = folder
        self.command: Sequence[str] = ("-m", "homespecd.daemon")
        if blocks_as_asked:
            self.command = ("-c", LAUNCH_WITH_WORKER, _WORKER_WITH_BLOCKS_AS_ASKED)
        self._slowly = folder / "slowly"
        if slowed:
            worker = _WORKER_SLOWED.replace("FILE", repr(str(self._slowly)))
            self.command = ("-c", LAUNCH_WITH_WORKER, worker)
        if paced:
            self.command = ("-c", LAUNCH_WITH_WORKER, _WORKER_PACED)
        self.socket = folder / "h.sock"
        self.config = folder / "homespecd.toml"
        self.log_file = folder / "log"
        self.process: subprocess.Popen[bytes] | None = None
        self.server = server
        self.http = httpx.Client(
            transport=httpx.HTTPTransport(uds=str(self.socket)),
            base_url="http://homespecd",
            timeout=PATIENCE_S,
        )
        for one in served:
            if one.toy is not None:
                make_toy(self.model_folder(one.name), one.toy)
            for draft in one.drafts:
                if draft != "ngram":
                    assert one.toy is not None
                    name = drafter(one.name, draft)
                    make_toy(self.model_folder(name), draft_toy(one.toy, draft))
            for name, other in one.others.items():
                if isinstance(other, Toy):
                    make_toy(self.model_folder(name), other)
        self.write_config(served)

    def model_folder(self, name: str) -> Path:
        return self.folder / "models" / name

    def write_config(self, served: Sequence[Served], *, more: str = "") -> None:
        text = (
            f'[server]\nsocket = "{self.socket}"\nsocket_group = ""\n{self.server}\n'
            f'[paths]\nmodels = "{self.folder / "models"}"\nstate = "{self.folder / "state"}"\n'
            '[memory]\ncap = "64GiB"\nreserve = "0B"\npressure = 100.0\n'
            f"{more}\n"
        )
        self.config.write_text(text + "".join(_sections(one) for one in served))

    # -- the process ---------------------------------------------------------------------------

    def start(self, *, cwd: Path = ROOT) -> None:
        """Start, and wait until it answers."""
        with self.log_file.open("ab") as log:
            self.process = subprocess.Popen(
                [sys.executable, *self.command, "--config", str(self.config)],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                cwd=cwd,
                env={**os.environ, "PYTHONPATH": str(ROOT)},
            )
        wait_for(self._answers_or_ended, what=self.log)
        assert self.process.poll() is None, self.log()

    def stop(self) -> int:
        """End it, and return its exit code."""
        assert self.process is not None
        self.process.send_signal(signal.SIGCONT)
        self.process.terminate()
        try:
            return self.process.wait(PATIENCE_S)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
            raise

    def close(self) -> None:
        self.http.close()
        if self.process is not None and self.process.poll() is None:
            self.stop()

    def log(self) -> str:
        return self.log_file.read_text(errors="replace")

    def _answers_or_ended(self) -> bool:
        assert self.process is not None
        with socket.socket(socket.AF_UNIX) as probe:
            return self.process.poll() is not None or probe.connect_ex(str(self.socket)) == 0

    @contextmanager
    def slowly(self) -> Iterator[None]:
        """While the block runs, no answer of some hundred tokens comes to its end by itself."""
        self._slowly.touch()
        try:
            yield
        finally:
            self._slowly.unlink()

    # -- requests ------------------------------------------------------------------------------

    def post(self, path: str, body: Any = None) -> httpx.Response:
        return self.http.post(path, json=body)

    def ask(self, path: str, body: Any) -> dict[str, Any]:
        """The body of an answer that must be a success."""
        response = self.post(path, body)
        assert response.status_code == 200, response.text
        answer: dict[str, Any] = response.json()
        return answer

    def chat(self, model: str, messages: str | Sequence[Any], **more: Any) -> dict[str, Any]:
        return self.ask(CHAT, chat(model, messages, **more))

    def complete(self, model: str, prompt: str | Sequence[int], **more: Any) -> dict[str, Any]:
        return self.ask(COMPLETION, complete(model, prompt, **more))

    def stream(self, path: str, body: Mapping[str, Any]) -> list[tuple[str, Any]]:
        """Every event of a stream, as (type, data)."""
        response = self.post(path, {**body, "stream": True})
        assert response.status_code == 200, response.text
        return sse_events(response.text)

    def status(self) -> dict[str, Any]:
        snapshot: dict[str, Any] = self.http.get("/homespec/status").json()
        return snapshot

    def model(self, name: str) -> dict[str, Any]:
        """This model's part of the status."""
        [found] = [one for one in self.status()["models"] if one["name"] == name]
        assert isinstance(found, dict)
        return found

    def drafter(self, model: str, name: str) -> dict[str, Any]:
        """This drafter's part of the status."""
        drafters = self.model(model)["speculation"]["drafters"]
        [found] = [one for one in drafters if one["name"] == name]
        assert isinstance(found, dict)
        return found


@contextmanager
def serving(
    folder: Path,
    served: Sequence[Served],
    *,
    server: str = "",
    cwd: Path = ROOT,
    paced: bool = False,
) -> Iterator[Service]:
    """A service with these models. Its log goes to stderr, which pytest shows beside a failure.

    paced: its workers' time is what their steps are said to cost (`tests.paced_worker`).
    """
    service = Service(folder, served, server=server, paced=paced)
    try:
        service.start(cwd=cwd)
        yield service
    finally:
        service.close()
        sys.stderr.write(service.log())


def module_service(
    *served: Served, blocks_as_asked: bool = False, slowed: bool = False
) -> tuple[Any, Any]:
    """Two fixtures: one service for all tests of a module, and `service`, what a test asks for.

    The latter hands out the former and shows the part of the log that a failed test made.
    """

    @pytest.fixture(scope="module", name="running")
    def running(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Service]:
        folder = tmp_path_factory.mktemp("toys")
        service = Service(folder, served, blocks_as_asked=blocks_as_asked, slowed=slowed)
        try:
            service.start()
            yield service
        finally:
            service.close()

    @pytest.fixture(name="service")
    def service(running: Service) -> Iterator[Service]:
        logged = len(running.log())
        yield running
        sys.stderr.write(running.log()[logged:])

    return running, service


def _sections(one: Served) -> str:
    drafters = json.dumps(one.drafters)
    lines = f'[models.{one.name}]\npath = "{one.name}"\nthreads = 1\ndrafters = {drafters}\n'
    lines += f"slots = {one.slots}\ncontext = {one.context}\n{one.more}\n"
    sections = {drafter(one.name, draft): draft for draft in one.drafts} | dict(one.others)
    for name, draft in sections.items():
        if draft == "ngram":
            own = 'kind = "ngram"\nmax_draft_tokens = 16\n'
        elif isinstance(draft, Toy) or name not in one.others:
            own = f'kind = "model"\npath = "{name}"\nmax_draft_tokens = 16\n'
        else:
            own = draft
        lines += f"[drafters.{name}]\n{own}"
    return lines


# -- bodies and answers ------------------------------------------------------------------------


def chat(model: str, messages: str | Sequence[Any], **more: Any) -> dict[str, Any]:
    """A greedy chat request, unless `more` says otherwise."""
    said = [{"role": "user", "content": messages}] if isinstance(messages, str) else [*messages]
    return {"model": model, "messages": said, "temperature": 0, **more}


def complete(model: str, prompt: str | Sequence[int], **more: Any) -> dict[str, Any]:
    """A greedy completion request, unless `more` says otherwise."""
    given = prompt if isinstance(prompt, str) else list(prompt)
    return {"model": model, "prompt": given, "temperature": 0, **more}


def text_of(answer: Mapping[str, Any]) -> str:
    """The text of a whole answer, of either kind."""
    choice = answer["choices"][0]
    text = choice["text"] if "text" in choice else choice["message"]["content"]
    assert isinstance(text, str)
    return text


def deltas(events: Sequence[tuple[str, Any]]) -> list[str]:
    """The texts of a stream's chunks, of either kind."""
    choices = [data["choices"][0] for _, data in events if data != "[DONE]" and data.get("choices")]
    return [one["text"] if "text" in one else one["delta"].get("content", "") for one in choices]


def chat_ids(messages: str | Sequence[Mapping[str, str]]) -> list[int]:
    """What the toys' template makes of messages, in ids."""
    said = [{"role": "user", "content": messages}] if isinstance(messages, str) else messages
    text = "".join(f"<|{one['role']}|>{one['content']}<|end|>" for one in said)
    return [*encode(text), ASSISTANT]


def spoken(toy: Toy, prompt: Sequence[int], max_tokens: int) -> str:
    """The greedy text after `prompt`."""
    return Oracle.text(Oracle(toy).greedy(prompt, max_tokens))


def spoken_with(
    toy: Toy, prompt: Sequence[int], max_tokens: int, adjust: Any, *, ends: Sequence[int] = END_IDS
) -> list[int]:
    """Greedy ids where `adjust(logits, output)` changes the logits [vocab] before each choice."""
    oracle, output = Oracle(toy), list[int]()
    while len(output) < max_tokens and not (output and output[-1] in ends):
        logits = oracle.logits([*prompt, *output])[:VOCAB]
        adjust(logits, output)
        output.append(max(range(VOCAB), key=lambda v: (logits[v], -v)))
    return output


def prompts(count: int, *, length: int = 12) -> list[list[int]]:
    """Different prompts of printable bytes, lengths around `length`."""
    return [
        [0x20 + (31 * i + 7 * j * j + 3 * i * j) % 95 for j in range(length + i % 5)]
        for i in range(count)
    ]
