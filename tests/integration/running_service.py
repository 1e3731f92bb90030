"""The real service in a process of its own, with fake workers, on a private socket."""

from __future__ import annotations

import json
import os
import re
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx

ROOT = Path(__file__).parents[2]
FAKE_WORKER = ROOT / "tests" / "fake_worker.py"

_LAUNCH = """
import sys
from homespecd.daemon.main import main
worker = (sys.executable, sys.argv[1], sys.argv[2])
sys.exit(main(sys.argv[4:], worker=worker, quiet_s=float(sys.argv[3])))
"""

# Guards against a hang, and nothing else: no test may depend on how long something takes.
PATIENCE_S = 120.0

MODEL = '[models.m]\npath = "m"\nslots = 2\n'


class RunningService:
    """Made stopped; `start` waits until it answers.

    quiet_s: how long the configuration is left alone after an edit; whoever reloads it and wants to
    be the first to do so makes that long.
    """

    quiet_s = 0.1

    def __init__(self, folder: Path, *, models: str = MODEL, server: str = "") -> None:
        self.folder = folder
        self.socket = folder / "run" / "h.sock"
        self.config = folder / "homespecd.toml"
        self.log_file = folder / "log"
        self.process: subprocess.Popen[bytes] | None = None
        self.write_config(models=models, server=server)

    def write_config(self, *, models: str = MODEL, server: str = "", memory: str = "") -> None:
        self.config.write_text(
            f'[server]\nsocket = "{self.socket}"\nsocket_group = ""\n{server}\n'
            f'[paths]\nmodels = "{self.folder}"\nstate = "{self.folder}"\n'
            f'[memory]\nreserve = "0B"\n{memory}\n{models}'
        )
        # A reload looks whether there is a graph; nothing here opens it.
        for path in re.findall(r'^path = "(.+)"$', models, re.MULTILINE):
            (self.folder / path).mkdir(exist_ok=True)
            (self.folder / path / "model.onnx").write_bytes(b"\x08")

    def knobs(self, model: str = "m", **knobs: Any) -> None:
        """How workers of `model` that start from now on behave (`fake_worker.Knobs`)."""
        (self.folder / f"{model}.json").write_text(json.dumps(knobs))

    def spawn(self, *, umask: int = -1, env: Mapping[str, str] | None = None) -> None:
        with self.log_file.open("ab") as log:
            self.process = subprocess.Popen(
                [
                    *(sys.executable, "-c", _LAUNCH, FAKE_WORKER, self.folder, str(self.quiet_s)),
                    *("--config", self.config),
                ],
                stdout=log,
                stderr=log,
                cwd=ROOT,
                umask=umask,
                env={**os.environ, **(env or {})},
            )

    def start(self, **how: Any) -> RunningService:
        self.spawn(**how)
        assert self.process is not None
        wait_for(lambda: self.answers() or self.process.poll() is not None, what=self.log)
        assert self.process.poll() is None, self.log()
        # The socket exists before it is served; its first answer comes when all addresses are.
        with httpx.Client(
            transport=httpx.HTTPTransport(uds=str(self.socket)), timeout=PATIENCE_S
        ) as http:
            http.get("http://homespecd/healthz").raise_for_status()
        return self

    def answers(self) -> bool:
        with socket.socket(socket.AF_UNIX) as probe:
            try:
                probe.connect(str(self.socket))
            except OSError:
                return False
        return True

    def stop(self, number: int = signal.SIGTERM) -> int:
        """Signal the process, wait for it, and return its exit code."""
        assert self.process is not None
        if self.process.poll() is None:
            self.process.send_signal(number)
        return self.process.wait(PATIENCE_S)

    def signal(self, number: int) -> None:
        assert self.process is not None
        self.process.send_signal(number)

    def log(self) -> str:
        return self.log_file.read_text()

    def events(self, event: str, model: str = "m") -> list[dict[str, Any]]:
        """What the workers of `model` noted."""
        file = self.folder / f"{model}.log"
        lines = file.read_text().splitlines() if file.exists() else []
        return [one for one in map(json.loads, lines) if one["event"] == event]

    def client(self) -> httpx.AsyncClient:
        return httpx.AsyncClient(
            transport=httpx.AsyncHTTPTransport(uds=str(self.socket)),
            base_url="http://homespecd",
            timeout=PATIENCE_S,
        )


def wait_for(condition: Any, *, what: Any = "", timeout_s: float = PATIENCE_S) -> Any:
    """Poll until the condition holds; generous, since nothing depends on how long it takes."""
    deadline = time.monotonic() + timeout_s
    while not (result := condition()):
        assert time.monotonic() < deadline, what() if callable(what) else what
        time.sleep(0.01)
    return result


@contextmanager
def held_port() -> Iterator[int]:
    """A TCP port that nobody but the service gets while the block runs: bound, not listened on."""
    with socket.socket() as sock:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        sock.bind(("127.0.0.1", 0))
        yield int(sock.getsockname()[1])


def chat(text: str = "hello", **more: Any) -> dict[str, Any]:
    return {"model": "m", "messages": [{"role": "user", "content": text}], **more}


def sse_events(body: str) -> list[tuple[str, Any]]:
    """(event type, data) of every server-sent event; data is parsed unless it is `[DONE]`."""
    events = []
    for block in body.split("\n\n"):
        if not block:
            continue
        fields = dict(line.split(": ", 1) for line in block.split("\n"))
        data = fields["data"]
        parsed = data if data == "[DONE]" else json.loads(data)
        events.append((fields.get("event", ""), parsed))
    return events
