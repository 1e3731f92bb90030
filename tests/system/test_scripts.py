"""The shell scripts, as shellcheck sees them."""

from __future__ import annotations

import subprocess

import pytest

from tests.system.host import ROOT

pytestmark = pytest.mark.system


@pytest.mark.usefixtures("prepared")
@pytest.mark.parametrize("script", ["install.sh", "tests/system/prepare", "bench/gpu.sh"])
def test_shellcheck(script: str) -> None:
    result = subprocess.run(
        ["shellcheck", ROOT / script], capture_output=True, text=True, check=False
    )
    assert result.returncode == 0, result.stdout
