"""The models there are, as the configuration has them: new, changed, and taken out."""

from __future__ import annotations

import time

from homespecd.config.schema import Config, ModelConfig
from homespecd.daemon.learned import Needs
from homespecd.daemon.measured import MeasuredMemory
from homespecd.daemon.models import Model
from homespecd.daemon.redrafts import Redrafts
from homespecd.daemon.settings import same_draft_models, worker_settings
from homespecd.daemon.views import State
from homespecd.errors import RequestError
from homespecd.worker.messages import WorkerSettings


class Roster:
    """Keeps the records; there are none before `configure`.

    models: by name; those that were taken out stay until their worker has ended.
    cap_bytes: what all may hold together; reserve_bytes: what is left to the machine.
    """

    def __init__(self, *, measured: MeasuredMemory, redrafts: Redrafts) -> None:
        self.models: dict[str, Model] = {}
        self.cap_bytes = 0
        self.reserve_bytes = 0
        self._measured = measured
        self._redrafts = redrafts

    async def configure(self, config: Config) -> None:
        """Go over to another configuration; what did not change stays as it is."""
        new_settings = {name: worker_settings(config, name) for name in config.models}
        await self._measured.use(config.paths.state)
        needs = {name: await self._measured.needs(one) for name, one in new_settings.items()}
        self.cap_bytes = config.memory.cap_bytes
        self.reserve_bytes = config.memory.reserve_bytes
        for name, settings in new_settings.items():
            model = self.models.get(name)
            if model is None:
                self.models[name] = Model(
                    name=name,
                    config=config.models[name],
                    settings=settings,
                    created_s=int(time.time()),
                    estimate=needs[name].estimate,
                    memory_key=needs[name].key,
                )
            else:
                self._reconfigure(model, config.models[name], settings, needs[name])
        for name, model in list(self.models.items()):
            if name not in new_settings:
                self._remove(model)

    def most_bytes(self, model: Model) -> int:
        """What its worker may hold at the most."""
        own = model.config.memory_cap_bytes
        return self.cap_bytes if own is None else min(own, self.cap_bytes)

    def forget(self, model: Model) -> None:
        """One that was taken out has no worker any more."""
        self.models.pop(model.name, None)

    def _reconfigure(
        self, model: Model, config: ModelConfig, settings: WorkerSettings, needs: Needs
    ) -> None:
        model.removed = False
        model.config = config
        model.forgive()
        if model.cell is not None:
            model.cell.limit(self.most_bytes(model))
        same = settings == model.settings and needs.key == model.memory_key
        if not same:
            model.settings = settings
            model.estimate, model.memory_key = needs.estimate, needs.key
        # One that was on its way out for another reason than its settings may stay.
        if model.state is State.READY and not (same and not model.leaving):
            assert model.loaded_settings is not None
            if not same_draft_models(model.loaded_settings, settings):
                model.draft_bytes = None
                model.drafts_not_before_s = 0.0
            self._redrafts.reconcile(model)

    def _remove(self, model: Model) -> None:
        model.removed = True
        error = RequestError(
            f"model {model.name!r} was taken out of the configuration",
            status=404,
            code="model_not_found",
            param="model",
        )
        model.turn_away(error)
        if model.state in (State.UNLOADED, State.FAILED):
            self.forget(model)
        else:
            model.leaving = True
