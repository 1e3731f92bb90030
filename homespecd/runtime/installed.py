"""Which builds of onnxruntime are installed, and how to mend none or several.

Every build of onnxruntime is a package of its own that fills the same folder, `onnxruntime`. pip
lets several be installed: then the files of the last one count, and taking any away takes files of
the others. This module reads what pip wrote down, and imports nothing.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from importlib.metadata import distributions
from types import MappingProxyType

# Package → the provider that it is installed for, which is the name of this project's extra too.
BUILDS: Mapping[str, str] = MappingProxyType(
    {
        "onnxruntime": "cpu",
        "onnxruntime-gpu": "cuda",
        "onnxruntime-openvino": "openvino",
        "onnxruntime-directml": "directml",
    }
)
# Of several, the one that was most probably meant: nobody installs another build by accident.
_MEANT = ("cuda", "openvino", "directml", "cpu")


@dataclass(frozen=True, order=True)
class Build:
    """One installed package of onnxruntime."""

    package: str
    version: str

    @property
    def provider(self) -> str:
        """What it is installed for; "" for a build that this program does not know."""
        return BUILDS.get(self.package, "")


@dataclass(frozen=True)
class Trouble:
    """What is wrong with the installed builds, and the command that mends it."""

    what: str
    fix: str


def installed_builds(path: Iterable[str] | None = None) -> tuple[Build, ...]:
    """Every package that installs the folder `onnxruntime`, in alphabetical order.

    Args:
        path: folders to look in, as in `sys.path`; None = those of this interpreter.
    """
    found = distributions() if path is None else distributions(path=list(path))
    builds = set()
    for one in found:
        # A folder that an interrupted pip left has no name.
        name = re.sub(r"[-_.]+", "-", one.metadata["Name"] or "").lower()
        if name in BUILDS or _is_unknown_build(name):
            builds.add(Build(name, one.version))
    return tuple(sorted(builds))


def trouble_with(builds: Iterable[Build], *, python: str = sys.executable) -> Trouble | None:
    """None when exactly one build is installed.

    Args:
        python: the interpreter whose packages they are; the commands name it.
    """
    several = tuple(builds)
    if len(several) == 1:
        return None
    pip = f"{python} -m pip"
    if not several:
        return Trouble(
            "no onnxruntime is installed: no model can run",
            f"{pip} install onnxruntime (or onnxruntime-gpu, onnxruntime-openvino: one of them)",
        )
    names = " ".join(one.package for one in several)
    keep = min(several, key=_rank)
    return Trouble(
        "several builds of onnxruntime are installed, and they overwrite each other's files: "
        + ", ".join(f"{one.package} {one.version}" for one in several),
        f"{pip} uninstall -y {names} && {pip} install --no-deps {keep.package}=={keep.version} "
        f"(or another of them, but one)",
    )


def provider_trouble(
    provider: str, builds: Iterable[Build], *, python: str = sys.executable
) -> Trouble | None:
    """Why `provider` cannot be had from what is installed; None when its build is there.

    The CPU is in every build.
    """
    several = tuple(builds)
    if provider in ("auto", "cpu") or not several or provider in {one.provider for one in several}:
        return None
    package = next(name for name, one in BUILDS.items() if one == provider)
    names = " ".join(one.package for one in several)
    pip = f"{python} -m pip"
    return Trouble(
        f"{provider} is asked for, and what is installed is {names}",
        f"install.sh --provider {provider} "
        f"(or {pip} uninstall -y {names} && {pip} install {package})",
    )


def _is_unknown_build(name: str) -> bool:
    """A build of onnxruntime under another name (-rocm, -migraphx, nightlies and so on)."""
    return bool(
        re.fullmatch(r"onnxruntime-(rocm|migraphx|qnn|cann|training(-.+)?|.*nightly)", name)
    ) or (name in ("ort-nightly", "ort-nightly-gpu", "ort-nightly-directml"))


def _rank(build: Build) -> tuple[int, str]:
    known = _MEANT.index(build.provider) if build.provider in _MEANT else len(_MEANT)
    return known, build.package
