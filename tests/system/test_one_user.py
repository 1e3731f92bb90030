"""The units for one user, in that user's own systemd."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.system.host import PROJECT, Host

pytestmark = [pytest.mark.system, pytest.mark.slow]

HOME = "/home/alice"
CONFIG = f"""
[server]
socket_group = ""
[paths]
models = "{HOME}/models"
state = "{HOME}/state"
"""
# What docs/install.md says, with the installed programs in place of another copy of them.
PREPARE = f"""
set -e
useradd --create-home alice
cd {HOME}
mkdir -p .local/bin .config/homespecd .config/systemd/user models state
ln -s /opt/homespecd/current/venv/bin/homespec* .local/bin/
cp {PROJECT}/systemd/user/homespecd.* .config/systemd/user/
chown -R alice: {HOME}
systemctl start user@$(id -u alice)
"""
AS_ALICE = (
    f"cd {HOME}; setpriv --reuid alice --regid alice --init-groups env HOME={HOME} "
    f"XDG_RUNTIME_DIR=/run/user/$(id -u alice) PATH={HOME}/.local/bin:/usr/bin:/bin"
)


@pytest.fixture
def alice(host: Host) -> Iterator[Host]:
    host.sh(PREPARE)
    host.write(f"{HOME}/.config/homespecd/homespecd.toml", CONFIG)
    yield host
    host.sh("systemctl stop user@$(id -u alice); userdel --remove alice", check=False)


def test_one_user_without_root(alice: Host) -> None:
    alice.sh(f"{AS_ALICE} systemctl --user enable --now homespecd.socket homespecd.service")
    assert "no models" in alice.sh(f"{AS_ALICE} homespecctl status --once")
    socket = "/run/user/$(id -u alice)/homespecd/homespecd.sock"
    assert alice.sh(f"stat -c '%a %U' {socket}") == "600 alice"
    units = f"{HOME}/.config/systemd/user/homespecd"
    verify = f"systemd-analyze --user verify --man=no {units}.service {units}.socket"
    assert alice.sh(f"{AS_ALICE} {verify}") == ""
    alice.sh(f"{AS_ALICE} systemctl --user reload homespecd")
    alice.sh(f"{AS_ALICE} systemctl --user stop homespecd.service")
    assert "no models" in alice.sh(f"{AS_ALICE} homespecctl status --once")
