"""The real model, for tests: imported once and kept, opened, prompted, served and asked.

The imports lie under `.cache/models` of the checkout, in folders named after the digest of the file
and of the code that imports, so that a change in either makes new ones.
"""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
import shutil
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from importlib.metadata import version
from pathlib import Path
from typing import Any

from homespecd.bundle.chat import ChatTemplate
from homespecd.bundle.chat_encoding import encode_chat
from homespecd.bundle.tokenizer import Tokenizer
from homespecd.cli.client import Client
from homespecd.cli.service import private_folder, running
from homespecd.runtime.importing import import_model
from homespecd.runtime.installed import installed_builds
from homespecd.runtime.open import open_model
from homespecd.runtime.providers import ProviderRequest
from homespecd.runtime.step import Model
from tests.conftest import ROOT

CACHE = ROOT / ".cache" / "models"
IMPORTING_ROOMS = ("bundle", "runtime")
# Imports of older code, which another run may still be using, go after a day.
KEPT_S = 24 * 3600.0
CONTEXT = 1024
# An answer of a service that may have to load the model first.
TIMEOUT_S = 300.0

Messages = Sequence[Mapping[str, Any]]


def imported(source: Path, precision: str) -> Path:
    """`source` imported at `precision`, from the cache if it is there.

    Of two test runs at once one imports and the other waits.
    """
    key = _key(source)
    folder = CACHE / key / f"smollm2-{precision}"
    with _locked(CACHE / f"{key}.lock"):
        if not folder.is_dir():
            _forget_old()
            import_model(source, name=folder.name, into=folder.parent, precision=precision)
        os.utime(folder.parent)
    return folder


@contextmanager
def opened(
    folder: Path, *, lanes: int, provider: str = "auto", threads: int = 0
) -> Iterator[Model]:
    """An import as a model, for as long as the block runs."""
    model = open_model(
        folder,
        provider=ProviderRequest(provider),
        threads=threads,
        context=CONTEXT,
        lanes=lanes,
    )
    try:
        yield model
    finally:
        model.close()


def prompt_ids(folder: Path, chats: Sequence[Messages]) -> list[list[int]]:
    """What the model reads of each of these conversations."""
    tokenizer = Tokenizer.load(folder)
    template = ChatTemplate.load(folder, tokenizer)
    return [encode_chat(tokenizer, template, list(chat)) for chat in chats]


@contextmanager
def served(models: str, folders: Mapping[str, Path], *, cap: str) -> Iterator[Client]:
    """A private service for as long as the block runs.

    Args:
        models: the sections of its configuration that name models and drafters, with words for
            folders: `path = INT4`.
        folders: word → folder.
        cap: of its memory.
    """
    config = (
        '[server]\nsocket = "{socket}"\nsocket_group = ""\n'
        '[paths]\nmodels = "/"\nstate = "{state}"\n'
        f'[memory]\ncap = "{cap}"\nreserve = "0B"\n{models}'
    )
    for word, folder in folders.items():
        config = config.replace(f"path = {word}\n", f"path = {json.dumps(str(folder))}\n")
    with private_folder() as private, running(config, private) as service:
        yield service.client


def ask(
    client: Client, model: str, messages: Messages, tokens: int, **options: Any
) -> dict[str, Any]:
    """The service's greedy answer, whole."""
    body = {"model": model, "messages": messages, "max_tokens": tokens, "temperature": 0}
    reply: dict[str, Any] = client.post("/v1/chat/completions", body | options, timeout_s=TIMEOUT_S)
    return reply


def said(reply: Mapping[str, Any]) -> str:
    """The text of an answer."""
    text: str = reply["choices"][0]["message"]["content"]
    return text


def _forget_old() -> None:
    for old in CACHE.iterdir():
        if old.is_dir() and time.time() - old.stat().st_mtime > KEPT_S:
            shutil.rmtree(old, ignore_errors=True)


def _key(source: Path) -> str:
    """Digest of the file and of all that has a part in importing it."""
    digest = hashlib.sha256()
    builds = [f"{one.package} {one.version}" for one in installed_builds()]
    digest.update(" ".join([*builds, version("onnx")]).encode())
    with source.open("rb") as stream:
        digest.update(hashlib.file_digest(stream, "sha256").digest())
    for room in IMPORTING_ROOMS:
        for module in sorted((ROOT / "homespecd" / room).rglob("*.py")):
            digest.update(module.read_bytes())
    return digest.hexdigest()[:16]


@contextmanager
def _locked(path: Path) -> Iterator[None]:
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield
