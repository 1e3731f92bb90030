"""The installed service under a real systemd: activation, reload, crashes, memory, boot."""

from __future__ import annotations

import json
from collections.abc import Iterator

import pytest

from tests.system.conftest import SUITE
from tests.system.host import MODEL, SOCKET, Host, wait_for

pytestmark = [pytest.mark.system, pytest.mark.slow]

CONFIG = "/etc/homespecd/conf.d/test.toml"
PINNED = f"""
[memory]
reserve = "0B"
[models.smollm2]
path = "{MODEL}"
context = 1024
threads = 1
residency = "pinned"
drafters = ["ngram"]
"""
# A user who is in no group, and one in the socket's.
OUTSIDER = "setpriv --reuid 65534 --regid 65534 --clear-groups"
MEMBER = "setpriv --reuid 33 --regid 33 --groups $(getent group homespecd | cut -d: -f3)"
LONG = "homespecctl ask smollm2 'Write a long story' --max-tokens 900 --temperature 0"
WAIT_FOR_AN_ANSWER = f"""
import socket
with socket.socket(socket.AF_UNIX) as connection:
    connection.settimeout(120)
    connection.connect("{SOCKET}")
    connection.sendall(b"GET /healthz HTTP/1.0\\r\\n\\r\\n")
    print(connection.recv(100))
"""
# Freezes the thread of PID that has computed most, its first one aside, in the middle of a piece of
# work: it does so at moments of chance, and lets go of it whenever the answer in FILE grows all the
# same, until the process is killed.
FREEZE = """
import ctypes, os, sys, time
from pathlib import Path
SEIZE, INTERRUPT, DETACH, WALL = 0x4206, 0x4207, 17, 0x40000000
ptrace = ctypes.CDLL(None, use_errno=True).ptrace
ptrace.argtypes = [ctypes.c_long] * 4
pid, answer = int(sys.argv[1]), Path(sys.argv[2])

def call(request, thread):
    if ptrace(request, thread, 0, 0) == -1:
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))

def used(thread):
    return int(Path(f"/proc/{pid}/task/{thread}/schedstat").read_text().split()[0])

thread = max((int(one) for one in os.listdir(f"/proc/{pid}/task") if int(one) != pid), key=used)
while True:
    call(SEIZE, thread)
    call(INTERRUPT, thread)
    os.waitpid(thread, WALL)
    time.sleep(0.2)
    size = answer.stat().st_size
    while answer.stat().st_size == size:
        time.sleep(0.1)
        if os.waitpid(thread, WALL | os.WNOHANG)[0]:  # else what is left of it keeps its process
            sys.exit()
    call(DETACH, thread)
    time.sleep(0.0137)
"""
SECRET = "Zanzibar-Quetzalcoatl"


@pytest.fixture
def served(host: Host) -> Iterator[Host]:
    """The host with a pinned model that is ready, and as it was afterwards."""
    host.write(CONFIG, PINNED)
    host.drop_in()
    assert host.model()["state"] == "ready", "systemctl waits for pinned models"
    yield host
    host.sh(f"rm -f {CONFIG}")
    host.drop_in()


def restarts(host: Host) -> int:
    return int(host.show("homespecd", "NRestarts"))


def wait_until_well(host: Host) -> None:
    """Active, with its model ready."""

    def well() -> bool:
        active = host.sh("systemctl is-active homespecd", check=False) == "active"
        return active and host.model()["state"] == "ready"

    wait_for(well, what=lambda: host.sh("journalctl -u homespecd -b --no-pager | tail -30"))


def test_the_first_connection_starts_the_service(host: Host) -> None:
    host.sh("systemctl stop homespecd.service")
    assert host.sh("systemctl is-active homespecd.service homespecd.socket", check=False) == (
        "inactive\nactive"
    )
    assert "no models" in host.sh("homespecctl status --once")
    assert host.sh("systemctl is-active homespecd.service") == "active"


