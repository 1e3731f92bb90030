"""The clients that people use, over the socket, as docs/clients.md shows them."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from typing import Any

import httpx
import ollama
import openai
import pytest
from langchain_core.tools import tool
from langchain_openai import ChatOpenAI
from pydantic import BaseModel, SecretStr

from tests.integration.running_service import PATIENCE_S, wait_for
from tests.integration.service import Served, Service
from tests.integration.test_api_tools import TAGGED, TEMPLATE, WEATHER, speaking

pytestmark = pytest.mark.integration

HELLO = "Hello 😀 there"
BASE = "http://homespecd/v1"


@pytest.fixture(scope="module", name="service")
def _service(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Service]:
    service = Service(
        tmp_path_factory.mktemp("clients"),
        [
            Served("hello", speaking(HELLO), ("d1",), slots=2),
            Served("tools", speaking(TAGGED), ("d1",), slots=2),
        ],
    )
    template = service.model_folder("tools") / "chat_template.jinja"
    template.write_text(TEMPLATE.replace("HOW", "<tool_call></tool_call>"))
    try:
        service.start()
        yield service
    finally:
        service.close()
        sys.stderr.write(service.log())


class Weather(BaseModel):
    city: str
    warm: bool


# -- openai ------------------------------------------------------------------------------------


@pytest.fixture(name="client")
def _client(service: Service) -> Iterator[openai.OpenAI]:
    transport = httpx.HTTPTransport(uds=str(service.socket))
    with openai.OpenAI(
        base_url=BASE, api_key="unused", http_client=httpx.Client(transport=transport)
    ) as client:
        yield client


def ask(client: openai.OpenAI, model: str, **more: Any) -> Any:
    return client.chat.completions.create(
        model=model, messages=[{"role": "user", "content": "hi"}], temperature=0, **more
    )


def test_openai(client: openai.OpenAI) -> None:
    answer = ask(client, "hello", logprobs=True, top_logprobs=2, n=2)
    assert [choice.message.content for choice in answer.choices] == [HELLO, HELLO]
    assert answer.choices[1].logprobs.content[0].top_logprobs[0].token == "H"
    assert answer.usage.prompt_tokens_details.cached_tokens >= 0
    assert answer.homespec["reason"]
    assert {model.id for model in client.models.list()} == {"hello", "tools"}
    said = client.completions.create(model="hello", prompt="x", max_tokens=3, temperature=0)
    assert said.usage is not None
    assert said.usage.completion_tokens == 3


def test_openai_streams(client: openai.OpenAI) -> None:
    text, usage = "", None
    for chunk in ask(client, "hello", stream=True, stream_options={"include_usage": True}):
        text += (chunk.choices[0].delta.content or "") if chunk.choices else ""
        usage = chunk.usage or usage
    assert text == HELLO
    assert usage is not None
    assert usage.completion_tokens > 0


def test_openai_tools(client: openai.OpenAI) -> None:
    messages: list[Any] = [{"role": "user", "content": "weather?"}]
    answer = client.chat.completions.create(
        model="tools", messages=messages, tools=[WEATHER], temperature=0
    )
    message = answer.choices[0].message
    assert answer.choices[0].finish_reason == "tool_calls"
    assert message.tool_calls is not None
    [call] = message.tool_calls
    assert json.loads(call.function.arguments) == {"city": "Rome"}
    messages += [message, {"role": "tool", "tool_call_id": call.id, "content": "sun"}]
    client.chat.completions.create(model="tools", messages=messages, tools=[WEATHER])
    with client.chat.completions.stream(
        model="tools", messages=messages[:1], tools=[WEATHER], temperature=0
    ) as stream:
        final = stream.get_final_completion()
    assert final.choices[0].message.tool_calls[0].function.name == "get_weather"


def test_openai_structured_output(client: openai.OpenAI) -> None:
    answer = client.chat.completions.parse(
        model="hello",
        messages=[{"role": "user", "content": "hi"}],
        response_format=Weather,
        seed=1,
        logit_bias={str(ord('"')): 100},
    )
    assert isinstance(answer.choices[0].message.parsed, Weather)


def test_openai_errors_have_their_types(client: openai.OpenAI) -> None:
    with pytest.raises(openai.NotFoundError) as missing:
        ask(client, "absent")
    assert missing.value.code == "model_not_found"
    with pytest.raises(openai.BadRequestError) as bad:
        ask(client, "hello", max_tokens=0)
    assert bad.value.param == "max_tokens"


async def test_openai_async(service: Service) -> None:
    transport = httpx.AsyncHTTPTransport(uds=str(service.socket))
    async with openai.AsyncOpenAI(
        base_url=BASE, api_key="unused", http_client=httpx.AsyncClient(transport=transport)
    ) as client:
        messages: list[Any] = [{"role": "user", "content": "hi"}]
        answer = await client.chat.completions.create(
            model="hello", messages=messages, temperature=0
        )
        assert answer.choices[0].message.content == HELLO
        text = ""
        async for chunk in await client.chat.completions.create(
            model="hello", messages=messages, temperature=0, stream=True
        ):
            text += chunk.choices[0].delta.content or ""
        assert text == HELLO


# -- ollama ------------------------------------------------------------------------------------


@pytest.fixture(name="olla")
def _olla(service: Service) -> Iterator[ollama.Client]:
    client = ollama.Client(
        host="http://homespecd", transport=httpx.HTTPTransport(uds=str(service.socket))
    )
    yield client
    client._client.close()


COLD = {"temperature": 0}


def test_ollama_chat_and_generate(olla: ollama.Client) -> None:
    said = [{"role": "user", "content": "hi"}]
    answer = olla.chat(model="hello:latest", messages=said, options={**COLD, "num_ctx": 8192})
    assert answer.message.content == HELLO
    assert answer.done_reason == "stop"
    assert answer.eval_count
    parts = [part.message.content for part in olla.chat("hello", said, stream=True, options=COLD)]
    assert "".join(part or "" for part in parts) == HELLO
    assert olla.generate("hello", "hi", options=COLD).response == HELLO
    streamed = olla.generate("hello", "hi", stream=True, options=COLD)
    assert "".join(part.response for part in streamed) == HELLO


def test_ollama_tools_and_formats(olla: ollama.Client) -> None:
    said = [{"role": "user", "content": "weather?"}]
    answer = olla.chat("tools", said, tools=[WEATHER], options=COLD)
    assert answer.message.tool_calls is not None
    [call] = answer.message.tool_calls
    assert (call.function.name, dict(call.function.arguments)) == ("get_weather", {"city": "Rome"})
    said += [answer.message, {"role": "tool", "tool_name": "get_weather", "content": "sun"}]
    olla.chat("tools", said, tools=[WEATHER], options=COLD)
    schema = {"type": "object", "properties": {"a": {"type": "boolean"}}, "required": ["a"],
              "additionalProperties": False}  # fmt: skip
    shaped = olla.chat("hello", said[:1], format=schema, options=COLD)
    assert set(json.loads(shaped.message.content or "")) == {"a"}


def test_ollama_models(olla: ollama.Client, service: Service) -> None:
    assert {model.model for model in olla.list().models} == {"hello", "tools"}
    olla.generate("tools", "")
    [running] = [model for model in olla.ps().models if model.model == "tools"]
    assert None not in vars(running).values()
    assert running.expires_at is not None
    left = running.expires_at - datetime.now(UTC)
    assert timedelta(minutes=14) < left <= timedelta(minutes=15)
    olla.generate("tools", "", keep_alive=-1)
    [running] = [model for model in olla.ps().models if model.model == "tools"]
    assert running.expires_at is not None
    assert running.expires_at - datetime.now(UTC) > timedelta(days=365)
    shown = olla.show("tools")
    assert shown.modified_at is not None
    assert shown.details is not None
    assert olla.show("tools").capabilities == ["completion", "tools"]
    assert olla.show("hello").capabilities == ["completion"]
    assert service.http.get("/api/version").json()["version"]


def test_ollama_errors(olla: ollama.Client, service: Service) -> None:
    with pytest.raises(ollama.ResponseError, match="no model 'absent'") as missing:
        olla.chat("absent", [{"role": "user", "content": "hi"}])
    assert missing.value.status_code == 404
    with pytest.raises(ollama.ResponseError, match="num_predict"):
        olla.generate("hello", "hi", options={"num_predict": -5})
    assert service.post("/api/pull", {"model": "x"}).status_code == 501
    assert isinstance(service.http.get("/api/nothing").json()["error"], str)


def test_keep_alive_says_how_long_a_model_stays(olla: ollama.Client, service: Service) -> None:
    said = [{"role": "user", "content": "hi"}]
    olla.chat("hello", said, options=COLD, keep_alive=0)
    wait_for(lambda: service.model("hello")["state"] == "unloaded", what=service.log)
    olla.chat("hello", said, options=COLD, keep_alive="10m")
    assert service.model("hello")["state"] == "ready"
    olla.generate("hello", "", keep_alive=0)
    assert service.model("hello")["state"] == "unloaded"


# -- others ------------------------------------------------------------------------------------


def curl(service: Service, *arguments: str) -> str:
    done = subprocess.run(
        ["curl", "--silent", "--show-error", "--unix-socket", str(service.socket), *arguments],
        capture_output=True,
        text=True,
        check=True,
        timeout=PATIENCE_S,
    )
    return done.stdout


def test_curl(service: Service) -> None:
    body = {"model": "hello", "messages": [{"role": "user", "content": "hi"}], "temperature": 0}
    kind = ["-H", "Content-Type: application/json", "http://localhost/v1/chat/completions", "-d"]
    answer = json.loads(curl(service, *kind, json.dumps(body)))
    assert answer["choices"][0]["message"]["content"] == HELLO
    streamed = curl(service, "--no-buffer", *kind, json.dumps({**body, "stream": True}))
    assert streamed.rstrip().endswith("data: [DONE]")
    assert json.loads(curl(service, "http://localhost/healthz")) == {"status": "ok"}


@pytest.fixture(name="langchain")
def _langchain(service: Service) -> Iterator[Callable[[str], ChatOpenAI]]:
    with httpx.Client(transport=httpx.HTTPTransport(uds=str(service.socket))) as client:
        yield lambda model: ChatOpenAI(
            model=model,
            base_url=BASE,
            api_key=SecretStr("unused"),
            temperature=0,
            http_client=client,
        )


def test_langchain(langchain: Callable[[str], ChatOpenAI]) -> None:
    model = langchain("hello")
    answer = model.invoke("hi")
    assert answer.content == HELLO
    assert "".join(str(chunk.content) for chunk in model.stream("hi")) == HELLO


def test_langchain_tools_and_structured_output(langchain: Callable[[str], ChatOpenAI]) -> None:
    @tool
    def get_weather(city: str) -> str:
        """What the sky does."""
        return city

    answer = langchain("tools").bind_tools([get_weather]).invoke("weather?")
    [call] = answer.tool_calls
    assert (call["name"], call["args"]) == ("get_weather", {"city": "Rome"})
    shaped = langchain("hello").with_structured_output(Weather, method="json_schema")
    assert isinstance(shaped.invoke("hi", max_tokens=2000), Weather)
    called = langchain("tools").with_structured_output(Weather, method="function_calling")
    assert isinstance(called.invoke("hi", max_tokens=2000), Weather)
