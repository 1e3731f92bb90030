"""Whether models can run where they are asked for: builds, sandbox, and what came of it."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from homespecd.cli.finding import Finding
from homespecd.cli.terminal import harmless
from homespecd.config.schema import Config, DrafterConfig, ModelConfig
from homespecd.runtime.installed import Build, provider_trouble, trouble_with

_SANDBOX_FIX = "install {} (docs/operations.md), then systemctl restart homespecd"


def build_findings(builds: Sequence[Build], *, python: str = sys.executable) -> Iterator[Finding]:
    """No build of onnxruntime, or several.

    Args:
        builds: those of this command's interpreter; install.sh gives the service the same.
    """
    wrong = trouble_with(builds, python=python)
    if wrong is not None:
        yield Finding("bad", wrong.what, wrong.fix)


def asked_findings(
    config: Config, builds: Sequence[Build], *, python: str = sys.executable
) -> Iterator[Finding]:
    """Providers that are asked for and that no installed build has."""
    for provider in sorted({one for one, _ in _asked(config)}):
        missing = provider_trouble(provider, builds, python=python)
        if missing is not None:
            yield Finding("bad", missing.what, missing.fix)


def sandbox_findings(config: Config, unit: Mapping[str, str]) -> Iterator[Finding]:
    """Providers that the unit's sandbox keeps from what they need.

    Args:
        unit: what systemd says about it; {} where there is none.
    """
    asked = list(_asked(config))
    for_devices = sorted({name for name, options in asked if _on_device(name, options)})
    if for_devices and unit.get("PrivateDevices") == "yes":
        yield Finding(
            "bad",
            f"{' and '.join(for_devices)} is asked for, and the unit shows the service no devices",
            _SANDBOX_FIX.format("gpu.conf"),
        )
    elif (
        any(name == "openvino" for name, _ in asked) and unit.get("MemoryDenyWriteExecute") == "yes"
    ):
        yield Finding(
            "bad",
            "openvino is asked for, and the unit forbids code that is written at run time, which "
            "OpenVINO needs",
            _SANDBOX_FIX.format("openvino.conf"),
        )


def placement_findings(snapshot: Mapping[str, Any], builds: Sequence[Build]) -> Iterator[Finding]:
    """Models that the running service has elsewhere than they were asked for.

    One whose build is not installed is left to `asked_findings`.
    """
    for model in snapshot["models"]:
        asked, used = model.get("requested_provider"), model.get("provider")
        if not asked or not used or asked in ("auto", used) or provider_trouble(asked, builds):
            continue
        yield Finding(
            "bad",
            f"{harmless(model['name'])} asks for {asked} and runs on {used}: "
            f"{harmless(model.get('provider_reason') or 'the provider is not there')}",
            "mend what it says, and let the service at the device (gpu.conf in "
            'docs/operations.md); or set provider = "auto"',
        )


def _asked(config: Config) -> Iterator[tuple[str, Mapping[str, Any]]]:
    """Every provider that is named, with its options; "auto" is content with what there is."""
    sections: list[ModelConfig | DrafterConfig] = [*config.models.values()]
    for section in (*sections, *config.drafters.values()):
        if section.provider != "auto":
            yield section.provider, section.provider_options


def _on_device(provider: str, options: Mapping[str, Any]) -> bool:
    """Whether it needs files of /dev. OpenVINO runs on the CPU unless it is told otherwise."""
    if provider == "openvino":
        return str(options.get("device_type", "CPU")).upper() != "CPU"
    return provider == "cuda"