def test_the_socket_survives_restarts(host: Host) -> None:
    """M6: the same socket, with the same owner, and whoever connects meanwhile is served."""
    look = f"stat -c '%i %a %U %G' {SOCKET}"
    before = host.sh(look)
    for _ in range(3):
        host.sh("systemctl restart --no-block homespecd.service; homespecctl status --once")
    assert host.sh(look) == before
    assert host.show("homespecd", "NRestarts") == "0"


def test_who_is_not_in_the_group_is_refused(served: Host) -> None:
    """M4; whom the kernel names shows in the snapshot."""
    refused = served.run(f"cd /; {OUTSIDER} homespecctl status --once")
    assert refused.returncode == 4
    assert "this user may not open the socket" in refused.stdout
    ask = "homespecctl ask smollm2 Hello --max-tokens 2"
    assert "tok/s" in served.sh(f"cd /; {MEMBER} {ask}")
    assert 33 in {client["uid"] for client in served.status()["clients"]}


def test_what_systemctl_says(served: Host) -> None:
    assert served.show("homespecd", "StatusText").startswith("smollm2 ready")
    assert served.show("homespecd", "MainPID") != "0"
    # Nothing of the sandbox makes a library complain.
    log = served.sh(
        f"journalctl -u homespecd -b -o cat --no-pager _PID={served.model()['pid']}", check=False
    )
    assert "cpuinfo" not in log
    assert "affinity" not in log
    assert "denied" not in log.lower()


def test_reload_good_and_bad(served: Host) -> None:
    """L7: the process and the model stay; what is refused makes the command fail and is shown."""
    before = (served.pid, served.model()["pid"])
    served.write(CONFIG, PINNED + "[clients.default]\nmax_active = 3\n")
    served.sh("systemctl reload homespecd")
    wait_for(lambda: served.status()["config"]["generation"] > 1, what=lambda: "no reload")
    served.write(CONFIG, PINNED + 'colour = "red"\n')
    refused = served.run("systemctl reload homespecd")
    assert refused.returncode != 0
    config = wait_for(
        lambda: (found := served.status()["config"])["last_error"] and found,
        what=lambda: "no error is shown",
    )
    assert "test.toml:10: models.smollm2.colour: unknown key" in config["last_error"]
    assert any(
        entry.get("HOMESPECD_EVENT") == "reload_refused" and entry["PRIORITY"] == "3"
        for entry in served.journal()
    )
    assert (served.pid, served.model()["pid"]) == before
    assert "tok/s" in served.sh("homespecctl ask smollm2 Hello --max-tokens 2")


def test_a_hung_supervisor_is_restarted(served: Host) -> None:
    served.drop_in("WatchdogSec=2")
    before = served.pid
    served.sh(f"kill -STOP {before}")
    wait_for(lambda: restarts(served) == 1, what=lambda: "the watchdog did nothing")
    wait_until_well(served)
    assert served.pid != before
    assert "Watchdog timeout" in served.sh("journalctl -u homespecd -b -o cat --no-pager")


def test_a_crash_is_mended(served: Host) -> None:
    """Who waits in the socket meanwhile is served; workers of the dead supervisor are gone."""
    served.drop_in("RestartSec=1")
    before, worker = served.pid, served.model()["pid"]
    served.sh(f"kill -SEGV {before}")
    assert "200 OK" in served.sh(f"/usr/bin/python3 -c '{WAIT_FOR_AN_ANSWER}'")
    assert restarts(served) == 1
    assert not served.path(f"/proc/{worker}").exists()


def test_a_worker_that_is_killed_takes_its_answer_with_it_and_no_more(served: Host) -> None:
    before = served.pid
    served.sh(f"kill -KILL {served.model()['pid']}")
    wait_until_well(served)
    assert (served.pid, restarts(served)) == (before, 0)


