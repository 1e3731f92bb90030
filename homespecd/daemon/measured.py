"""What the workers of models hold: measured while they run, and remembered for the next load."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from pathlib import Path

from homespecd.daemon import memory
from homespecd.daemon.devices import DeviceMemory
from homespecd.daemon.learned import LearnedMemory, Needs
from homespecd.daemon.models import Model
from homespecd.daemon.views import Drafts, State
from homespecd.worker.messages import WorkerSettings


class MeasuredMemory:
    """Fills in what `Model` records of memory. `use` before anything else.

    Memory of devices counts like any other.
    """

    def __init__(self, devices: DeviceMemory | None = None) -> None:
        self._devices = devices or DeviceMemory()
        self._learned: LearnedMemory | None = None

    async def use(self, state_dir: Path) -> None:
        """What is known lies in this folder from now on."""
        if self._learned is None or self._learned.state_dir != state_dir:
            self._learned = await asyncio.to_thread(LearnedMemory, state_dir)

    async def needs(self, settings: WorkerSettings) -> Needs:
        """What a model with these settings will hold."""
        assert self._learned is not None
        return await asyncio.to_thread(self._learned.needs, settings)

    async def save(self) -> None:
        """Write down what was learned, if it is news."""
        if self._learned is not None:
            await asyncio.to_thread(self._learned.save)

    async def measure(self, model: Model) -> None:
        """Look at what the worker of a model that is ready holds."""
        handle = model.handle
        if handle is None or model.state is not State.READY:
            return
        held = await asyncio.to_thread(self._held, handle.pid)
        if held is None or model.handle is not handle:
            return
        model.peak_bytes = max(model.peak_bytes, held)
        if model.drafts is Drafts.ON:
            # One that could not be opened holds nothing, and is still one that may come back.
            model.draft_bytes = max(handle.draft_bytes, min(1, model.estimate.draft_bytes))
            model.target_bytes = max(0, held - model.draft_bytes)
        elif model.drafts is Drafts.OFF:
            model.target_bytes = held
        if model.target_bytes is not None:
            if handle.info.get("provider") == "cpu":
                # Weights that are mapped and were not read, or were taken back by the kernel, are
                # not held now; the next step may need all of them.
                model.target_bytes = max(model.target_bytes, model.estimate.floor_bytes)
            model.most_bytes = max(model.most_bytes, model.target_bytes)
        self.learn(model)

    def _held(self, pid: int) -> int | None:
        own = memory.worker_bytes(pid)
        return None if own is None else own + self._devices.total_bytes(pid)

    def learn(self, model: Model, *, exactly: bool = False) -> None:
        """Remember what the present worker needed, if it goes by the present settings."""
        if self._learned is None or not model.most_bytes:
            return
        if model.loaded_settings != model.settings:
            return
        needed = replace(model.estimate, target_bytes=model.most_bytes)
        if model.draft_bytes is not None:
            needed = replace(needed, draft_bytes=model.draft_bytes)
        self._learned.note(model.memory_key, needed, exactly=exactly)
        model.estimate = self._learned.get(model.memory_key) or needed
