"""Which execution providers to try for a model, in which order, and what counts as success.

Pure decisions over plain data: `runtime.session` carries them out. A provider is tried by loading
the graph with it; it is passed over, with a reason, when that fails, when the session comes up
without it, or when it takes too little of the graph. The CPU is last, unless it must not be.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from homespecd.errors import ModelError
from homespecd.runtime.placement import DeviceMemory, Placement, Share, named

PROVIDERS: Mapping[str, str] = {
    "cuda": "CUDAExecutionProvider",
    "openvino": "OpenVINOExecutionProvider",
    "directml": "DmlExecutionProvider",
    "cpu": "CPUExecutionProvider",
}
# "auto" takes a provider that runs all but this share of the nodes. A layer is some dozens of
# nodes, so one operator that is missing from every layer is past it: then each layer waits for the
# CPU twice, and the CPU alone is the safer bet. One odd node in a whole graph is well below.
AUTO_SHARE_ELSEWHERE = 0.02


@dataclass(frozen=True)
class ProviderRequest:
    """Where a model is asked to run.

    options: of that provider; for "auto", a table of these for each provider.
    required: fail rather than run elsewhere, even in part. "auto" has no elsewhere.
    cache_dir: where a provider may keep what it compiled, "" = nowhere.
    memory_limit_bytes: device memory that a session may take, None = all.
    """

    name: str = "auto"
    options: Mapping[str, Any] = field(default_factory=dict)
    required: bool = False
    cache_dir: str = ""
    memory_limit_bytes: int | None = None

    @property
    def strict(self) -> bool:
        return self.required and self.name != "auto"


@dataclass(frozen=True)
class Attempt:
    """One provider to load a graph with ("cuda"), and its options as onnxruntime takes them."""

    provider: str
    options: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Passed:
    """A provider that was not used, and why. `partial`: it could run some of the graph.

    out_of_memory: freeing memory may change that.
    """

    provider: str
    reason: str
    partial: bool = False
    out_of_memory: bool = False


@dataclass(frozen=True)
class Choice:
    """What to try, in this order, and what need not be tried."""

    attempts: tuple[Attempt, ...]
    passed: tuple[Passed, ...] = ()


def choose(
    request: ProviderRequest,
    listed: Sequence[str],
    *,
    openvino_devices: Sequence[str] | None = None,
) -> Choice:
    """The attempts for a request.

    Args:
        listed: providers of the installed onnxruntime, by its names.
        openvino_devices: that OpenVINO has here; None = it cannot be asked.

    Raises:
        ModelError: no such provider, or options that it does not have.
    """
    if request.name not in ("auto", *PROVIDERS):
        known = ", ".join(("auto", *PROVIDERS))
        raise ModelError(f"unknown provider {request.name!r}", hint=f"known are {known}")
    if request.name == "cpu" and request.options:
        names = ", ".join(map(repr, request.options))
        raise ModelError(f"the cpu provider has no options, but was given {names}")
    attempts: list[Attempt] = []
    passed: list[Passed] = []
    for provider in PROVIDERS if request.name == "auto" else (request.name,):
        if provider == "cpu":
            continue
        if PROVIDERS[provider] not in listed:
            # Under "auto" that is no news: nobody asked for this one.
            if request.name != "auto":
                why = f"{PROVIDERS[provider]} is not in the installed onnxruntime"
                passed.append(Passed(provider, why))
            continue
        options = options_for(request, provider)
        missing = missing_device(options, openvino_devices) if provider == "openvino" else ""
        if missing:
            passed.append(Passed(provider, missing))
        else:
            attempts.append(Attempt(provider, options))
    if not request.strict or request.name == "cpu":
        attempts.append(Attempt("cpu"))
    return Choice(tuple(attempts), tuple(passed))


def options_for(request: ProviderRequest, provider: str) -> dict[str, str]:
    """The options that were given for one provider, as onnxruntime takes them."""
    given = request.options.get(provider, {}) if request.name == "auto" else request.options
    return {name: str(value) for name, value in given.items()}


def missing_device(options: Mapping[str, str], devices: Sequence[str] | None) -> str:
    """Why OpenVINO cannot have the device it is asked for, "" when it can or nobody knows."""
    if devices is None:
        return ""
    asked = options.get("device_type", "CPU").upper()
    for one in asked.partition(":")[2].split(",") if ":" in asked else (asked,):
        wanted = one.partition(".")[0]
        if not any(device.upper().partition(".")[0] == wanted for device in devices):
            return f"OpenVINO has no {one} here, only {', '.join(devices) or 'nothing'}"
    return ""


def device_of(attempt: Attempt) -> str:
    """Where an attempt runs when it succeeds, never more than is known."""
    if attempt.provider == "cpu":
        return "CPU"
    if attempt.provider == "openvino":
        kind, _, several = attempt.options.get("device_type", "CPU").upper().partition(":")
        return " or ".join(several.split(",")) if several else kind
    return f"GPU {attempt.options.get('device_id', '0')}"


def memory_of(attempt: Attempt) -> DeviceMemory:
    """Where keys and values of an attempt should stay between steps. OpenVINO takes and gives host
    memory, whatever its device."""
    kind = {"cuda": "cuda", "directml": "dml"}.get(attempt.provider, "cpu")
    return DeviceMemory(kind, 0 if kind == "cpu" else int(attempt.options.get("device_id", "0")))


def judge(
    request: ProviderRequest,
    attempt: Attempt,
    active: Sequence[str],
    share: Share | None,
    *,
    complaint: str = "",
) -> Passed | None:
    """Why a session that came up is not what was meant; None when it is.

    Args:
        active: providers of the session, by onnxruntime's names.
        share: what the provider took of the graph; None = this onnxruntime cannot say.
        complaint: what onnxruntime said meanwhile.
    """
    provider, name = attempt.provider, PROVIDERS[attempt.provider]
    if provider == "cpu":
        return None
    if name not in active:
        return Passed(provider, f"{name} did not start" + (f": {complaint}" if complaint else ""))
    if share is None:
        return None
    if not share.taken:
        return Passed(provider, f"{name} took no node of this graph")
    part = f"{name} leaves {share.share_elsewhere:.1%} of this graph to the CPU: "
    part += named(share.operators)
    if request.strict and share.elsewhere:
        return Passed(provider, part, partial=True)
    if request.name == "auto" and share.share_elsewhere > AUTO_SHARE_ELSEWHERE:
        return Passed(provider, part, partial=True)
    return None


def settle(
    request: ProviderRequest, attempt: Attempt, passed: Sequence[Passed], share: Share | None
) -> Placement:
    """The placement of the attempt that was kept, after those that were passed over."""
    reasons = [one.reason for one in passed]
    if attempt.provider != "cpu" and share is not None and share.elsewhere:
        reasons.append(f"{share.elsewhere} of its nodes run on the CPU: {named(share.operators)}")
    on_cpu = attempt.provider == "cpu"
    return Placement(
        requested=request.name,
        provider=attempt.provider,
        reason="; ".join(reasons),
        device=device_of(attempt),
        share_elsewhere=0.0 if on_cpu else None if share is None else share.share_elsewhere,
        operators_elsewhere={} if on_cpu or share is None else dict(share.operators),
    )


def refusal(request: ProviderRequest, passed: Sequence[Passed]) -> ModelError:
    """What to say when a required provider is not to be had."""
    reasons = "; ".join(one.reason for one in passed)
    return ModelError(
        f"provider {request.name} is required, but {reasons}",
        hint=f"homespecctl doctor says what {request.name} needs; provider_required = false would "
        "run it elsewhere",
        out_of_memory=any(one.out_of_memory for one in passed),
    )
