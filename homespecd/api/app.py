"""The routes: from HTTP to `Service` and back. Nothing is decided here."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable

from aiohttp import web

from homespecd.api import answers, metrics, openapi, tokens
from homespecd.api.connections import Connections
from homespecd.api.content_encoding import Decoder, too_large
from homespecd.api.errors import (
    as_request_error,
    config_error_response,
    error_response,
    json_response,
)
from homespecd.api.gate import check_tcp
from homespecd.api.jobs import BenchRequest, VerifyRequest, parse_job
from homespecd.api.ollama_routes import OllamaRoutes
from homespecd.api.openai import Asked, parse_chat, parse_completion
from homespecd.api.responses import Chunks, Kind, Shape, model_list, model_object
from homespecd.api.service import Service
from homespecd.errors import ConfigError, HomespecError, RequestError

# A body that has not come in by then never will: the peer stopped in the middle of it.
_BODY_TIMEOUT_S = 30.0

Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


def create_app(service: Service, connections: Connections) -> web.Application:
    """The HTTP application. Sizes of bodies are checked here, against the configuration in use."""
    routes = Routes(service, connections)
    app = web.Application(middlewares=[routes.guard], client_max_size=0)
    app.on_response_prepare.append(_in_our_shape)
    app.add_routes(
        [
            web.post("/v1/chat/completions", routes.chat),
            web.post("/v1/completions", routes.completion),
            web.post("/tokenize", routes.tokenize),
            web.post("/detokenize", routes.detokenize),
            web.post("/v1/embeddings", routes.not_served),
            web.get("/v1/models", routes.models),
            web.get("/v1/models/{name}", routes.model),
            web.get("/healthz", routes.healthz),
            web.get("/readyz", routes.readyz),
            web.get("/metrics", routes.metrics),
            web.get("/homespec/status", routes.status),
            web.post("/homespec/reload", routes.reload),
            web.post("/homespec/models/{name}/load", routes.load),
            web.post("/homespec/models/{name}/unload", routes.unload),
            web.post("/homespec/models/{name}/bench", routes.bench),
            web.post("/homespec/models/{name}/verify", routes.verify),
            web.get("/openapi.json", routes.description),
            *OllamaRoutes(service, connections, routes.body).table(),
        ]
    )
    return app


class Routes:
    """One method per route, and what surrounds them all."""

    def __init__(self, service: Service, connections: Connections) -> None:
        self._service = service
        self._connections = connections

    @web.middleware
    async def guard(self, request: web.Request, handler: Handler) -> web.StreamResponse:
        """Keys for TCP peers, and every error as a body that OpenAI's clients understand."""
        with self._connections.answering(request):
            try:
                if self._connections.is_tcp(request):
                    check_tcp(request, self._service.api_keys)
                return await handler(request)
            except ConfigError as error:
                return config_error_response(error)
            except HomespecError as error:
                return refusal(request, as_request_error(error))
            except web.HTTPException as error:
                return _http_error(request, error)
            except ConnectionResetError:
                raise
            except Exception:
                logging.getLogger(__name__).exception(
                    "%s %s failed", request.method, request.match_info.route.name or request.path
                )
                return refusal(request, RequestError("the service failed on this", status=500))

    async def chat(self, request: web.Request) -> web.StreamResponse:
        return await self._answer(request, "chat", parse_chat(await self.body(request)))

    async def completion(self, request: web.Request) -> web.StreamResponse:
        asked = parse_completion(await self.body(request))
        return await self._answer(request, "completion", asked)

    async def _answer(self, request: web.Request, kind: Kind, asked: Asked) -> web.StreamResponse:
        peer = self._connections.peer(request)
        answer = await self._service.generate(asked.model, asked.generation, peer)
        try:
            shape = Shape.new(
                kind,
                model=asked.model,
                include_usage=asked.include_usage,
                choices=asked.generation.choices,
                request_id=answer.id,
            )
            if asked.stream:
                return await answers.stream(request, answer, Chunks(shape))
            return await answers.whole(answer, shape)
        finally:
            answer.close()

    async def tokenize(self, request: web.Request) -> web.Response:
        name, options = tokens.parse_tokenize(await self.body(request))
        self._service.permit(name, self._connections.peer(request))
        return json_response(await self._service.call(name, "tokenize", options))

    async def detokenize(self, request: web.Request) -> web.Response:
        name, options = tokens.parse_detokenize(await self.body(request))
        self._service.permit(name, self._connections.peer(request))
        return json_response(await self._service.call(name, "detokenize", options))

    async def not_served(self, request: web.Request) -> web.Response:
        raise RequestError(
            f"{request.path} is not served: these models write text",
            status=501,
            code="not_served",
        )

    async def models(self, _: web.Request) -> web.Response:
        return json_response(model_list(self._service.models()))

    async def model(self, request: web.Request) -> web.Response:
        name = request.match_info["name"]
        for card in self._service.models():
            if card.name == name:
                return json_response(model_object(card))
        raise unknown_model(name)

    async def healthz(self, _: web.Request) -> web.Response:
        return json_response({"status": "ok"})

    async def readyz(self, _: web.Request) -> web.Response:
        missing = self._service.not_ready()
        if missing:
            return json_response({"status": "not ready", "models": list(missing)}, status=503)
        return json_response({"status": "ready"})

    async def metrics(self, _: web.Request) -> web.Response:
        page = metrics.render(await self._service.status())
        return web.Response(body=page, headers={"Content-Type": metrics.CONTENT_TYPE})

    async def description(self, _: web.Request) -> web.Response:
        return web.Response(body=openapi.document(), content_type="application/json")

    async def status(self, _: web.Request) -> web.Response:
        return json_response(await self._service.status())

    async def reload(self, request: web.Request) -> web.Response:
        self._service.permit_control(None, self._connections.peer(request))
        done = await self._service.reload()
        return json_response({"changes": list(done.changes), "warnings": list(done.warnings)})

    async def load(self, request: web.Request) -> web.Response:
        name = self._controlled(request)
        await self._service.load(name)
        return json_response({"model": name, "state": "ready"})

    async def unload(self, request: web.Request) -> web.Response:
        name = self._controlled(request)
        await self._service.unload(name)
        return json_response({"model": name, "state": "unloaded"})

    async def bench(self, request: web.Request) -> web.Response:
        return await self._job(request, "bench", BenchRequest)

    async def verify(self, request: web.Request) -> web.Response:
        return await self._job(request, "verify", VerifyRequest)

    async def _job(
        self, request: web.Request, kind: str, schema: type[BenchRequest | VerifyRequest]
    ) -> web.Response:
        name = self._controlled(request)
        options = parse_job(schema, await self.body(request))
        return json_response(await self._service.call(name, kind, options))

    def _controlled(self, request: web.Request) -> str:
        """The model that a peer wants to load, measure and so on, and may."""
        name = request.match_info["name"]
        self._service.permit_control(name, self._connections.peer(request))
        return name

    async def body(self, request: web.Request) -> bytes:
        """The request's body, unpacked.

        Raises:
            RequestError: it is too large, does not come in, or is not what its headers say.
        """
        limit = self._service.max_body_bytes
        if (request.content_length or 0) > limit:
            raise too_large(limit)
        decoder = Decoder(request.headers.get("Content-Encoding", ""), limit=limit)
        try:
            async with asyncio.timeout(_BODY_TIMEOUT_S):
                while chunk := await request.content.readany():
                    decoder.feed(chunk)
        except TimeoutError:
            raise RequestError("the body did not come in", status=408) from None
        except web.RequestPayloadError:
            raise RequestError(
                "the body cannot be read: it is not sent as its headers say"
            ) from None
        return decoder.whole()


