"""What each execution provider needs of a session, and why. Plain data; nothing is loaded here."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from homespecd.runtime.providers import Attempt, ProviderRequest

SPIN_US = "100"


@dataclass(frozen=True)
class SessionSettings:
    """How one session is made.

    threads: of the pool inside operators; onnxruntime's own pool has one more for nothing else.
    optimise: let onnxruntime rewrite the graph first.
    entries: onnxruntime's session configuration. options: the provider's own.
    exclusive: of all sessions on the device, one may run at a time.
    """

    threads: int
    optimise: bool = True
    entries: Mapping[str, str] = field(default_factory=dict)
    options: Mapping[str, str] = field(default_factory=dict)
    exclusive: bool = False
    # Operators one after another: a decoder has no branches to run side by side, and DirectML
    # demands it.
    sequential: bool = True
    # Rows and cache capacity differ from step to step: a plan of memory per shape never pays, and
    # DirectML must not have one.
    memory_pattern: bool = False


def settings_for(
    request: ProviderRequest, attempt: Attempt, *, threads: int, optimised: bool
) -> SessionSettings:
    """The settings for an attempt; what was configured wins over what is set here.

    Args:
        threads: at least 1. An explicit number also keeps onnxruntime from pinning threads to cores
            of the host, which fails loudly in a cpuset.
        optimised: the file was written by onnxruntime's optimizer for this machine, so optimizing
            it again is time for nothing.
    """
    entries = {
        # A step is hundreds of small operators. A thread that has nothing to do for a moment should
        # wait awake for the next one, but not for long, since others on the machine want the cores
        # too. SmolLM2-135M int4, 2 threads, 2 quiet cores, ms per step in one interleaved run: no
        # spinning 22.2, 10 µs 16.3, 100 µs 15.9, onnxruntime's default 16.1. On busy cores the
        # default is the slowest by far, for it takes them from the very threads it waits for.
        "session.intra_op.spin_duration_us": SPIN_US,
    }
    if attempt.provider != "cpu":
        entries["session.record_ep_graph_assignment_info"] = "1"
    options = _defaults(request, attempt, threads) | dict(attempt.options)
    if attempt.provider == "openvino" and "NPU" in options["device_type"].upper():
        # Without it, OpenVINO answers an NPU that cannot compile the graph with its own CPU, and
        # says so nowhere but in a log. With it, the graph is on the NPU or the load fails.
        entries["session.disable_cpu_ep_fallback"] = "1"
    return SessionSettings(
        threads=threads,
        # OpenVINO optimizes for itself, and knows the operators of the file better than what
        # onnxruntime would make of them.
        optimise=not optimised and attempt.provider != "openvino",
        entries=entries,
        options=options,
        # DirectML crashes when two threads run sessions on one device.
        exclusive=attempt.provider == "directml",
    )


def _defaults(request: ProviderRequest, attempt: Attempt, threads: int) -> dict[str, str]:
    if attempt.provider == "cuda":
        options = {
            # The other strategy doubles what is held with each growth, up to twice what is needed.
            "arena_extend_strategy": "kSameAsRequested",
            # Tuning chooses kernels by a race: after a reload the last bits might be others.
            "tunable_op_enable": "0",
            # float32 is float32. With TF32 a block and a single row would be rounded apart.
            "use_tf32": "0",
            # Graph capture stays off: a captured graph has fixed shapes and addresses, and here the
            # rows and the length of the past are others in every step.
        }
        if request.memory_limit_bytes is not None:
            options["gpu_mem_limit"] = str(request.memory_limit_bytes)
        return options
    if attempt.provider == "openvino":
        options = {
            # Explicit, so that what is shown is what was asked for: "AUTO" and unknown names were
            # seen to come up with every node elsewhere.
            "device_type": "CPU",
            # The types that the model has, on every device; otherwise a GPU computes in float16.
            "precision": "ACCURACY",
            "num_of_threads": str(threads),
        }
        if request.cache_dir:
            options["cache_dir"] = request.cache_dir
        return options
    return {}
