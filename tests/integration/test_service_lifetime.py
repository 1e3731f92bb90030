"""Start, reload and end of the service: sockets, signals, systemd, configuration."""

from __future__ import annotations

import asyncio
import json
import os
import re
import signal
import socket
import stat
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import httpx
import psutil
import pytest

from tests.integration.running_service import (
    MODEL,
    PATIENCE_S,
    ROOT,
    RunningService,
    chat,
    held_port,
    wait_for,
)

pytestmark = pytest.mark.integration


@pytest.fixture
def service(tmp_path: Path) -> Iterator[RunningService]:
    """Not started."""
    service = RunningService(tmp_path)
    yield service
    if service.process is not None:
        service.stop(signal.SIGKILL)


async def post(service: RunningService, path: str, body: object = None) -> httpx.Response:
    async with service.client() as client:
        return await client.post(path, json=body)


async def ask(service: RunningService, model: str = "m") -> httpx.Response:
    return await post(service, "/v1/chat/completions", chat(model=model))


def worker_pids(service: RunningService, model: str = "m") -> list[int]:
    return [event["pid"] for event in service.events("load", model)]


# -- the socket --------------------------------------------------------------------------------


@pytest.mark.parametrize("umask", [0o000, 0o077])
def test_mode_does_not_depend_on_the_umask(service: RunningService, umask: int) -> None:
    service.write_config(server='socket_mode = "0660"')
    service.spawn(umask=umask)
    seen = set()

    def look() -> bool:
        for file in service.socket.parent.glob("*") if service.socket.parent.exists() else ():
            try:
                seen.add(stat.S_IMODE(file.lstat().st_mode))
            except FileNotFoundError:
                continue
        return service.answers()

    wait_for(look, what=service.log)
    assert all(mode & ~0o660 == 0 for mode in seen)
    assert stat.S_IMODE(service.socket.lstat().st_mode) == 0o660
    assert stat.S_IMODE(service.socket.parent.stat().st_mode) == 0o755
    assert list(service.socket.parent.iterdir()) == [service.socket]


def test_a_dead_socket_is_replaced(service: RunningService) -> None:
    service.start()
    service.stop(signal.SIGKILL)
    assert service.socket.is_socket()
    service.start()
    assert service.stop() == 0
    assert not service.socket.exists()


def test_a_second_service_does_not_take_the_socket(service: RunningService) -> None:
    service.start()
    first = service.process
    service.spawn()
    assert service.process is not None
    assert service.process.wait(PATIENCE_S) == 1
    assert f"{service.socket}: another process is serving here" in service.log()
    service.process = first
    assert service.answers()


@pytest.mark.parametrize("what", ["file", "folder", "dangling link"])
def test_what_is_no_socket_is_left_alone(service: RunningService, what: str) -> None:
    service.socket.parent.mkdir()
    if what == "file":
        service.socket.write_text("precious")
    elif what == "folder":
        service.socket.mkdir()
    else:
        service.socket.symlink_to(service.folder / "nowhere")
    before = service.socket.lstat()
    service.spawn()
    assert service.process is not None
    assert service.process.wait(PATIENCE_S) == 1
    after = service.socket.lstat()
    assert (after.st_ino, after.st_mtime_ns) == (before.st_ino, before.st_mtime_ns)
    assert str(service.socket) in service.log()
    assert "Traceback" not in service.log()


def test_a_missing_group_is_named(service: RunningService) -> None:
    service.config.write_text(
        service.config.read_text().replace('socket_group = ""', 'socket_group = "no-such-group"')
    )
    service.spawn()
    assert service.process is not None
    assert service.process.wait(PATIENCE_S) == 1
    assert 'there is no group "no-such-group"' in service.log()


