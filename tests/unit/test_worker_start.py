"""A worker that cannot even be started: an error with a reason, and nothing left behind."""

from __future__ import annotations

import asyncio
import errno
import os
import socket
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psutil
import pytest

from homespecd.daemon.worker_handle import Owner, WorkerHandle
from homespecd.errors import ModelError
from homespecd.worker.messages import WorkerSettings
from tests import fake_worker


def none_left(*_: Any, **__: Any) -> Any:
    raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))


def start(folder: Path, *, told: Callable[[WorkerHandle], None] = lambda _: None) -> Any:
    return WorkerHandle.start(
        WorkerSettings("toy", str(folder)),
        command=(sys.executable, fake_worker.__file__, str(folder)),
        owner=Owner(loading=lambda _: None, exited=lambda _: None, started=told),
    )


@pytest.mark.parametrize("what", ["pair", "process", "owner", "transport"])
async def test_without_descriptors_it_is_the_models_failure(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, what: str
) -> None:
    loop = asyncio.get_running_loop()
    before, children = psutil.Process().num_fds(), psutil.Process().children()
    if what == "pair":
        monkeypatch.setattr(socket, "socketpair", none_left)
    elif what == "process":
        monkeypatch.setattr(asyncio, "create_subprocess_exec", none_left)
    elif what == "transport":
        monkeypatch.setattr(loop, "create_unix_connection", none_left)
    told = none_left if what == "owner" else lambda _: None
    with pytest.raises(ModelError, match="cannot start a worker: Too many open files"):
        async with asyncio.timeout(60):  # it once waited for ever
            await start(tmp_path, told=told)
    assert psutil.Process().num_fds() <= before
    assert psutil.Process().children() == children
