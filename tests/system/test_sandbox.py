"""The drop-ins that are shipped beside the units: what they open, and that the service starts."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.system.host import Host

pytestmark = [pytest.mark.system, pytest.mark.slow]

SHIPPED = "/opt/homespecd/current/share/systemd"
FOLDER = "/etc/systemd/system/homespecd.service.d"
CONFIG = "/etc/homespecd/conf.d/drop-in.toml"
# An address of the host that is not the loopback's; packets between it and itself count as its.
ADDRESS, PORT = "198.51.100.7", 8435
ON_THE_NETWORK = f"""
[server]
listen = ["{ADDRESS}:{PORT}", "127.0.0.1:{PORT}"]
api_keys_file = "/etc/homespecd/keys"
"""
# Prints the status of an answer, or "nothing" if none comes in the time of the third argument: a
# packet that is filtered is not answered at all.
GET = """
import http.client, sys
try:
    connection = http.client.HTTPConnection(sys.argv[1], {port}, timeout=float(sys.argv[3]))
    connection.request("GET", "/v1/models", headers=dict(Authorization="Bearer " + sys.argv[2]))
    print(connection.getresponse().status)
except OSError:
    print("nothing")
"""


@pytest.fixture
def restored(host: Host) -> Iterator[Host]:
    """The host, and as it was afterwards."""
    yield host
    host.sh(f"rm -f {CONFIG} /etc/homespecd/keys {FOLDER}/gpu.conf {FOLDER}/openvino.conf")
    host.sh(f"rm -f {FOLDER}/network.conf")
    host.drop_in()


def take(host: Host, name: str) -> None:
    """What the head of each drop-in says."""
    host.sh(
        f"mkdir -p {FOLDER} && cp {SHIPPED}/{name} {FOLDER}/ && "
        "systemctl daemon-reload && systemctl restart homespecd"
    )


def get(host: Host, address: str, key: str = "secret", *, timeout_s: float = 120.0) -> str:
    program = GET.format(port=PORT)
    return host.sh(f"/usr/bin/python3 -c '{program}' {address} {key} {timeout_s}")


def test_the_network_is_let_in_by_its_drop_in_and_not_before(restored: Host) -> None:
    host = restored
    host.outside_program("ip", "addr", "replace", f"{ADDRESS}/32", "dev", "lo")
    host.write("/etc/homespecd/keys", "secret\n")
    host.sh("chown root:homespecd /etc/homespecd/keys; chmod 640 /etc/homespecd/keys")
    host.write(CONFIG, ON_THE_NETWORK)
    host.drop_in()
    assert get(host, "127.0.0.1") == "200"
    assert get(host, ADDRESS, timeout_s=3.0) == "nothing"
    assert "lets nobody in from the network" in host.sh("homespecctl doctor", check=False)
    take(host, "network.conf")
    assert get(host, ADDRESS) == "200"
    assert get(host, ADDRESS, "wrong") == "401"
    assert "lets nobody in" not in host.sh("homespecctl doctor", check=False)
    assert host.sh("systemd-analyze verify --man=no homespecd.service") == ""


@pytest.mark.parametrize("name", ["gpu.conf", "openvino.conf"])
def test_drop_ins_for_providers_start_without_any_device(restored: Host, name: str) -> None:
    """Nothing complains, and what they open is open; the rest of the sandbox stays."""
    host = restored
    take(host, name)
    assert "no models" in host.sh("homespecctl status --once")
    assert host.sh("systemd-analyze verify --man=no homespecd.service") == ""
    assert host.show("homespecd", "MemoryDenyWriteExecute") == "no"
    assert host.show("homespecd", "ProtectSystem") == "strict"
    assert host.show("homespecd", "NoNewPrivileges") == "yes"
    opened = name == "gpu.conf"
    assert host.show("homespecd", "PrivateDevices") == ("no" if opened else "yes")
    allowed = host.show("homespecd", "DeviceAllow").splitlines()
    kinds = ("nvidia", "nvidia-uvm", "nvidia-caps", "drm", "accel")
    assert {f"char-{kind} rw" in allowed for kind in kinds} == {opened}