def test_a_socket_from_systemd_is_taken_over_and_stays(service: RunningService) -> None:
    path = service.folder / "activated.sock"
    with socket.socket(socket.AF_UNIX) as sock:
        sock.bind(str(path))
        sock.listen()
        launch = (
            "import os, sys\n"
            "os.dup2(int(sys.argv[1]), 3)\n"
            "os.environ.update(LISTEN_FDS='1', LISTEN_PID=str(os.getpid()))\n"
            "from homespecd.daemon.main import main\n"
            "sys.exit(main(['--config', sys.argv[2]]))\n"
        )
        with service.log_file.open("wb") as log:
            service.process = subprocess.Popen(
                [sys.executable, "-c", launch, str(sock.fileno()), str(service.config)],
                pass_fds=[sock.fileno()],
                stderr=log,
                cwd=ROOT,
            )
    with httpx.Client(transport=httpx.HTTPTransport(uds=str(path)), timeout=PATIENCE_S) as client:
        assert client.get("http://h/healthz").status_code == 200
    assert not service.socket.exists()
    assert service.stop() == 0
    assert path.is_socket()


# -- the end -----------------------------------------------------------------------------------


def test_sigterm_lets_answers_finish(service: RunningService) -> None:
    service.knobs(gate=True)
    service.start()

    async def run() -> None:
        running = asyncio.create_task(ask(service))
        await asyncio.to_thread(wait_for, lambda: service.events("generate"))
        service.signal(signal.SIGTERM)
        await asyncio.to_thread(wait_for, lambda: not service.answers())
        (service.folder / "gate").touch()
        assert (await running).status_code == 200

    asyncio.run(run())
    assert service.stop() == 0
    assert not service.socket.exists()
    wait_for(lambda: not any(map(psutil.pid_exists, worker_pids(service))))


def test_a_second_sigterm_cuts_streams_with_an_error(service: RunningService) -> None:
    service.knobs(tokens=100_000, token_s=0.01)
    service.start()
    with (
        httpx.Client(
            transport=httpx.HTTPTransport(uds=str(service.socket)), timeout=PATIENCE_S
        ) as client,
        client.stream("POST", "http://h/v1/chat/completions", json=chat(stream=True)) as response,
    ):
        lines = response.iter_lines()
        next(lines)
        service.signal(signal.SIGTERM)
        wait_for(lambda: not service.answers())
        service.signal(signal.SIGTERM)
        rest = [line for line in lines if line]
    assert rest[-2] == "event: error"
    assert json.loads(rest[-1].removeprefix("data: "))["error"]["code"] == "shutting_down"
    assert "data: [DONE]" not in rest
    assert service.stop() == 0


def test_a_worker_that_does_not_stop_is_ended(service: RunningService) -> None:
    service.knobs(deaf_to_stop=True)
    service.start()
    assert asyncio.run(ask(service)).status_code == 200
    assert service.stop() == 0
    assert not any(map(psutil.pid_exists, worker_pids(service)))


def test_workers_end_with_a_supervisor_that_was_killed(service: RunningService) -> None:
    service.start()
    assert asyncio.run(ask(service)).status_code == 200
    [pid] = worker_pids(service)
    service.stop(signal.SIGKILL)
    wait_for(lambda: not psutil.pid_exists(pid))


def test_sigterm_during_a_load(service: RunningService) -> None:
    service.write_config(models=MODEL + 'residency = "pinned"\n')
    service.knobs(load_gate=True)
    service.start()
    [event] = wait_for(lambda: service.events("load"))
    assert service.stop() == 0
    assert not psutil.pid_exists(event["pid"])


# -- systemd -----------------------------------------------------------------------------------


class Manager:
    """The service manager's end of the notifications."""

    def __init__(self, folder: Path) -> None:
        self.path = folder / "notify"
        self.said: list[str] = []
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self._socket.bind(str(self.path))
        self._socket.settimeout(PATIENCE_S)

    def __enter__(self) -> Manager:
        return self

    def __exit__(self, *_: object) -> None:
        self._socket.close()

    def wait_for(self, beginning: str, times: int = 1) -> None:
        """Until a message that begins so has come so often."""
        while sum(one.startswith(beginning) for one in self.said) < times:
            self.said.append(self._socket.recv(4096).decode())


