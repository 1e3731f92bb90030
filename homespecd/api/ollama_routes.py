"""Ollama's routes. Nothing is decided here."""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable
from typing import Literal

from aiohttp import web

from homespecd import __version__
from homespecd.api import answers, ollama, ollama_models
from homespecd.api.connections import Connections
from homespecd.api.errors import json_response
from homespecd.api.gathering import gather
from homespecd.api.ollama_answers import Lines, OllamaShape
from homespecd.api.service import Service
from homespecd.errors import RequestError

# What clients compare with the versions in which Ollama learned to do things.
SPOKEN_VERSION = "0.12.0"

# Models come and go with the configuration, and answers are text.
NOT_SERVED = ("pull", "push", "create", "copy", "embed", "embeddings")


class OllamaRoutes:
    """One method per route.

    Args:
        read_body: the body of a request, within the limits of all routes.
    """

    def __init__(
        self,
        service: Service,
        connections: Connections,
        read_body: Callable[[web.Request], Awaitable[bytes]],
    ) -> None:
        self._service = service
        self._connections = connections
        self._body = read_body

    def table(self) -> list[web.RouteDef]:
        return [
            web.post("/api/chat", self.chat),
            web.post("/api/generate", self.generate),
            web.get("/api/tags", self.tags),
            web.get("/api/ps", self.running),
            web.post("/api/show", self.show),
            web.get("/api/version", self.version),
            *(web.post(f"/api/{name}", self.not_served) for name in NOT_SERVED),
            web.delete("/api/delete", self.not_served),
        ]

    async def chat(self, request: web.Request) -> web.StreamResponse:
        return await self._answer(request, "chat", ollama.parse_chat(await self._body(request)))

    async def generate(self, request: web.Request) -> web.StreamResponse:
        asked = ollama.parse_generate(await self._body(request))
        return await self._answer(request, "generate", asked)

    async def tags(self, _: web.Request) -> web.Response:
        snapshot = await self._service.status()
        return json_response(ollama_models.tags(self._service.models(), snapshot))

    async def running(self, _: web.Request) -> web.Response:
        snapshot = await self._service.status()
        return json_response(ollama_models.running(snapshot, now_s=time.time()))

    async def show(self, request: web.Request) -> web.Response:
        name = self._name(ollama.parse_show(await self._body(request)))
        cards = {card.name: card for card in self._service.models()}
        if name not in cards:
            raise RequestError(f"model {name!r} not found", status=404, code="model_not_found")
        return json_response(ollama_models.shown(cards[name], await self._service.status()))

    async def version(self, _: web.Request) -> web.Response:
        return json_response({"version": SPOKEN_VERSION, "homespecd": __version__})

    async def not_served(self, request: web.Request) -> web.Response:
        raise RequestError(f"{request.path} is not served here", status=501, code="not_served")

    async def _answer(
        self,
        request: web.Request,
        kind: Literal["chat", "generate"],
        asked: ollama.OllamaAsked,
    ) -> web.StreamResponse:
        name, shape = self._name(asked.model), OllamaShape(kind, asked.model)
        peer = self._connections.peer(request)
        self._service.permit(name, peer)
        if asked.generation is None:
            return await self._come_or_go(name, asked, shape)
        answer = await self._service.generate(name, asked.generation, peer)
        try:
            self._service.keep_alive(name, asked.keep_alive_s)
            if asked.stream:
                return await answers.stream(request, answer, Lines(shape))
            deltas, done = await answers.collected(answer)
            [gathered] = gather(deltas, 1)
            return json_response(shape.whole(gathered, done))
        finally:
            answer.close()

    async def _come_or_go(
        self, name: str, asked: ollama.OllamaAsked, shape: OllamaShape
    ) -> web.Response:
        """A request without anything to say loads the model, or (keep_alive 0) lets it go."""
        if asked.keep_alive_s == 0:
            await self._service.unload(name)
            return json_response(shape.nothing("unload"))
        await self._service.load(name)
        self._service.keep_alive(name, asked.keep_alive_s)
        return json_response(shape.nothing("load"))

    def _name(self, asked: str) -> str:
        return ollama_models.resolved(asked, [card.name for card in self._service.models()])