def test_a_hung_worker_is_replaced(served: Host) -> None:
    before, worker = served.pid, served.model()["pid"]
    served.sh(f"kill -STOP {worker}")
    wait_for(
        lambda: served.model()["pid"] not in (worker, None) and served.model()["state"] == "ready",
        what=lambda: str(served.model()),
    )
    assert (served.pid, restarts(served)) == (before, 0)


@pytest.mark.skipif(not SUITE, reason="takes half a minute; make test-system does it")
def test_an_engine_that_is_stuck_in_a_step_is_replaced(served: Host) -> None:
    """Its reader answers all the while; its request is told, and nothing else is disturbed."""
    served.write(CONFIG, PINNED.replace("threads = 1", "threads = 2"))
    served.drop_in()
    before, worker = served.pid, served.model()["pid"]
    served.write("/root/ask.sh", f"{LONG} > /root/answer 2>&1; echo exit $? >> /root/answer\n")
    served.write("/root/freeze.py", FREEZE)
    served.sh("systemd-run --quiet --unit ask sh /root/ask.sh")
    answer = served.path("/root/answer")
    wait_for(lambda: answer.exists() and answer.stat().st_size > 40, what=lambda: "no answer")
    served.sh(
        f"systemd-run --quiet --unit freeze /usr/bin/python3 /root/freeze.py {worker} /root/answer"
    )
    try:
        wait_for(
            lambda: (
                served.model()["pid"] not in (worker, None) and served.model()["state"] == "ready"
            ),
            what=lambda: f"{served.model()} {served.sh('journalctl -u freeze -b -o cat')}",
        )
    finally:
        served.sh("systemctl stop freeze", check=False)
    log = served.sh("journalctl -u homespecd -b -o cat --no-pager | tail -20")
    assert "its engine was stuck in a step" in log
    assert "stuck" in answer.read_text()
    assert "exit 0" not in answer.read_text()
    assert (served.pid, restarts(served)) == (before, 0)


def test_a_bad_configuration_does_not_spin(host: Host) -> None:
    """78 is no reason to try again; mended, it starts."""
    host.write(CONFIG, "[server]\nnonsense = 1\n")
    try:
        assert host.run("systemctl restart homespecd.service").returncode != 0
        assert host.show("homespecd", "ExecMainStatus") == "78"
        assert host.sh("systemctl is-active homespecd", check=False) == "failed"
        assert restarts(host) == 0
        assert "test.toml:2: server.nonsense: unknown key" in host.sh(
            "journalctl -u homespecd -b -o cat -p err --no-pager"
        )
        # Connections cannot make it a busy loop: the service and its socket give up.
        host.run("timeout 20 homespecctl status --once")
        wait_for(
            lambda: host.sh("systemctl is-active homespecd.socket", check=False) == "failed",
            what=lambda: "the socket still starts it",
        )
    finally:
        host.sh(f"rm -f {CONFIG}; systemctl reset-failed homespecd.service homespecd.socket")
    host.sh("systemctl start homespecd")
    assert "no models" in host.sh("homespecctl status --once")


def test_a_model_that_may_not_be_read_says_so(host: Host) -> None:
    """Below a home folder, which the sandbox hides: refused by a reload, no trace at a start."""
    host.write(CONFIG, '[models.closed]\npath = "/root/closed"\n')
    try:
        refused = host.run("homespecctl reload")
        assert refused.returncode == 78
        assert "models.closed.path: /root/closed cannot be reached: permission" in refused.stdout
        host.drop_in()
        said = host.sh("homespecctl ask closed Hello", check=False)
        assert "/root/closed/tokenizer.json: cannot be read: Permission denied" in said
        assert "Traceback" not in host.sh("journalctl -u homespecd -o cat --no-pager -n 12")
    finally:
        host.sh(f"rm -f {CONFIG}")
        host.drop_in()