def test_systemd_gives_a_slow_load_the_time_it_needs(service: RunningService) -> None:
    """M7: the socket answers, the watchdog is fed, and READY waits for the pinned model."""
    service.write_config(models=MODEL + 'residency = "pinned"\n')
    service.knobs(load_gate=True)
    with Manager(service.folder) as manager:
        service.spawn(env={"NOTIFY_SOCKET": str(manager.path), "WATCHDOG_USEC": "200000"})
        manager.wait_for("WATCHDOG=1", 2)
        manager.wait_for("EXTEND_TIMEOUT_USEC=")
        manager.wait_for("STATUS=m loading")
        assert service.answers()
        # A reload in between is done, and is no end of the start.
        service.signal(signal.SIGHUP)
        wait_for(lambda: "reload: nothing changed" in service.log(), what=service.log)
        assert service.stop() == 0
        manager.wait_for("STOPPING=1")
    assert not any(one.startswith(("READY=1", "RELOADING=1")) for one in manager.said)


@pytest.mark.parametrize("knobs", [{}, {"fail": "the file is broken"}])
def test_systemd_is_told_when_pinned_models_are_there(
    service: RunningService, knobs: dict[str, str]
) -> None:
    """A model that cannot be loaded keeps the others from nothing: the service is ready."""
    service.write_config(models=MODEL + 'residency = "pinned"\n')
    service.knobs(**knobs)
    with Manager(service.folder) as manager:
        service.spawn(env={"NOTIFY_SOCKET": str(manager.path)})
        manager.wait_for("READY=1")
        before = manager.said[: manager.said.index("READY=1")]
        expected = "STATUS=m failed" if knobs else "STATUS=m ready"
        assert any(one.startswith(expected) for one in before)
        # A reload is announced with the time of its beginning, and has an end.
        service.signal(signal.SIGHUP)
        manager.wait_for("READY=1", 2)
        [reloading] = [one for one in manager.said if one.startswith("RELOADING=1")]
        assert re.fullmatch(r"RELOADING=1\nMONOTONIC_USEC=\d+", reloading)
        assert service.stop() == 0


# -- configuration -----------------------------------------------------------------------------


def test_an_invalid_configuration_ends_with_78_and_every_problem(service: RunningService) -> None:
    service.config.write_text('[server]\nsockett = "x"\n[memory]\ncap = 3\n')
    for option in ("--config", "--check"):
        ended = subprocess.run(
            [sys.executable, "-m", "homespecd.daemon", option, str(service.config)],
            capture_output=True,
            text=True,
            check=False,
            cwd=ROOT,
        )
        assert ended.returncode == 78
        assert f"{service.config}:2: server.sockett" in ended.stderr
        assert f"{service.config}:4: memory.cap" in ended.stderr
        assert "Traceback" not in ended.stderr


def test_the_log_is_written_when_things_happen(service: RunningService) -> None:
    """M12, M13: line by line into a pipe, in order and plain; no buffer has to fill first."""
    os.mkfifo(service.log_file)
    said: list[str] = []
    # For reading and writing, so that nobody waits for the other end.
    with os.fdopen(os.open(service.log_file, os.O_RDWR), newline="") as log:

        def until(text: str) -> None:
            while not (said and text in said[-1]):
                said.append(log.readline())

        service.spawn(env={"PYTHONUNBUFFERED": ""})
        until(f"listening on {service.socket}")
        assert service.process is not None
        assert service.process.poll() is None
        service.write_config(models=MODEL + '[models.new]\npath = "n"\n')
        service.signal(signal.SIGHUP)
        until("reload: models.new added")
        assert service.process.poll() is None
        service.stop()
        until("stopped")
    assert not set("\x1b\r") & set("".join(said))


def test_a_missing_configuration_is_named(service: RunningService) -> None:
    ended = subprocess.run(
        [sys.executable, "-m", "homespecd.daemon", "--config", str(service.folder / "none.toml")],
        capture_output=True,
        text=True,
        check=False,
        cwd=ROOT,
    )
    assert ended.returncode == 78
    assert "none.toml" in ended.stderr


