"""install.sh on a real systemd: install, again, upgrade, roll back, take away."""

from __future__ import annotations

import re

import pytest

from tests.system.conftest import Install
from tests.system.host import CONFIG, PROJECT, SOCKET, Host

pytestmark = [pytest.mark.system, pytest.mark.slow]

LEFT = ("/etc/homespecd", "/var/lib/homespecd", "/opt/homespecd", "/run/homespecd")


def files(host: Host) -> str:
    """Everything that an installation could have put somewhere."""
    return host.sh(
        "find /etc /opt /usr/local /var/lib /run/homespecd -xdev -iname '*homespec*' "
        "-not -path '/opt/homespecd/releases/*' -not -path '/var/lib/homespecd/models/*' "
        "2>/dev/null | LC_ALL=C sort"
    )


def copied(host: Host, folder: str) -> str:
    """A checkout of its own on the host, to change."""
    host.sh(
        f"rm -rf {folder}; mkdir {folder}; cd {PROJECT}; "
        f"cp -r homespecd systemd etc install.sh pyproject.toml README.md LICENSE *.lock {folder}"
    )
    return folder


def release(host: Host) -> str:
    return host.sh("readlink /opt/homespecd/current")


def test_a_dry_run_changes_nothing(bare_host: Host, install: Install) -> None:
    before = files(bare_host)
    said = install("--dry-run", "--with-demo-model")
    assert files(bare_host) == before
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


def test_installing_again_changes_nothing(host: Host, install: Install) -> None:
    before, started = files(host), release(host)
    assert "is built already" in install()
    assert (files(host), release(host)) == (before, started)


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


def test_a_configuration_that_the_new_version_refuses_stops_the_upgrade(
    host: Host, install: Install
) -> None:
    host.write("/etc/homespecd/conf.d/bad.toml", "[server]\nsocketo = 1\n")
    try:
        pid, running = host.pid, release(host)
        said = install(fails=True)
        assert "bad.toml:2: server.socketo: unknown key" in said
        assert "nothing was changed" in said
        assert (host.pid, release(host)) == (pid, running)
    finally:
        host.sh("rm /etc/homespecd/conf.d/bad.toml")


def test_upgrade_and_failed_upgrades(host: Host, install: Install) -> None:
    """A new version takes over what there is; one that cannot start leaves the old one running."""
    host.sh(
        "setpriv --reuid homespecd --regid homespecd --clear-groups "
        "sh -c 'echo learned > /var/lib/homespecd/state/mark'"
    )
    old = release(host)
    new = copied(host, "/root/new")
    host.sh(f"sed -i 's/^__version__ = .*/__version__ = \"9.8.7\"/' {new}/homespecd/__init__.py")
    install(source=new)
    assert host.status()["version"] == "9.8.7"
    assert host.sh("cat /var/lib/homespecd/state/mark") == "learned"
    assert not host.path(f"/opt/homespecd/{old}").exists()

    # One that cannot even be built, and one that is built and does not start.
    running, pid = release(host), host.pid
    host.sh(f"echo 'unhashed==1' >> {new}/requirements.lock")
    assert "nothing was changed" in install(source=new, fails=True)
    assert (release(host), host.pid) == (running, pid)
    host.sh(f"sed -i '$d' {new}/requirements.lock")
    broken = 's/^    loop = .*/    raise RuntimeError("broken on purpose")/'
    host.sh(f"sed -i '/^async def serve/,/^    loop = /{broken}' {new}/homespecd/daemon/server.py")
    host.sh(f"echo '# changed' >> {new}/systemd/homespecd.socket")
    said = install(source=new, fails=True)
    assert "broken on purpose" in said
    assert "the upgrade failed and was undone" in said
    assert release(host) == running
    assert host.status()["version"] == "9.8.7"
    assert host.sh("grep -c changed /etc/systemd/system/homespecd.socket", check=False) == "0"
    assert host.sh("ls /opt/homespecd/releases | wc -l") == "1"
    host.sh("rm -rf /root/new /var/lib/homespecd/state/mark")


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ("--frobnicate", "unknown option --frobnicate"),
        ("--prefix /", "is not a folder of homespecd's own"),
        ("--prefix /etc/systemd", "/etc/systemd is there and is not homespecd's"),
        ("--purge", "--purge goes with --uninstall"),
        ("--offline /nowhere", "there is no such folder"),
    ],
)
def test_wrong_use_is_a_sentence(
    bare_host: Host, install: Install, options: str, message: str
) -> None:
    before = files(bare_host)
    said = install(options, fails=True)
    assert said.startswith("install.sh: ")
    assert message in said
    assert said.count("\n") == 1
    assert files(bare_host) == before


def test_another_user_may_not_install(bare_host: Host) -> None:
    said = bare_host.sh(
        f"setpriv --reuid 65534 --regid 65534 --clear-groups sh {PROJECT}/install.sh", check=False
    )
    assert said == "install.sh: must run as root: sudo ./install.sh"


def test_the_demo_model_uninstall_and_purge(host: Host, install: Install) -> None:
    """A model that answers straight from the installer; uninstalling leaves what it says; another
    prefix takes over what was left; purging leaves nothing."""
    said = install("--with-demo-model")
    assert "Importing SmolLM2" in said
    assert host.model()["state"] == "ready"
    assert "tok/s" in host.sh("homespecctl ask smollm2 'Say hi' --max-tokens 4 --temperature 0")

    said = install("--uninstall")
    assert "are left" in said
    assert files(host).splitlines() == [
        "/etc/homespecd",
        "/etc/homespecd/homespecd.schema.json",
        "/etc/homespecd/homespecd.toml",
        "/var/lib/homespecd",
    ]
    assert host.path("/var/lib/homespecd/models/smollm2/homespec.json").is_file()
    assert host.sh("getent group homespecd") != ""
    assert host.sh("systemctl is-active homespecd.socket", check=False) == "inactive"

    assert "is there already" in install("--prefix", "/srv/elsewhere", "--with-demo-model")
    assert host.model()["state"] == "ready"
    assert host.show("homespecd", "ExecStart").count("/srv/elsewhere/current") > 0
    assert not host.path("/opt/homespecd").exists()

    install("--uninstall", "--purge")
    assert files(host) == ""
    assert host.sh("ls -d /srv/elsewhere /run/homespecd", check=False).count("No such file") == 2
    assert host.sh("getent passwd homespecd; getent group homespecd", check=False) == ""
    assert host.sh("systemctl list-units --all 'homespecd*' --no-legend") == ""
