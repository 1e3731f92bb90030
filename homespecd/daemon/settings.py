"""From the configuration to what one worker must know."""

from __future__ import annotations

from dataclasses import replace

from homespecd.config.provider_options import spelled
from homespecd.config.schema import Config, DrafterConfig
from homespecd.worker.messages import DrafterSettings, SpeculationSettings, WorkerSettings


def worker_settings(config: Config, name: str) -> WorkerSettings:
    """The settings of model `name`. Two equal ones need no reload between them."""
    model = config.models[name]
    return WorkerSettings(
        name=name,
        path=str(model.path),
        variant=model.variant,
        provider=model.provider,
        provider_options=spelled(model.provider, model.provider_options),
        provider_required=model.provider_required,
        device_memory_bytes=model.memory_cap_bytes,
        threads=model.threads,
        context=model.context,
        slots=model.slots,
        state_dir=str(config.paths.state),
        speculation=SpeculationSettings(
            enabled=config.speculation.enabled,
            min_speedup=config.speculation.min_speedup,
            max_draft_tokens=config.speculation.max_draft_tokens,
            probe_budget=config.speculation.probe_budget,
        ),
        drafters=tuple(_drafter(one, config.drafters[one]) for one in model.drafters),
    )


def needs_new_worker(loaded: WorkerSettings, wanted: WorkerSettings) -> bool:
    """Whether a worker cannot go over to other settings while it serves: more than its drafters and
    how it speculates would change. Whether it speculates at all decides what is checked at load."""
    if loaded.speculation.enabled != wanted.speculation.enabled:
        return True
    # A device's limit is given when a session is made; the cap itself is watched all the time.
    changeable = replace(
        loaded,
        drafters=wanted.drafters,
        speculation=wanted.speculation,
        device_memory_bytes=wanted.device_memory_bytes,
    )
    return changeable != wanted


def same_draft_models(loaded: WorkerSettings, wanted: WorkerSettings) -> bool:
    """Whether the same draft models serve both, whatever else changes about drafting."""

    def models(settings: WorkerSettings) -> set[str]:
        # Options are a dict: as text they can be compared.
        return {repr(one) for one in settings.drafters if one.path}

    return models(loaded) == models(wanted)


def _drafter(name: str, drafter: DrafterConfig) -> DrafterSettings:
    return DrafterSettings(
        name=name,
        kind=drafter.kind,
        path="" if drafter.path is None else str(drafter.path),
        variant=drafter.variant,
        provider=drafter.provider,
        provider_options=spelled(drafter.provider, drafter.provider_options),
        max_draft_tokens=drafter.max_draft_tokens,
    )
