"""The composition root's heart: implements `api.service.Service` over the fleet."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from homespecd import __version__
from homespecd.api.app import unknown_model
from homespecd.api.service import ModelCard, Peer, Reloaded
from homespecd.config.schema import Config
from homespecd.daemon.admission import Admission
from homespecd.daemon.answers import RunningAnswer
from homespecd.daemon.cells import Cells
from homespecd.daemon.clients import Clients
from homespecd.daemon.configuration import Configuration
from homespecd.daemon.fleet import Fleet
from homespecd.daemon.health import Patience
from homespecd.daemon.models import Model
from homespecd.daemon.pressure import pressure_files
from homespecd.daemon.snapshot import model_snapshot
from homespecd.daemon.status_line import status_line
from homespecd.daemon.tasks import Tasks
from homespecd.daemon.upkeep import Upkeep
from homespecd.daemon.views import State
from homespecd.daemon.vigil import Vigil
from homespecd.errors import RequestError
from homespecd.worker.messages import GenerationRequest

# The snapshot waits no longer than this for a worker: it is to be there within 50 ms whatever they
# do. One in the middle of a long step has said how it does half a second ago.
_WORKER_WAIT_S = 0.035

_RETRY_S = 5.0


class Supervisor:
    """One service. `start` before use, `close` after.

    Args:
        command: how to start a worker; its socket's number is appended.
        patience: from when a worker hangs.
        quiet_s: edits of the configuration closer together than this are one.
        on_status: told a line for the service manager whenever it changes.
    """

    def __init__(
        self,
        config: Config,
        *,
        path: Path,
        command: Sequence[str],
        on_status: Callable[[str], None],
        patience: Patience,
        quiet_s: float,
    ) -> None:
        self._configuration = Configuration(config, path=path, apply=self._apply, quiet_s=quiet_s)
        self._on_status = on_status
        self._status_line = ""
        self._log = logging.getLogger(__name__)
        # Before anything starts a process: it would be in the cgroup that only children may have.
        cells = Cells.below_own_cgroup()
        self._fleet = Fleet(command=command, on_change=self._changed, cells=cells)
        self._upkeep = Upkeep(
            self._fleet,
            threshold=lambda: self._config.memory.pressure,
            sources=pressure_files(),
        )
        self._vigil = Vigil(
            workers=lambda: [
                (model.handle, model.running > 0)
                for model in self._fleet.models.values()
                if model.handle is not None
            ],
            loading=lambda: [
                model.coming for model in self._fleet.models.values() if model.coming is not None
            ],
            patience=patience,
        )
        self._clients = Clients(config.clients)
        self._admission = Admission(
            self._fleet, self._clients, max_queue=lambda: self._config.server.max_queue
        )
        self._started_s = time.monotonic()
        self._closing: RequestError | None = None
        self._tasks = Tasks()

    async def start(self) -> None:
        """Take up the configuration; pinned models begin to load."""
        await self._configuration.start()
        await self._fleet.configure(self._config)
        for run in (self._upkeep.run, self._vigil.run, self._configuration.run):
            self._tasks.start(self._keep_going(run))

    # -- api.service.Service -------------------------------------------------------------------

    @property
    def max_body_bytes(self) -> int:
        return self._config.server.max_body_bytes

    @property
    def api_keys(self) -> Sequence[str]:
        return self._configuration.keys

    async def generate(self, model: str, request: GenerationRequest, peer: Peer) -> RunningAnswer:
        self._check_open()
        return await self._admission.begin(self._model(model), request, peer)

    def models(self) -> Sequence[ModelCard]:
        return [
            ModelCard(name=model.name, created_s=model.created_s, state=model.state.value)
            for model in self._fleet.models.values()
            if not model.removed
        ]

    def not_ready(self) -> Sequence[str]:
        return [
            model.name
            for model in self._fleet.models.values()
            if model.pinned and model.state is not State.READY
        ]

    def still_loading(self) -> Sequence[str]:
        """Pinned models of which it is not known yet whether they will be there."""
        return [
            model.name
            for model in self._fleet.models.values()
            if model.pinned
            and (
                model.state is State.LOADING or (model.state is State.UNLOADED and not model.error)
            )
        ]

    async def status(self) -> Mapping[str, Any]:
        await asyncio.gather(
            *(
                model.handle.refresh_snapshot(_WORKER_WAIT_S)
                for model in self._fleet.models.values()
                if model.handle is not None
            )
        )
        now_s = time.monotonic()
        models = [
            model_snapshot(model, in_flight=self._admission.in_flight(model), now_s=now_s)
            for model in self._fleet.models.values()
        ]
        return {
            "version": __version__,
            "uptime_s": round(now_s - self._started_s, 3),
            "config": self._configuration.snapshot(),
            "memory": {
                "cap_bytes": self._config.memory.cap_bytes,
                "used_bytes": self._fleet.used_bytes,
                "reserve_bytes": self._config.memory.reserve_bytes,
                "pressure_avg10": self._upkeep.pressure_avg10,
                "relief": self._fleet.relief.name.lower(),
            },
            "loop_lag_s": self._vigil.lag_s.as_dict(),
            "queue": {
                "waiting": sum(model["waiting"] for model in models),
                "active": sum(model["active"] for model in models),
            },
            "models": models,
            "clients": list(self._clients.snapshot()),
        }

    async def reload(self) -> Reloaded:
        return await self._configuration.reload()

    async def load(self, model: str) -> None:
        self._check_open()
        found = self._model(model)
        self._fleet.forgive(found)
        await self._fleet.acquire(found)
        self._fleet.release(found)

    async def unload(self, model: str) -> None:
        await self._fleet.unload(self._model(model))

    def permit(self, model: str, peer: Peer) -> None:
        self._clients.permit(peer, self._model(model).name)

    def permit_control(self, model: str | None, peer: Peer) -> None:
        name = None if model is None else self._model(model).name
        self._clients.permit_control(peer, name, keyed=bool(self.api_keys))

    def keep_alive(self, model: str, seconds: float | None) -> None:
        self._fleet.keep_alive(self._model(model), seconds)

    async def call(self, model: str, kind: str, options: Mapping[str, Any]) -> Mapping[str, Any]:
        self._check_open()
        found = self._model(model)
        handle = await self._fleet.acquire(found)
        try:
            return await handle.call(kind, options)
        finally:
            self._fleet.release(found)

    # -- the end -------------------------------------------------------------------------------

    def refuse_new(self) -> None:
        """From now on nothing begins; answers go on, and jobs do not."""
        self._closing = RequestError(
            "the service is stopping", status=503, code="shutting_down", retry_after_s=5.0
        )
        self._fleet.break_off("the service is stopping")

    @property
    def running(self) -> int:
        """Requests that have not ended."""
        return self._admission.running

    def cut(self) -> None:
        """End every answer with an error; their streams say so."""
        assert self._closing is not None
        self._fleet.fail_all(self._closing)

    async def close(self) -> None:
        """End the workers."""
        await self._tasks.cancel()
        assert self._closing is not None
        await self._fleet.close(error=self._closing)

    # ------------------------------------------------------------------------------------------

    async def _keep_going(self, run: Callable[[], Awaitable[None]]) -> None:
        """A bug in what runs all the time is logged, and costs a pause."""
        while True:
            try:
                await run()
            except Exception:
                self._log.exception("will be tried again in %.0f s", _RETRY_S)
            await asyncio.sleep(_RETRY_S)

    def _check_open(self) -> None:
        if self._closing is not None:
            raise self._closing

    @property
    def _config(self) -> Config:
        return self._configuration.config

    async def _apply(self, new: Config) -> None:
        self._clients.reconfigure(new.clients)
        await self._fleet.configure(new)

    def _model(self, name: str) -> Model:
        model = self._fleet.models.get(name)
        if model is None or model.removed:
            raise unknown_model(name)
        return model

    def _changed(self) -> None:
        models = self._fleet.models.values()
        if any(model.running or model.state is State.LOADING for model in models):
            self._vigil.nudge()
        line = status_line(models)
        if line != self._status_line:
            self._status_line = line
            self._on_status(line)
