"""Requests that are wrong, options that must not reload, configurations and the command line."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from tests.integration.running_service import PATIENCE_S, ROOT
from tests.integration.service import (
    CHAT,
    COMPLETION,
    Served,
    Service,
    chat,
    chat_ids,
    drafting,
    serving,
    spoken,
    text_of,
)
from tests.oracle import Toy

pytestmark = pytest.mark.integration

PLAIN = Toy()
NO_SYSTEM = (
    "{% if messages[0]['role'] == 'system' %}{{ raise_exception('System role not supported') }}"
    "{% endif %}{% for message in messages %}<|user|>{{ message['content'] }}{% endfor %}"
    "<|assistant|>"
)


@pytest.fixture(scope="module", name="running")
def running_service(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Service]:
    folder = tmp_path_factory.mktemp("toys")
    served = [
        Served("plain", PLAIN, ("d1", "ngram"), slots=2),
        Served("raising", PLAIN),
        Served("faulty", PLAIN),
        Served("mute", PLAIN),
    ]
    service = Service(folder, served, server='max_body = "64KiB"')
    _set_template(service.model_folder("raising"), NO_SYSTEM)
    _set_template(service.model_folder("faulty"), "{{ messages[0].nothing.at.all }}")
    _set_template(service.model_folder("mute"), None)
    try:
        service.start()
        yield service
    finally:
        service.close()


@pytest.fixture
def service(running: Service) -> Iterator[Service]:
    logged = len(running.log())
    yield running
    sys.stderr.write(running.log()[logged:])


def _set_template(folder: Path, template: str | None) -> None:
    file = folder / "tokenizer_config.json"
    config = json.loads(file.read_text())
    del config["chat_template"]
    file.write_text(
        json.dumps(config if template is None else config | {"chat_template": template})
    )


# -- requests ----------------------------------------------------------------------------------


def test_options_never_reload(service: Service) -> None:
    """K9: two clients that differ in everything a request can say."""
    options: list[dict[str, Any]] = [
        {"temperature": 1.0, "seed": 1, "max_tokens": 5, **drafting("plain", "d1", 2)},
        {"temperature": 0.2, "seed": 2, "max_tokens": 9, "stop": ["x"], "top_k": 4},
    ]
    pid = service.model("plain")["pid"]
    with ThreadPoolExecutor(2) as pool:
        bodies = [chat("plain", f"hello {i}") | options[i % 2] for i in range(12)]
        list(pool.map(lambda body: service.ask(CHAT, body), bodies))
    model = service.model("plain")
    assert model["loads"] == 1
    assert pid in (None, model["pid"])


def test_content_may_be_parts(service: Service) -> None:
    """K10."""
    whole = text_of(service.chat("plain", "one two", max_tokens=20))
    parts: list[dict[str, Any]] = [
        {"type": "text", "text": "one "},
        {"type": "text", "text": "two"},
    ]
    message = {"role": "user", "content": parts}
    assert text_of(service.chat("plain", [message], max_tokens=20)) == whole
    assert whole == spoken(PLAIN, chat_ids("one two"), 20)
    parts.append({"type": "image_url", "image_url": {"url": "data:,"}})
    response = service.post(CHAT, chat("plain", [message]))
    assert response.status_code == 400
    assert response.json()["error"]["param"] == "messages[0].content"
    assert "image_url" in response.json()["error"]["message"]


def test_a_template_that_raises_is_a_400(service: Service) -> None:
    """K12: in the template's own words; without a template, completions still work."""
    said = [{"role": "system", "content": "be kind"}, {"role": "user", "content": "hi"}]
    for stream in (False, True):
        response = service.post(CHAT, chat("raising", said, stream=stream))
        assert response.status_code == 400
        assert "System role not supported" in response.json()["error"]["message"]
    assert text_of(service.chat("raising", said[1:], max_tokens=5))
    response = service.post(CHAT, chat("faulty", "hi"))
    assert response.status_code == 400
    assert "chat template" in response.json()["error"]["message"]
    response = service.post(CHAT, chat("mute", "hi"))
    assert response.status_code == 400
    assert "no chat template" in response.json()["error"]["message"]
    assert text_of(service.complete("mute", "hi", max_tokens=5)) == spoken(PLAIN, [104, 105], 5)
    assert "Traceback" not in service.log()


GOOD = chat("plain", "hi")
BAD: list[tuple[Any, str | None]] = [
    (b"", None),
    (b"{", None),
    (b"not json", None),
    (b'"a string"', None),
    (b"[]", None),
    (b"\xff\xfe{}", None),
    (b'{"model": "plain", "messages": [{"role": "user", "content": "\\ud83d"}]}', None),
    (b'{"model": "plain", "temperature": NaN, "messages": []}', None),
    (b'{"model": "plain", "temperature": 1e999, "messages": [{"role":"user","content":"x"}]}',
     "temperature"),
    (b"[" * 50_000, None),
    ({}, "model"),
    ({"model": "plain"}, "messages"),
    ({"model": 3, "messages": GOOD["messages"]}, "model"),
    (GOOD | {"model": ""}, "model"),
    (GOOD | {"messages": []}, "messages"),
    (GOOD | {"messages": "hi"}, "messages"),
    (GOOD | {"messages": [{"role": "user"}]}, "messages[0].content"),
    (GOOD | {"messages": [{"role": "pope", "content": "hi"}]}, "messages[0].role"),
    (GOOD | {"messages": [{"role": "user", "content": 7}]}, "messages[0].content"),
    (GOOD | {"messages": [{"role": "user", "content": []}]}, "messages[0].content"),
    (GOOD | {"messages": [7]}, "messages[0]"),
    (GOOD | {"max_tokens": 0}, "max_tokens"),
    (GOOD | {"max_tokens": -1}, "max_tokens"),
    (GOOD | {"max_tokens": 1.5}, "max_tokens"),
    (GOOD | {"max_tokens": "many"}, "max_tokens"),
    (GOOD | {"max_tokens": True}, "max_tokens"),
    (GOOD | {"max_tokens": 10**30}, "max_tokens"),
    (GOOD | {"temperature": -0.1}, "temperature"),
    (GOOD | {"temperature": 2.1}, "temperature"),
    (GOOD | {"temperature": "hot"}, "temperature"),
    (GOOD | {"top_p": 0}, "top_p"),
    (GOOD | {"top_p": 1.1}, "top_p"),
    (GOOD | {"top_k": -1}, "top_k"),
    (GOOD | {"min_p": 2}, "min_p"),
    (GOOD | {"seed": -1}, "seed"),
    (GOOD | {"seed": 1.5}, "seed"),
    (GOOD | {"n": 0}, "n"),
    (GOOD | {"n": -1}, "n"),
    (GOOD | {"stop": ""}, "stop"),
    (GOOD | {"stop": ["x"] * 17}, "stop"),
    (GOOD | {"stop": [1]}, "stop"),
    (GOOD | {"presence_penalty": 3}, "presence_penalty"),
    (GOOD | {"repetition_penalty": 0}, "repetition_penalty"),
    (GOOD | {"logit_bias": {"x": 1}}, "logit_bias"),
    (GOOD | {"logit_bias": {"1": 101}}, "logit_bias"),
    (GOOD | {"logit_bias": {"999999": 1}}, "logit_bias"),
    (GOOD | {"stream": "yes"}, "stream"),
    (GOOD | {"stream_options": {"include_usage": True}}, "stream_options"),
    (GOOD | {"stream": True, "stream_options": {"x": 1}}, "stream_options.x"),
    (GOOD | {"homespec": {"speculation": "maybe"}}, "homespec.speculation"),
    (GOOD | {"homespec": {"drafter": "nobody"}}, "homespec.drafter"),
    (GOOD | {"homespec": {"max_draft_tokens": 0}}, "homespec.max_draft_tokens"),
    (GOOD | {"temprature": 1}, "temprature"),
]  # fmt: skip


@pytest.mark.parametrize("index", range(len(BAD)))
def test_a_bad_body_is_a_400_that_names_the_parameter(service: Service, index: int) -> None:
    """K15."""
    body, param = BAD[index]
    data = body if isinstance(body, bytes) else json.dumps(body).encode()
    response = service.http.post(CHAT, content=data)
    assert response.status_code == 400, response.text
    error = response.json()["error"]
    assert set(error) == {"message", "type", "param", "code"}
    assert error["param"] == param
    assert error["message"]
    assert service.http.get("/healthz").status_code == 200


def test_bad_prompts_and_sizes(service: Service) -> None:
    """K15: completions, an unknown model, a huge body; the service answers on."""
    for prompt in ([], [-1], ["a", "b"], [1.5], {}, 7, [10**6], [True]):
        response = service.post(COMPLETION, {"model": "plain", "prompt": prompt})
        assert response.status_code == 400, prompt
        assert response.json()["error"]["param"] == "prompt"
    response = service.post(CHAT, GOOD | {"model": "nobody"})
    assert (response.status_code, response.json()["error"]["param"]) == (404, "model")
    response = service.post(CHAT, chat("plain", "x" * 70_000))
    assert response.status_code == 413
    assert response.json()["error"]["message"]
    assert text_of(service.complete("plain", "hi", max_tokens=3)) == spoken(PLAIN, [104, 105], 3)
    assert "Traceback" not in service.log()


# -- configuration -----------------------------------------------------------------------------

_HOMESPECCTL = "import sys; from homespecd.cli.main import main; sys.exit(main())"


def ctl(service: Service, *arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", _HOMESPECCTL, "--socket", str(service.socket), *arguments],
        capture_output=True,
        text=True,
        check=False,
        timeout=PATIENCE_S,
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": str(ROOT), "NO_COLOR": "1"},
    )


def test_a_misspelt_key_is_named(tmp_path: Path) -> None:
    """L9: at a reload, by the check, and at the start."""
    with serving(tmp_path, [Served("m", PLAIN)]) as service:
        service.complete("m", "hi", max_tokens=2)
        text = service.config.read_text()
        service.config.write_text(text.replace("drafters =", 'draftrs = "x"\ndrafters ='))
        line = service.config.read_text().splitlines().index('draftrs = "x"') + 1
        response = service.post("/homespec/reload")
        assert response.status_code == 422
        [problem] = response.json()["problems"]
        assert (problem["line"], problem["key"]) == (line, "models.m.draftrs")
        words = (f"homespecd.toml:{line}", "models.m.draftrs", "drafters")
        snapshot = service.status()["config"]
        for said in (snapshot["last_error"], service.log()):
            assert all(word in said for word in words), said
        assert snapshot["generation"] == 1
        assert text_of(service.complete("m", "hi", max_tokens=2))
        assert service.model("m")["loads"] == 1
        for checked in (
            ctl(service, "check", str(service.config)),
            _homespecd("--check", str(service.config)),
            _homespecd("--config", str(service.config)),
        ):
            assert checked.returncode == 78
            output = checked.stdout + checked.stderr
            assert all(word in output for word in words), output
            assert "Traceback" not in output
        assert ctl(service, "status", "--json").returncode == 6  # something is wrong, and it runs
        service.config.write_text(text)
        assert ctl(service, "reload").returncode == 0
        assert service.status()["config"]["last_error"] is None


def _homespecd(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "homespecd.daemon", *arguments],
        capture_output=True,
        text=True,
        check=False,
        timeout=PATIENCE_S,
        cwd=ROOT,
    )


# -- the command line --------------------------------------------------------------------------


def test_the_command_line_and_a_running_service(tmp_path: Path) -> None:
    """M14: running, degraded, hung, gone: each with its own line and exit code."""
    served = [Served("m", PLAIN, ("d1",)), Served("broken", PLAIN)]
    with serving(tmp_path, served) as service:
        assert service.process is not None
        shown = ctl(service, "status", "--json")
        assert shown.returncode == 0
        assert {model["name"] for model in json.loads(shown.stdout)["models"]} == {"m", "broken"}
        assert "\x1b" not in ctl(service, "status", "--once").stdout
        loaded = ctl(service, "load", "m")
        assert (loaded.returncode, loaded.stderr) == (0, "")
        assert service.model("m")["state"] == "ready"
        asked = ctl(service, "ask", "m", "hello")
        assert asked.returncode == 0
        assert asked.stdout.strip()
        assert "m" in ctl(service, "models").stdout
        assert ctl(service, "unload", "m").returncode == 0
        assert service.model("m")["state"] == "unloaded"
        shutil.rmtree(service.model_folder("broken"))
        refused = ctl(service, "load", "broken")
        assert refused.returncode == 1
        assert "broken" in refused.stderr
        assert ctl(service, "status", "--once").returncode == 6
        unknown = ctl(service, "load", "nobody")
        assert unknown.returncode == 1
        assert "nobody" in unknown.stderr
        service.process.send_signal(signal.SIGSTOP)
        hung = ctl(service, "status")
        service.process.send_signal(signal.SIGCONT)
        assert hung.returncode == 5
        os.kill(service.process.pid, signal.SIGKILL)
        service.process.wait()
        assert service.socket.exists()
        stale = ctl(service, "status")
        service.socket.unlink()
        missing = ctl(service, "status")
        assert (stale.returncode, missing.returncode) == (3, 3)
        messages = [one.stderr for one in (refused, unknown, hung, stale, missing)]
        assert len(set(messages)) == len(messages)
        for message in messages:
            assert "Traceback" not in message
            assert message.startswith("homespecctl: ")
            assert message.count("\n") == 1