async def test_a_reload_touches_only_what_changed(service: RunningService) -> None:
    other = '[models.other]\npath = "other"\n'
    service.write_config(models=MODEL + other)
    service.knobs(gate=True)
    service.quiet_s = 60.0
    service.start()
    assert (await ask(service, "other")).status_code == 200
    running = asyncio.create_task(ask(service))
    await asyncio.to_thread(wait_for, lambda: service.events("generate"))

    service.write_config(models=MODEL + other + "context = 1000\n" + '[models.new]\npath = "n"\n')
    reloaded = await post(service, "/homespec/reload")
    assert reloaded.json() == {
        "changes": ["models.new added", "models.other changed (context)"],
        "warnings": [],
    }
    assert (await ask(service, "other")).status_code == 200
    assert [event["context"] for event in service.events("load", "other")] == [4096, 1000]
    assert (await ask(service, "new")).status_code == 200

    (service.folder / "gate").touch()
    assert (await running).status_code == 200
    assert len(service.events("load")) == 1


async def test_a_model_in_use_changes_after_its_requests(service: RunningService) -> None:
    service.knobs(gate=True)
    service.start()
    running = asyncio.create_task(ask(service))
    await asyncio.to_thread(wait_for, lambda: service.events("generate"))
    service.write_config(models=MODEL + "context = 1000\n")
    assert (await post(service, "/homespec/reload")).status_code == 200
    later = asyncio.create_task(ask(service))
    (service.folder / "gate").touch()
    assert (await running).status_code == 200
    assert (await later).status_code == 200
    assert [event["context"] for event in service.events("load")] == [4096, 1000]


async def test_a_model_in_use_is_removed_after_its_requests(service: RunningService) -> None:
    service.knobs(gate=True)
    service.start()
    running = asyncio.create_task(ask(service))
    await asyncio.to_thread(wait_for, lambda: service.events("generate"))
    service.write_config(models='[models.other]\npath = "o"\n')
    assert (await post(service, "/homespec/reload")).status_code == 200
    assert (await ask(service)).status_code == 404
    (service.folder / "gate").touch()
    assert (await running).status_code == 200
    await asyncio.to_thread(wait_for, lambda: service.events("stop"))


async def test_a_bad_reload_changes_nothing_and_is_shown(service: RunningService) -> None:
    service.start()
    assert (await ask(service)).status_code == 200
    good = service.config.read_text()
    service.config.write_text(good + "slotss = 3\n")
    response = await post(service, "/homespec/reload")
    assert response.status_code == 422
    [problem] = response.json()["problems"]
    assert problem["key"] == "models.m.slotss"
    async with service.client() as client:
        config = (await client.get("/homespec/status")).json()["config"]
        assert "slotss" in config["last_error"]
        assert config["generation"] == 1
        assert (await client.post("/v1/chat/completions", json=chat())).status_code == 200
        service.config.write_text(good)
        assert (await client.post("/homespec/reload")).json()["changes"] == []
        assert (await client.get("/homespec/status")).json()["config"]["last_error"] is None
    assert len(service.events("load")) == 1


async def test_sighup_reloads(service: RunningService) -> None:
    service.start()
    service.write_config(models=MODEL + '[models.new]\npath = "n"\n')
    service.signal(signal.SIGHUP)
    await asyncio.to_thread(wait_for, lambda: "reload: models.new added" in service.log())
    assert (await ask(service, "new")).status_code == 200


async def test_load_and_unload_on_command(service: RunningService) -> None:
    service.write_config(models=MODEL + 'residency = "pinned"\n')
    service.start()
    assert (await post(service, "/homespec/models/m/load")).json()["state"] == "ready"
    assert (await post(service, "/homespec/models/m/unload")).json()["state"] == "unloaded"
    async with service.client() as client:
        [model] = (await client.get("/homespec/status")).json()["models"]
    # A pinned model that was told to go stays away until it is asked for.
    assert (model["state"], model["memory_bytes"], model["pid"]) == ("unloaded", 0, None)
    assert (await ask(service)).status_code == 200
    assert len(service.events("load")) == 2


