"""install.sh on a real systemd: upgrades, failed ones, taking it away. The last of the files."""

from __future__ import annotations

import pytest

from tests.system.conftest import Install
from tests.system.host import PROJECT, Host

pytestmark = [pytest.mark.system, pytest.mark.slow]


def copied(host: Host, folder: str) -> str:
    """A checkout of its own on the host, to change."""
    host.sh(
        f"rm -rf {folder}; mkdir {folder}; cd {PROJECT}; "
        f"cp -r homespecd systemd etc install.sh pyproject.toml README.md LICENSE *.lock {folder}"
    )
    return folder


def test_a_configuration_that_the_new_version_refuses_stops_the_upgrade(
    host: Host, install: Install
) -> None:
    host.write("/etc/homespecd/conf.d/bad.toml", "[server]\nsocketo = 1\n")
    try:
        pid, running = host.pid, host.release
        said = install(fails=True)
        assert "bad.toml:2: server.socketo: unknown key" in said
        assert "nothing was changed" in said
        assert (host.pid, host.release) == (pid, running)
    finally:
        host.sh("rm /etc/homespecd/conf.d/bad.toml")


def test_upgrade_and_failed_upgrades(host: Host, install: Install) -> None:
    """A new version takes over what there is; one that cannot start leaves the old one running."""
    host.sh(
        "setpriv --reuid homespecd --regid homespecd --clear-groups "
        "sh -c 'echo learned > /var/lib/homespecd/state/mark'"
    )
    old = host.release
    new = copied(host, "/root/new")
    host.sh(f"sed -i 's/^__version__ = .*/__version__ = \"9.8.7\"/' {new}/homespecd/__init__.py")
    install(source=new)
    assert host.status()["version"] == "9.8.7"
    assert host.sh("cat /var/lib/homespecd/state/mark") == "learned"
    assert not host.path(f"/opt/homespecd/{old}").exists()

    # One that cannot even be built, and one that is built and does not start.
    running, pid = host.release, host.pid
    host.sh(f"echo 'unhashed==1' >> {new}/requirements.lock")
    assert "nothing was changed" in install(source=new, fails=True)
    assert (host.release, host.pid) == (running, pid)
    host.sh(f"sed -i '$d' {new}/requirements.lock")
    broken = 's/^    stop, hurry = .*/    raise RuntimeError("broken on purpose")/'
    host.sh(f"sed -i '/^async def serve/,/^    stop, /{broken}' {new}/homespecd/daemon/server.py")
    host.sh(f"echo '# changed' >> {new}/systemd/homespecd.socket")
    # Killed after the switch, it is known all the same what to go back to.
    install(source=new, fails=True, killed_at="daemon-reload")
    assert host.release != running
    said = install(source=new, fails=True)
    assert "is built already" in said
    assert "broken on purpose" in said
    assert "the upgrade failed and was undone" in said
    assert host.release == running
    assert host.status()["version"] == "9.8.7"
    assert host.sh("grep -c changed /etc/systemd/system/homespecd.socket", check=False) == "0"
    assert host.sh("ls /opt/homespecd/releases | wc -l") == "1"
    host.sh("rm -rf /root/new /var/lib/homespecd/state/mark")


def test_the_demo_model_uninstall_and_purge(host: Host, install: Install) -> None:
    """A model that answers straight from the installer; uninstalling leaves what it says; another
    prefix takes over what was left; purging leaves nothing."""
    said = install("--with-demo-model")
    assert "Importing SmolLM2" in said
    assert host.model()["state"] == "ready"
    assert "tok/s" in host.sh("homespecctl ask smollm2 'Say hi' --max-tokens 4 --temperature 0")

    for options in ([], ["--uninstall"]):
        said = install(*options, "--prefix", "/srv/elsewhere", fails=True)
        assert "homespecd is in /opt/homespecd" in said
    said = install("--uninstall")
    assert "are left" in said
    assert host.homespec_files().splitlines() == [
        "/etc/homespecd",
        "/etc/homespecd/homespecd.schema.json",
        "/etc/homespecd/homespecd.toml",
        "/var/lib/homespecd",
    ]
    assert host.path("/var/lib/homespecd/models/smollm2/homespec.json").is_file()
    assert host.sh("getent group homespecd") != ""
    assert host.sh("systemctl is-active homespecd.socket", check=False) == "inactive"

    # Enabled, although the first attempt was killed before that.
    install("--prefix", "/srv/elsewhere", fails=True, killed_at="enable")
    assert "is there already" in install("--prefix", "/srv/elsewhere", "--with-demo-model")
    assert host.model()["state"] == "ready"
    assert host.show("homespecd", "ExecStart").count("/srv/elsewhere/current") > 0
    assert not host.path("/opt/homespecd").exists()
    assert host.sh("systemctl is-enabled homespecd.socket homespecd.service") == "enabled\nenabled"

    install("--uninstall", "--purge")
    assert host.homespec_files() == ""
    assert host.sh("ls -d /srv/elsewhere /run/homespecd", check=False).count("No such file") == 2
    assert host.sh("getent passwd homespecd; getent group homespecd", check=False) == ""
    assert host.sh("systemctl list-units --all 'homespecd*' --no-legend") == ""
