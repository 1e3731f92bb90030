"""A throw-away host with a real systemd as PID 1, and homespecd installed on it."""

from __future__ import annotations

import json
import subprocess
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
SYSTEMD_HOST = Path(__file__).with_name("systemd-host")
# Where the host sees the checkout (read-only), the packages and a model.
PROJECT, WHEELS, MODEL = "/srv/project", "/srv/wheels", "/srv/smollm2"
CONFIG = "/etc/homespecd/homespecd.toml"
SOCKET = "/run/homespecd/homespecd.sock"


class Host:
    """Made stopped. `boot` before use, `down` after."""

    def __init__(self, name: str) -> None:
        self.name = name

    def boot(self, *options: str) -> None:
        self._verb("up", *options)

    def down(self) -> None:
        self._verb("down")

    def reboot(self, *, hard: bool = False) -> None:
        self._verb("reboot", *(["--hard"] if hard else []))
        self._verb("wait")

    def sh(self, script: str, *, check: bool = True, network: bool = False) -> str:
        """What a shell script says as root on the host, both outputs together.

        network: it may reach this machine's package index.
        """
        result = self.run(script, network=network)
        assert not check or result.returncode == 0, f"{script}\n{result.stdout}"
        return result.stdout.strip()

    def run(self, script: str, *, network: bool = False) -> subprocess.CompletedProcess[str]:
        options = ["--outside-net"] if network else []
        return subprocess.run(
            [*self._command, "exec", *options, "--", "sh", "-c", script],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )

    def outside_program(self, *command: str) -> None:
        """Run a program of this machine in the host's network."""
        self._verb("net", "--", *command)

    def show(self, unit: str, name: str) -> str:
        return self.sh(f"systemctl show {unit} --property {name} --value")

    def path(self, path: str) -> Path:
        """The host's file as this machine sees it."""
        return Path(self._verb("path", path).strip())

    def write(self, path: str, text: str) -> None:
        file = self.path(path)
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)

    def oom_kills(self, unit: str) -> int:
        return int(self._verb("oom-kills", unit))

    # -- homespecd ---------------------------------------------------------------------------------

    @property
    def pid(self) -> int:
        return int(self.show("homespecd", "MainPID"))

    def status(self) -> dict[str, Any]:
        """The service's snapshot."""
        snapshot: dict[str, Any] = json.loads(self.sh("homespecctl status --json", check=False))
        return snapshot

    def model(self) -> dict[str, Any]:
        """The only model's part of the snapshot."""
        [model] = self.status()["models"]
        return dict(model)

    @property
    def release(self) -> str:
        """The one in use: a folder's name below the prefix."""
        return self.sh("readlink /opt/homespecd/current")

    def homespec_files(self) -> str:
        """Everything that an installation could have put somewhere, one a line."""
        return self.sh(
            "find /etc /opt /usr/local /var/lib /run/homespecd -xdev -iname '*homespec*' "
            "-not -path '/opt/homespecd/releases/*' -not -path '/var/lib/homespecd/models/*' "
            "2>/dev/null | LC_ALL=C sort"
        )

    def drop_in(self, *lines: str) -> None:
        """Settings of the service that a test needs, at once; none = as it was installed."""
        file = "/etc/systemd/system/homespecd.service.d/99-test.conf"
        if lines:
            self.write(file, "\n".join(["[Service]", *lines, ""]))
        else:
            self.sh(f"rm -f {file}")
        units = "homespecd.socket homespecd.service"
        self.sh(f"systemctl daemon-reload; systemctl reset-failed {units}")
        self.sh(f"systemctl restart {units}")

    def journal(self, *options: str) -> list[dict[str, Any]]:
        """The service's entries since its present boot."""
        text = self.sh(f"journalctl -u homespecd -b -o json --all {' '.join(options)}")
        return [json.loads(line) for line in text.splitlines()]

    # ----------------------------------------------------------------------------------------------

    @property
    def _command(self) -> Sequence[str]:
        return ("/usr/bin/python3", str(SYSTEMD_HOST), "-n", self.name)

    def _verb(self, verb: str, *options: str) -> str:
        result = subprocess.run(
            [*self._command, verb, *options],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
        )
        assert result.returncode == 0, f"systemd-host {verb}: {result.stdout}{result.stderr}"
        return result.stdout


def wait_for(
    condition: Callable[[], Any], *, what: Callable[[], str], timeout_s: float = 120
) -> Any:
    """Poll until it holds; generous, since nothing depends on how long it takes."""
    deadline = time.monotonic() + timeout_s
    while not (result := condition()):
        assert time.monotonic() < deadline, what()
        time.sleep(0.1)
    return result