def refusal(request: web.Request, error: RequestError) -> web.Response:
    """An error in the shape that the clients of the path read."""
    return error_response(error, ollama=request.path.startswith("/api/"))


def unknown_model(name: str) -> RequestError:
    return RequestError(
        f"there is no model {name!r}",
        status=404,
        code="model_not_found",
        param="model",
        hint="GET /v1/models lists them",
    )


def _http_error(request: web.Request, error: web.HTTPException) -> web.Response:
    """What the router says, in the shape of all other errors."""
    if error.status == 404:
        message = f"there is no {request.path}"
    elif error.status == 405:
        message = f"{request.path} does not take {request.method}"
    elif error.status == 417:
        message = "of what a request may expect, only 100-continue is known here"
    else:
        message = error.reason
    response = refusal(request, RequestError(message, status=error.status))
    if "Allow" in error.headers:
        response.headers["Allow"] = error.headers["Allow"]
    return response


async def _in_our_shape(request: web.Request, response: web.StreamResponse) -> None:
    """Errors that aiohttp raises before the guard is asked: expectations that it does not know."""
    if isinstance(response, web.HTTPException):
        body = _http_error(request, response).body
        assert isinstance(body, bytes)
        response.body = body
        response.content_type, response.charset = "application/json", None
        response.headers["Content-Length"] = str(len(body))
