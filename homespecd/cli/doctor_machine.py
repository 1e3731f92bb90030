"""What in the machine, and in the configuration for this machine, makes models slow or unsafe."""

from __future__ import annotations

from collections.abc import Iterator

from homespecd.cli.finding import Finding
from homespecd.cli.machine import Machine
from homespecd.config.schema import Config
from homespecd.config.units import format_size

# So much swap in use is what is left of a busy hour, and no sign of a shortage.
_SWAP_BYTES = 64 * 2**20


def machine_findings(machine: Machine) -> Iterator[Finding]:
    """Processor, clock and memory."""
    flags = machine.cpu_flags
    if flags and "asimd" not in flags:
        if "avx2" not in flags:
            yield Finding(
                "bad",
                "this processor has no AVX2: a model takes several times as long",
                "serve small models only; in a virtual machine, pass the host's processor through",
            )
        elif not flags & {"avx512_vnni", "avx_vnni"}:
            yield Finding(
                "warning",
                "this processor has no VNNI: int4 and int8 models gain less",
                "homespecctl bench says what there is; nothing to mend, unless this is a virtual "
                "machine that could pass the host's processor through",
            )
    elif flags and not flags & {"asimddp", "i8mm"}:
        yield Finding(
            "warning",
            "this processor has no dot-product instructions: int4 and int8 models gain less",
            "serve small models",
        )
    driver, governor, preference = machine.frequency
    # These two drivers call it powersave and reach full speed; what counts is the preference.
    own_ways = driver in ("intel_pstate", "amd-pstate-epp")
    if (governor == "powersave" and not own_ways) or (own_ways and preference == "power"):
        yield Finding(
            "warning",
            "the processor's clock is held down (governor powersave)",
            "cpupower frequency-set -g schedutil, and the same at boot",
        )
    memory = machine.memory
    swapped = memory.get("SwapTotal", 0) - memory.get("SwapFree", 0)
    if swapped > _SWAP_BYTES:
        yield Finding(
            "warning",
            f"{format_size(swapped)} are swapped out: this machine is short of memory",
            "lower memory.cap or raise memory.reserve, so that models leave room for the rest",
        )


def config_findings(config: Config, machine: Machine) -> Iterator[Finding]:
    """Caps against what there is, and the disk of the models."""
    total = machine.memory.get("MemTotal", 0)
    cap, reserve = config.memory.cap_bytes, config.memory.reserve_bytes
    if total and cap > total:
        yield Finding(
            "bad",
            f"memory.cap is {format_size(cap)}, and this machine has {format_size(total)}",
            "set memory.cap to what models may hold, half of the machine's memory, say",
        )
    elif total and cap + reserve > total:
        yield Finding(
            "warning",
            f"memory.cap and memory.reserve together are more than this machine's "
            f"{format_size(total)}",
            "the reserve wins: lower memory.cap, so that it says what will really be held",
        )
    if machine.rotational(config.paths.models):
        yield Finding(
            "warning",
            f"{config.paths.models} is on a spinning disk (or a virtual one that says so): "
            "models load slowly, and slower still when memory is short",
            "put paths.models on an SSD, or pin the models that matter",
        )
    if config.server.socket_mode & 0o007:
        yield Finding(
            "bad",
            f"every user of this machine may use the socket (mode {config.server.socket_mode:04o})",
            'set server.socket_mode = "0660"',
        )
