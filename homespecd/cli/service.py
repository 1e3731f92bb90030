"""A private homespecd for as long as a block runs: own folder, own socket, no trace after."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import FrameType

from homespecd.cli.client import Client
from homespecd.cli.exits import CommandError

START_TIMEOUT_S = 180.0
STOP_TIMEOUT_S = 15.0
POLL_S = 0.1
LOG_LINES = 15
# Room for the socket's name below a folder; see config.checks.MAX_SOCKET_PATH_BYTES.
_LONGEST_FOLDER = 80


_ONE_MODEL = """\
[server]
socket = "{{socket}}"
socket_mode = "0600"
socket_group = ""

[paths]
models = "/"
state = "{{state}}"

[memory]
cap = "{cap}"
reserve = "0B"

[models.{name}]
path = {path}
context = {context}
threads = {threads}
slots = 1
residency = "pinned"
drafters = ["ngram"]

[drafters.ngram]
kind = "ngram"
max_draft_tokens = 16
"""


def one_model(bundle: Path, *, name: str, context: int, threads: int = 0, cap: str = "4GiB") -> str:
    """For `running`: this model, loaded from the start, one conversation at a time, with a lookup.

    name: a bare key in TOML. threads: 0 = what the service may use.
    """
    path = json.dumps(str(bundle.absolute())).replace("{", "{{").replace("}", "}}")
    return _ONE_MODEL.format(name=name, path=path, context=context, threads=threads, cap=cap)


@dataclass(frozen=True)
class PrivateService:
    """A running service that only this process knows."""

    client: Client
    pid: int


@contextmanager
def private_folder() -> Iterator[Path]:
    """A folder that goes away with the block, also on SIGTERM. Short enough for a socket."""
    parent = None if len(tempfile.gettempdir()) < _LONGEST_FOLDER else "/tmp"
    with (
        sigterm_unwinds(),
        tempfile.TemporaryDirectory(prefix="homespecd-demo-", dir=parent) as name,
    ):
        yield Path(name)


@contextmanager
def running(config_text: str, folder: Path) -> Iterator[PrivateService]:
    """Start a service with this configuration in `folder` and wait until it is ready.

    `config_text` may use {socket} and {state} for paths in the folder.

    Raises:
        CommandError: it ended or did not become ready; with the last lines of its log.
    """
    socket, log = folder / "demo.sock", folder / "homespecd.log"
    config = folder / "homespecd.toml"
    config.write_text(config_text.format(socket=socket, state=folder / "state"), encoding="utf-8")
    with log.open("wb") as output:
        # A session of its own: Ctrl-C is for this process, which then ends the service in order.
        process = subprocess.Popen(
            [sys.executable, "-m", "homespecd.daemon", "--config", str(config)],
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
    try:
        client = Client(socket)
        _wait_until_ready(client, process, log)
        yield PrivateService(client, process.pid)
    except CommandError as error:
        if process.poll() is not None:
            raise _with_log(f"the service ended: {error.message}", log) from None
        raise
    finally:
        _stop(process)


def _wait_until_ready(client: Client, process: subprocess.Popen[bytes], log: Path) -> None:
    deadline = time.monotonic() + START_TIMEOUT_S
    while time.monotonic() < deadline:
        if process.poll() is not None:
            raise _with_log(f"the service ended with code {process.returncode}", log)
        ready, failure = _readiness(client)
        if ready:
            return
        if failure:
            raise _with_log(failure, log)
        time.sleep(POLL_S)
    raise _with_log("the service did not become ready", log)


def _readiness(client: Client) -> tuple[bool, str]:
    """Whether all models are there, and why that will not happen ("" while it may)."""
    try:
        if client.call("GET", "/readyz", timeout_s=2.0).status == 200:
            return True, ""
        snapshot = client.get("/homespec/status")
    except CommandError:
        return False, ""  # not listening yet
    failed = [model for model in snapshot["models"] if model["state"] == "failed"]
    return False, "; ".join(f"{model['name']} failed: {model['error']}" for model in failed)


def _with_log(message: str, log: Path) -> CommandError:
    lines = log.read_text(encoding="utf-8", errors="replace").splitlines()[-LOG_LINES:]
    shown = "".join(f"\n  | {line}" for line in lines)
    return CommandError(f"{message}; its last words:{shown}" if shown else message)


def _stop(process: subprocess.Popen[bytes]) -> None:
    """In order if it listens, else by force; its workers end with it."""
    if process.poll() is None:
        process.terminate()
        try:
            process.wait(STOP_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()


@contextmanager
def sigterm_unwinds() -> Iterator[None]:
    """Let SIGTERM run the `finally` blocks, as Ctrl-C does."""

    def leave(_signal: int, _frame: FrameType | None) -> None:
        raise SystemExit(128 + signal.SIGTERM)

    before = signal.signal(signal.SIGTERM, leave)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)
