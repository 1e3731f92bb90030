"""install.sh --provider on a real systemd: which packages, which sandbox, and that it is kept."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.system.conftest import SUITE, Install
from tests.system.host import MODEL, Host

pytestmark = [pytest.mark.system, pytest.mark.slow]

CHOICE = "/opt/homespecd/current/share/provider"
DROP_IN = "/etc/systemd/system/homespecd.service.d/10-provider.conf"
CONFIG = "/etc/homespecd/conf.d/providers.toml"
MODEL_CONFIG = f"""
[memory]
reserve = "0B"
[models.smollm2]
path = "{MODEL}"
provider = "openvino"
context = 1024
residency = "pinned"
drafters = ["ngram"]
"""


@pytest.fixture
def restored(host: Host, install: Install) -> Iterator[Host]:
    """The host, and with onnxruntime for the CPU again afterwards."""
    yield host
    host.sh(f"rm -f {CONFIG}")
    install("--provider", "cpu")
    assert not host.path(DROP_IN).exists()


@pytest.mark.parametrize(
    ("provider", "drop_in"), [("cpu", ""), ("cuda", "gpu.conf"), ("openvino", "openvino.conf")]
)
def test_each_provider_has_packages_and_a_sandbox(
    bare_host: Host, install: Install, provider: str, drop_in: str
) -> None:
    before = bare_host.homespec_files()
    said = install("--dry-run", "--reinstall", "--provider", provider)
    lock = "requirements.lock" if provider == "cpu" else f"requirements-{provider}.lock"
    assert said.count("--require-hashes") == 1
    assert f"--require-hashes -r /srv/project/{lock}" in said
    assert ("no NVIDIA driver is loaded" in said) == (provider == "cuda")
    placed = [line for line in said.splitlines() if line.endswith(DROP_IN)]
    assert len(placed) == 1
    assert (
        f"/share/systemd/{drop_in}" in placed[0] if drop_in else placed[0] == f"+ rm -f {DROP_IN}"
    )
    assert bare_host.homespec_files() == before


def test_an_upgrade_keeps_the_choice(host: Host, install: Install) -> None:
    """Read from the release in use; one from before there was a choice is for the CPU."""
    assert host.sh(f"cat {CHOICE}") == "cpu"
    for written, lock in (("openvino", "requirements-openvino.lock"), ("", "requirements.lock")):
        host.sh(f"echo {written} > {CHOICE}" if written else f"rm {CHOICE}")
        try:
            assert f"-r /srv/project/{lock}" in install("--dry-run", "--reinstall")
        finally:
            host.sh(f"echo cpu > {CHOICE}")


@pytest.mark.skipif(not SUITE, reason="downloads OpenVINO; make test-system does it")
def test_openvino_is_installed_and_serves(restored: Host, install: Install) -> None:
    """One build of onnxruntime, in a sandbox in which it works; again without the option."""
    host = restored
    host.write(CONFIG, MODEL_CONFIG)
    assert "openvino is asked for" in host.sh("homespecctl doctor", check=False)
    install("--provider", "openvino")
    site = host.sh("ls -d /opt/homespecd/current/venv/lib/python3*/site-packages/onnxruntime*info")
    assert "onnxruntime_openvino-" in site
    assert len(site.splitlines()) == 1
    assert host.path(DROP_IN).read_text().count("MemoryDenyWriteExecute=no") == 1
    model = host.model()
    assert model["state"] == "ready", model
    assert model["provider"] == "openvino", model
    assert "tok/s" in host.sh("homespecctl ask smollm2 'Say hi' --max-tokens 4 --temperature 0")
    assert "is asked for" not in host.sh("homespecctl doctor", check=False)
    assert "is built already" in install()
    assert host.path(DROP_IN).exists()
    # OpenVINO writes machine code; what the drop-in opens is what it needs.
    host.sh(f"rm {DROP_IN}")
    host.drop_in()
    assert host.model()["provider"] == "cpu"
    assert "install openvino.conf" in host.sh("homespecctl doctor", check=False)