def test_the_memory_limit_ends_a_worker_and_not_the_service(served: Host) -> None:
    before = served.oom_kills("homespecd.service")
    served.sh("systemctl stop homespecd.service")
    served.write(CONFIG, PINNED.replace("pinned", "on-demand"))
    served.drop_in("MemoryHigh=infinity", "MemoryMax=110M", "Restart=no")
    pid = served.pid
    asked = served.run("homespecctl ask smollm2 Hello --max-tokens 2")
    assert asked.returncode != 0, "the model fits: the limit has to be lower"
    assert served.oom_kills("homespecd.service") > before
    assert served.pid == pid
    assert served.model()["state"] == "failed"
    # With the limit gone the same service serves it, once somebody says that it is worth a try.
    served.sh("systemctl set-property --runtime homespecd.service MemoryMax=infinity")
    served.sh("homespecctl load smollm2")
    assert "tok/s" in served.sh("homespecctl ask smollm2 Hello --max-tokens 2")
    assert served.pid == pid
    served.sh("rm -rf /run/systemd/system.control; systemctl daemon-reload")


def test_stopping_tells_whoever_is_still_served(served: Host) -> None:
    """M10: bounded, in order, and an open stream ends with an error that says so."""
    served.write("/root/ask.sh", f"{LONG} > /root/answer 2>&1; echo exit $? >> /root/answer\n")
    served.sh("systemd-run --quiet --unit ask sh /root/ask.sh")
    wait_for(lambda: served.model()["active"], what=lambda: "the request did not come")
    served.sh("systemctl stop homespecd.service")
    wait_for(lambda: "exit" in served.path("/root/answer").read_text(), what=lambda: "no end")
    answer = served.path("/root/answer").read_text()
    assert "exit 0" in answer or "is stopping" in answer, answer
    assert served.show("homespecd", "Result") == "success"
    log = served.sh("journalctl -u homespecd -b -o cat --no-pager | tail -20")
    assert "SIGKILL" not in log
    assert "stopped" in log


def test_the_journal(served: Host) -> None:
    """One line a request with its numbers and no text; fields to alert on; no colour."""
    served.sh(f"homespecctl ask smollm2 'Say {SECRET}' --max-tokens 3")
    served.sh("homespecctl ask smollm2 --max-tokens 2000000 x", check=False)
    entries = served.journal()
    assert SECRET not in json.dumps(entries)
    assert "\\u001b" not in json.dumps(entries)
    own = [entry for entry in entries if entry.get("SYSLOG_IDENTIFIER") == "homespecd"]
    events = {entry.get("HOMESPECD_EVENT") for entry in own}
    assert {"model_loading", "model_ready", "request"} <= events
    assert any("model smollm2: ready on cpu after" in entry["MESSAGE"] for entry in own)
    requests = [entry for entry in own if entry.get("HOMESPECD_EVENT") == "request"]
    last = next(entry for entry in requests if entry.get("HOMESPECD_TOKENS") == "3")
    assert last["HOMESPECD_MODEL"] == "smollm2"
    assert last["HOMESPECD_PEER_UID"] == "0"
    assert last["PRIORITY"] == "6"
    assert len(last["HOMESPECD_REQUEST_ID"]) == 24
    assert last["_SYSTEMD_UNIT"] == "homespecd.service"
    assert last["MESSAGE"].startswith("request model=smollm2 uid=0 id=")
    match = f"HOMESPECD_REQUEST_ID={last['HOMESPECD_REQUEST_ID']}"
    assert len(served.sh(f"journalctl -b -o cat --no-pager {match}").splitlines()) == 1


@pytest.mark.parametrize("hard", [False, True])
def test_it_is_back_after_a_reboot(served: Host, hard: bool) -> None:
    """After an orderly one, and after a power cut."""
    served.reboot(hard=hard)
    wait_until_well(served)
    assert "tok/s" in served.sh("homespecctl ask smollm2 Hello --max-tokens 2")
