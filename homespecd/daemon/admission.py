"""A request's way in: checked, counted, let in by its model; and counted out when it ends."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import replace

from homespecd.api.service import Peer
from homespecd.daemon.answers import RunningAnswer, log_request
from homespecd.daemon.clients import Clients
from homespecd.daemon.fleet import Fleet
from homespecd.daemon.models import Model
from homespecd.errors import RequestError
from homespecd.worker.messages import GenerationRequest


class Admission:
    """Begins requests and knows how many there are.

    Args:
        max_queue: how many may wait for each model; asked each time.
    """

    def __init__(self, fleet: Fleet, clients: Clients, *, max_queue: Callable[[], int]) -> None:
        self._fleet = fleet
        self._clients = clients
        self._max_queue = max_queue
        self._in_flight: Counter[str] = Counter()

    @property
    def running(self) -> int:
        """Requests that have not ended, those that wait too."""
        return sum(self._in_flight.values())

    def in_flight(self, model: Model) -> int:
        """Of these, those of one model."""
        return self._in_flight[model.name]

    async def begin(self, model: Model, request: GenerationRequest, peer: Peer) -> RunningAnswer:
        """Wait until the model takes the request.

        Raises:
            RequestError: it has no such drafter (400), its queue is full or it cannot be had (503),
                or the peer may not (403, 429).
        """
        try:
            return await self._begin(model, request, peer)
        except BaseException as error:
            _note_refusal(model, peer, error)
            raise

    async def _begin(self, model: Model, request: GenerationRequest, peer: Peer) -> RunningAnswer:
        _check_drafter(model, request)
        _check_queue(model, in_flight=self._in_flight[model.name], max_queue=self._max_queue())
        client = self._clients.admit(peer, model.name)
        self._in_flight[model.name] += 1
        let_in = False

        def ended() -> None:
            client.active -= 1
            self._in_flight[model.name] -= 1
            if let_in:
                self._fleet.release(model)

        try:
            handle = await self._fleet.acquire(model)
            let_in = True
            stream = handle.generate(replace(request, peer=peer.uid))
        except BaseException:
            ended()
            raise
        return RunningAnswer(
            stream,
            model=model,
            client=client,
            spend=lambda tokens: self._clients.spend(client, tokens),
            on_end=ended,
        )


def _check_drafter(model: Model, request: GenerationRequest) -> None:
    known = model.config.drafters
    if request.drafter is not None and request.drafter not in known:
        raise RequestError(
            f"model {model.name!r} has no drafter {request.drafter!r} "
            f"(it has: {', '.join(known) or 'none'})",
            param="homespec.drafter",
        )


def _check_queue(model: Model, *, in_flight: int, max_queue: int) -> None:
    """Waiting = past the slots; who waits for a load counts too."""
    slots = model.config.slots
    if in_flight >= slots + max_queue:
        raise RequestError(
            f"model {model.name!r} answers {slots} requests and {max_queue} wait, "
            "as many as server.max_queue allows",
            status=503,
            code="queue_full",
            retry_after_s=2.0,
        )


def _note_refusal(model: Model, peer: Peer, error: BaseException) -> None:
    """The log's line for a request that never ran."""
    model.totals.requests += 1
    end = "cancelled"
    if isinstance(error, RequestError):
        model.totals.failures += error.status >= 500
        end = error.code or f"error_{error.status}"
    log_request(peer, model=model.name, tokens=0, end=end)
