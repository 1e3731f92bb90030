"""install.sh on a real systemd: what it installs, again, what it refuses. First of the files."""

from __future__ import annotations

import re

import pytest

from tests.system.conftest import Install
from tests.system.host import CONFIG, PROJECT, SOCKET, Host

pytestmark = [pytest.mark.system, pytest.mark.slow]


def test_a_dry_run_changes_nothing(bare_host: Host, install: Install) -> None:
    before = bare_host.homespec_files()
    said = install("--dry-run", "--with-demo-model")
    assert bare_host.homespec_files() == before
    for step in (
        "-m venv /opt/homespecd/releases/",
        "--require-hashes -r",
        "groupadd --system homespecd",
        f"{CONFIG}",
        "/etc/systemd/system/homespecd.socket",
        "systemctl enable",
        "import MODEL.gguf --name smollm2",
        "homespecctl status --once",
    ):
        assert step in said, step
    assert said.endswith("Nothing was done: this was a dry run.\n")
    assert "is not installed" in install("--uninstall")
    assert bare_host.homespec_files() == before


def test_installed(host: Host) -> None:
    """Units enabled and running, the command answers, owners and modes as they should be."""
    assert host.sh("systemctl is-active homespecd.socket homespecd.service") == "active\nactive"
    assert host.sh("systemctl is-enabled homespecd.socket homespecd.service") == "enabled\nenabled"
    assert host.status()["config"]["path"] == CONFIG
    modes = host.sh(
        f"stat -c '%a %U %G %n' {SOCKET} /run/homespecd /var/lib/homespecd "
        f"/var/lib/homespecd/models /var/lib/homespecd/state {CONFIG} /opt/homespecd"
    )
    assert modes.splitlines() == [
        f"660 homespecd homespecd {SOCKET}",
        "755 homespecd homespecd /run/homespecd",
        "750 homespecd homespecd /var/lib/homespecd",
        "750 homespecd homespecd /var/lib/homespecd/models",
        "750 homespecd homespecd /var/lib/homespecd/state",
        f"644 root root {CONFIG}",
        "755 root root /opt/homespecd",
    ]
    assert host.sh("find /opt/homespecd \\( -perm /022 -a ! -type l \\) -o ! -user root") == ""
    said = host.sh("homespecctl doctor", check=False)
    assert "nobody is in group homespecd" in said
    assert "bad:" not in said
    python = host.sh("readlink -f /opt/homespecd/current/venv/bin/python")
    assert python.startswith("/usr/bin/python3")
    for page in ("man1/homespecctl.1", "man8/homespecd.8"):
        assert ".SH NAME" in host.sh(f"cat /usr/local/share/man/{page}")
    host.sh("bash -n /usr/local/share/bash-completion/completions/homespecctl")


def test_units_are_clean(host: Host) -> None:
    assert host.sh("systemd-analyze verify --man=no homespecd.service homespecd.socket") == ""
    said = host.sh("systemd-analyze security homespecd.service --no-pager")
    exposure = re.search(r"Overall exposure level for homespecd.service: ([\d.]+)", said)
    assert exposure is not None, said
    assert float(exposure[1]) <= 1.5
    # A service that keeps crashing slows down, where systemd can do that.
    version = int(host.sh("systemctl --version | sed -n '1s/[^0-9]*\\([0-9]*\\).*/\\1/p'"))
    restart = "RestartUSec=1s\nRestartSteps=6\nRestartMaxDelayUSec=1min"
    if version < 254:
        restart = "RestartUSec=5s"
    asked = "RestartUSec,RestartSteps,RestartMaxDelayUSec"
    assert host.sh(f"systemctl show homespecd --property {asked}") == restart


def test_installing_again_changes_nothing(host: Host, install: Install) -> None:
    before, started = host.homespec_files(), host.release
    assert "is built already" in install()
    assert (host.homespec_files(), host.release) == (before, started)


def test_the_configuration_is_kept_and_the_new_default_lies_beside_it(
    host: Host, install: Install
) -> None:
    default = host.path(CONFIG).read_text()
    mine = default.replace('cap = "6GiB"', 'cap = "5GiB"')
    host.write(CONFIG, mine)
    try:
        assert "stays as it is" in install()
        assert host.path(CONFIG).read_text() == mine
        assert host.path(CONFIG + ".new").read_text() == default
        assert host.status()["memory"]["cap_bytes"] == 5 * 2**30
    finally:
        host.write(CONFIG, default)
    install()
    assert not host.path(CONFIG + ".new").exists()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ("--frobnicate", "unknown option --frobnicate"),
        ("--prefix /", "is not a folder of homespecd's own"),
        ("--prefix /etc/systemd", "/etc/systemd is there and is not homespecd's"),
        ("--prefix /home/homespecd", "the service cannot have its programs there"),
        ("--prefix /srv/../tmp/homespecd", "the service cannot have its programs there"),
        ("--prefix /var/lib/homespecd", "this is where configuration, models"),
        ("--purge", "--purge goes with --uninstall"),
        ("--offline /nowhere", "there is no such folder"),
        ("--provider", "--provider needs a name"),
        ("--provider tpu", "--provider tpu: there are cpu, cuda and openvino"),
        ("--provider directml", "DirectML is a part of Windows"),
    ],
)
def test_wrong_use_is_a_sentence(
    bare_host: Host, install: Install, options: str, message: str
) -> None:
    before = bare_host.homespec_files()
    said = install(options, fails=True)
    assert said.startswith("install.sh: ")
    assert message in said
    assert said.count("\n") == 1
    assert bare_host.homespec_files() == before


def test_two_installers_take_turns(bare_host: Host) -> None:
    said = bare_host.sh(f"flock /etc/systemd/system sh {PROJECT}/install.sh", check=False)
    assert said == "install.sh: another install.sh is at work: run this one when it is done"


def test_another_user_may_not_install(bare_host: Host) -> None:
    said = bare_host.sh(
        f"setpriv --reuid 65534 --regid 65534 --clear-groups sh {PROJECT}/install.sh", check=False
    )
    assert said == "install.sh: must run as root: sudo ./install.sh"
