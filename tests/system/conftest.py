"""Throw-away hosts for the tests here. They need root, namespaces and overlayfs.

HOMESPECD_SYSTEM_ROOT=bookworm or trixie (a Debian release) makes them boot a clean root of it, with
next to nothing but Python installed, in place of this machine's own.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.system.host import MODEL, PROJECT, ROOT, SYSTEMD_HOST, WHEELS, Host

SUITE = os.environ.get("HOMESPECD_SYSTEM_ROOT", "")
CACHE = ROOT / ".cache"
# What install.sh asks for, and what a user's own systemd needs (every ordinary Debian has it).
CLEAN_PACKAGES = "python3,python3-venv,libpam-systemd"
LOCKS = ("requirements.lock", "requirements-demo.lock")

Install = Callable[..., str]
# In front of the PATH: kills who calls it with what $KILLED_AT says.
KILLER = """#!/bin/sh
case "$*" in "$KILLED_AT"*) kill -KILL $PPID ;; esac
exec /usr/bin/systemctl "$@"
"""


# What a host is made of. An ordinary user may have none of it, nor root in most containers.
NAMESPACES = [
    "unshare",
    "--mount",
    "--pid",
    "--net",
    "--uts",
    "--ipc",
    "--cgroup",
    "--fork",
    "true",
]


@pytest.fixture(scope="session")
def prepared() -> None:
    """The machine has what the hosts need; else every test here fails, and says why.

    They are skipped only where the kernel does not let this user make namespaces.
    """
    allowed = subprocess.run(NAMESPACES, capture_output=True, text=True)
    if allowed.returncode:
        why = allowed.stderr.strip()
        pytest.skip(f"no namespaces for this user, as `sudo make test` may have: {why}")
    result = subprocess.run(
        [Path(__file__).with_name("prepare"), *(["--clean-root"] if SUITE else [])],
        capture_output=True,
        text=True,
    )
    if result.returncode:
        pytest.fail(result.stderr.strip(), pytrace=False)


@pytest.fixture(scope="session")
def wheels(prepared: None, tmp_path_factory: pytest.TempPathFactory) -> Path:  # noqa: ARG001
    """Every package that install.sh needs, for the system's Python; downloaded once and kept."""
    digest = hashlib.sha256(b"".join((ROOT / lock).read_bytes() for lock in LOCKS)).hexdigest()
    folder = CACHE / f"wheels-{digest[:16]}"
    if not folder.is_dir():
        for old in CACHE.glob("wheels-*"):
            shutil.rmtree(old, ignore_errors=True)
        venv = tmp_path_factory.mktemp("pip") / "venv"
        subprocess.run(["/usr/bin/python3", "-m", "venv", venv], check=True)
        part = folder.with_suffix(".part")
        shutil.rmtree(part, ignore_errors=True)
        pip = [venv / "bin" / "python", "-m", "pip", "download", "--quiet", "--no-deps", "-d", part]
        for lock in LOCKS:
            subprocess.run([*pip, "--require-hashes", "-r", ROOT / lock], check=True)
        part.rename(folder)
    return folder


@pytest.fixture(scope="session")
def clean_root(prepared: None) -> Path | None:  # noqa: ARG001
    """A fresh Debian's root folder, made once; None = this machine's own root."""
    if not SUITE:
        return None
    folder = CACHE / f"root-{SUITE}"
    if not folder.is_dir():
        part = folder.with_suffix(".part")
        shutil.rmtree(part, ignore_errors=True)
        command = ["/usr/bin/python3", SYSTEMD_HOST, "rootfs", part, "--suite", SUITE]
        subprocess.run([*command, "--include", CLEAN_PACKAGES], check=True)
        part.rename(folder)
    return folder


@pytest.fixture(scope="session")
def bare_host(wheels: Path, clean_root: Path | None, smollm2_int4: Path) -> Iterator[Host]:
    """A booted host without homespecd."""
    host = Host(f"homespecd-{os.getpid()}")
    root = ["--root", str(clean_root)] if clean_root else []
    binds = [f"{ROOT}:{PROJECT}:ro", f"{wheels}:{WHEELS}:ro", f"{smollm2_int4}:{MODEL}:ro"]
    host.boot(*root, "--size", "12g", *(word for bind in binds for word in ("--bind", bind)))
    try:
        yield host
    finally:
        host.down()


@pytest.fixture(scope="session")
def install(bare_host: Host) -> Install:
    """Run install.sh, of the checkout or of another folder on the host; returns what it said.

    killed_at: kill it when it is about to run `systemctl` with what begins so.

    The packages come from a folder, except on a clean root: another Python there needs others.
    """

    def run(
        *options: str, source: str = PROJECT, fails: bool = False, killed_at: str | None = None
    ) -> str:
        offline = "" if SUITE else f"--offline {WHEELS}"
        script = f"sh {source}/install.sh {offline} {' '.join(options)}"
        if killed_at is not None:
            bare_host.write("/root/killer/systemctl", KILLER)
            bare_host.sh("chmod +x /root/killer/systemctl")
            script = f"PATH=/root/killer:$PATH KILLED_AT='{killed_at}' {script}"
        result = bare_host.run(script, network=bool(SUITE))
        assert (result.returncode != 0) == fails, result.stdout
        return result.stdout

    return run


@pytest.fixture
def host(bare_host: Host, install: Install) -> Host:
    """A host with homespecd installed and running, as install.sh leaves it, and no model."""
    if not bare_host.path("/opt/homespecd/current").is_symlink():
        install()
    return bare_host
