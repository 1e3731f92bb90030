"""Whether the models of a configuration fit into its caps: looks at the disk, loads nothing."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from homespecd.config.checks import Fault
from homespecd.config.schema import Config
from homespecd.config.units import format_size
from homespecd.daemon.estimate import Estimate, estimate
from homespecd.daemon.learned import LearnedMemory
from homespecd.daemon.settings import worker_settings
from homespecd.worker.messages import WorkerSettings


def pinned_faults(config: Config) -> Iterator[Fault]:
    """Pinned models stay for ever, so together they must fit. Their drafts need not."""
    total = 0
    for name, model in config.models.items():
        if model.residency != "pinned":
            continue
        total += estimate(worker_settings(config, name)).floor_bytes
        if total > config.memory.cap_bytes:
            yield Fault(
                ("models", name, "residency"),
                f"the pinned models up to this one need at least {format_size(total)}, "
                f"and memory.cap is {format_size(config.memory.cap_bytes)}",
                'make one of them residency = "on-demand", or raise memory.cap',
            )
            return


def doubts(config: Config) -> Iterator[Fault]:
    """Models that will not be loaded because they are over a cap even alone, by what was measured
    on this machine, or else by their files."""
    return over_caps(config, lambda one: LearnedMemory(config.paths.state).needs(one).estimate)


def over_caps(config: Config, needs: Callable[[WorkerSettings], Estimate]) -> Iterator[Fault]:
    """The same, by `needs`. Drafts are not counted: a target comes without them."""
    for name, model in config.models.items():
        own, cap, key = model.memory_cap_bytes, config.memory.cap_bytes, "memory.cap"
        if own is not None and own < cap:
            cap, key = own, "memory_cap"
        need = needs(worker_settings(config, name))
        if need.target_bytes > cap:
            yield Fault(
                ("models", name, *(["memory_cap"] if key == "memory_cap" else [])),
                f"needs about {format_size(need.target_bytes)} "
                f"({format_size(need.floor_bytes)} of weights), and {key} is {format_size(cap)}: "
                "it will not be loaded",
                f"raise {key}, lower context or slots, or import it at a smaller precision",
            )