JOB_ENDS = {
    "unload": "the model is being unloaded",
    "room": "another model needs its memory",
    "other settings": "the model's settings changed",
    "removed": "the model was taken out of the configuration",
    "stop": "the service is stopping",
}


@pytest.mark.parametrize("end", JOB_ENDS)
async def test_nobody_waits_for_a_bench(service: RunningService, end: str) -> None:
    """One that goes on for ever ends when its model must go, and whoever asked for it is told."""
    models = MODEL + '[models.b]\npath = "b"\n'
    # What a worker is thought to need before it was measured is more than half of this.
    service.write_config(models=models, memory='cap = "210MiB"')
    service.knobs(endless_jobs=True)
    service.start()
    bench = asyncio.create_task(post(service, "/homespec/models/m/bench"))
    await asyncio.to_thread(wait_for, lambda: service.events("bench"))
    if end == "unload":
        assert (await post(service, "/homespec/models/m/unload")).status_code == 200
    elif end == "room":
        assert (await post(service, "/homespec/models/b/load")).status_code == 200
    elif end == "stop":
        assert await asyncio.to_thread(service.stop) == 0
    else:
        changed = (
            MODEL + "context = 100\n" if end == "other settings" else MODEL.replace("m]", "n]")
        )
        service.write_config(models=changed)
        await post(service, "/homespec/reload")
    refused = (await bench).json()["error"]
    assert (await bench).status_code == 503
    assert refused["code"] == "job_cancelled"
    assert refused["message"].startswith(f"the bench of model 'm' was broken off: {JOB_ENDS[end]}")
    await asyncio.to_thread(wait_for, lambda: service.events("stop"))


# -- TCP ---------------------------------------------------------------------------------------


@pytest.fixture
def port() -> Iterator[int]:
    with held_port() as port:
        yield port


async def test_tcp_peers_need_a_key_where_there_are_keys(
    service: RunningService, port: int
) -> None:
    keys = service.folder / "keys"
    keys.write_text("# who\nopen-sesame\nother\n")
    keys.chmod(0o600)
    service.write_config(server=f'listen = ["127.0.0.1:{port}"]\napi_keys_file = "{keys}"')
    service.start()
    async with httpx.AsyncClient(base_url=f"http://127.0.0.1:{port}", timeout=PATIENCE_S) as client:
        refused = await client.get("/v1/models")
        assert refused.status_code == 401
        assert refused.json()["error"]["type"] == "authentication_error"
        for header in ("Bearer wrong", "Basic open-sesame", "open-sesame", "Bearer"):
            response = await client.get("/v1/models", headers={"Authorization": header})
            assert response.status_code == 401
        assert (await client.get("/healthz")).status_code == 200
        key = {"Authorization": "Bearer other"}
        assert (await client.get("/v1/models", headers=key)).status_code == 200
    assert (await ask(service)).status_code == 200  # on the socket the kernel says who asks


async def test_a_user_may_be_kept_from_a_model(service: RunningService) -> None:
    clients = '[clients.default]\nallow_models = ["other"]\nmax_active = 1\n'
    service.write_config(models=MODEL + '[models.other]\npath = "o"\n' + clients)
    service.knobs("other", gate=True)
    service.start()
    refused = await ask(service)
    assert (refused.status_code, refused.json()["error"]["type"]) == (403, "permission_error")
    running = asyncio.create_task(ask(service, "other"))
    await asyncio.to_thread(wait_for, lambda: service.events("generate", "other"))
    too_many = await ask(service, "other")
    assert (too_many.status_code, too_many.headers["retry-after"]) == (429, "1")
    (service.folder / "gate").touch()
    assert (await running).status_code == 200


# -- what it is made of ------------------------------------------------------------------------


def test_the_supervisor_has_no_engine_in_it() -> None:
    heavy = ("onnxruntime", "numpy", "tokenizers", "jinja2", "gguf", "onnx", "safetensors")
    program = (
        f"import sys, homespecd.daemon.main\nprint(sorted(set({heavy!r}) & set(sys.modules)))\n"
    )
    result = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True, cwd=ROOT
    )
    assert result.stdout.strip() == "[]"
