"""The service's HTTP over its Unix socket, for commands that wait for one thing at a time."""

from __future__ import annotations

import errno
import http.client
import json
import os
import socket
from collections.abc import Generator, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import quote

from homespecd.cli.exits import FAILED, NO_ANSWER, NOT_ALLOWED, NOT_RUNNING, CommandError

SYSTEM_SOCKET = Path("/run/homespecd/homespecd.sock")
# The supervisor answers while models compute, so a second of silence is already odd.
CONTROL_TIMEOUT_S = 2.0
# Loading a large model from a slow disk, or waiting behind other requests.
ANSWER_TIMEOUT_S = 900.0
# A self-test or a benchmark of a large model.
JOB_TIMEOUT_S = 6 * 3600.0


def default_socket(environment: Mapping[str, str]) -> Path:
    """`$HOMESPECD_SOCKET`, else the user's own service if there is one, else the system's."""
    named = environment.get("HOMESPECD_SOCKET")
    if named:
        return Path(named)
    runtime = environment.get("XDG_RUNTIME_DIR")
    if runtime:
        own = Path(runtime) / "homespecd" / "homespecd.sock"
        if own.exists():
            return own
    return SYSTEM_SOCKET


@dataclass(frozen=True)
class Reply:
    """A whole answer. `body` is the decoded JSON."""

    status: int
    body: Any


class _UnixConnection(http.client.HTTPConnection):
    def __init__(self, path: Path, timeout_s: float) -> None:
        super().__init__("localhost", timeout=timeout_s)
        self._path = path
        self._connect_timeout_s = min(timeout_s, CONTROL_TIMEOUT_S)

    def connect(self) -> None:
        self.sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self.sock.settimeout(self._connect_timeout_s)
        self.sock.connect(os.fspath(self._path))
        self.sock.settimeout(self.timeout)


class Client:
    """Calls on one socket; each opens its own connection.

    All methods raise `CommandError` with a sentence and an exit code of their own for: no socket,
    nobody behind it, no permission, no answer in time.
    """

    def __init__(self, path: Path) -> None:
        self.path = path

    def get(self, route: str, *, timeout_s: float = CONTROL_TIMEOUT_S) -> Any:
        """The JSON behind `route`. Raises CommandError for an error status too."""
        return self.expect_success(self.call("GET", route, timeout_s=timeout_s))

    def post(self, route: str, body: Any = None, *, timeout_s: float) -> Any:
        """The JSON that `route` answers. Raises CommandError for an error status too."""
        return self.expect_success(self.call("POST", route, body, timeout_s=timeout_s))

    def call(self, method: str, route: str, body: Any = None, *, timeout_s: float) -> Reply:
        """One request and its answer, whatever its status."""
        self._probe(timeout_s)
        with self._response(method, route, body, timeout_s) as response:
            return Reply(response.status, _json(response.read(), self.path))

    def stream(self, route: str, body: Any, *, timeout_s: float) -> Generator[Any, None, None]:
        """The events of a server-sent stream as they arrive, `[DONE]` left out.

        Closing the iterator closes the connection, which makes the service stop generating.

        Raises:
            CommandError: an error status, an `error` event, or a stream that ends early.
        """
        self._probe(timeout_s)
        with self._response("POST", route, body, timeout_s) as response:
            if response.status != 200:
                self.expect_success(Reply(response.status, _json(response.read(), self.path)))
            for line in response:
                if not line.startswith(b"data:"):
                    continue
                data = line.removeprefix(b"data:").strip()
                if data == b"[DONE]":
                    return
                event = _json(data, self.path)
                if isinstance(event, dict) and "error" in event:
                    raise _as_error(event, FAILED)
                yield event
        raise CommandError("the service closed the connection before the answer was complete")

    def _probe(self, timeout_s: float) -> None:
        """Before a call that may take long: does anybody answer at all?"""
        if timeout_s > CONTROL_TIMEOUT_S:
            self.get("/healthz")

    @contextmanager
    def _response(
        self, method: str, route: str, body: Any, timeout_s: float
    ) -> Iterator[http.client.HTTPResponse]:
        connection = _UnixConnection(self.path, timeout_s)
        payload = None if body is None else json.dumps(body).encode()
        headers = {} if payload is None else {"Content-Type": "application/json"}
        try:
            connection.request(method, route, payload, headers)
            yield connection.getresponse()
        except OSError as error:
            raise self._explain(error) from None
        except http.client.HTTPException as error:
            raise CommandError(
                "the service broke off its answer",
                where=str(self.path),
                hint=f"its log says why; {type(error).__name__}",
            ) from None
        finally:
            connection.close()

    def _explain(self, error: OSError) -> CommandError:
        where = str(self.path)
        if isinstance(error, FileNotFoundError | NotADirectoryError):
            return CommandError(
                "homespecd is not running: there is no socket",
                where=where,
                hint="systemctl start homespecd, or --socket PATH if it listens elsewhere",
                exit_code=NOT_RUNNING,
            )
        if isinstance(error, ConnectionRefusedError):
            if not self.path.is_socket():
                return CommandError("is not a socket", where=where, hint="see --socket in --help")
            return CommandError(
                "homespecd is not running: nobody listens on the socket it left behind",
                where=where,
                hint="systemctl start homespecd; it replaces the socket",
                exit_code=NOT_RUNNING,
            )
        if isinstance(error, PermissionError):
            return CommandError(
                "this user may not open the socket",
                where=where,
                hint="join its group (sudo usermod -aG homespecd $USER) and log in again, "
                "or use sudo",
                exit_code=NOT_ALLOWED,
            )
        # A full backlog shows as EAGAIN on a Unix socket.
        if isinstance(error, TimeoutError) or error.errno == errno.EAGAIN:
            return CommandError(
                "homespecd does not answer",
                where=where,
                hint="it hangs or cannot start: journalctl -u homespecd, "
                "then systemctl restart homespecd",
                exit_code=NO_ANSWER,
            )
        if isinstance(error, ConnectionError):
            return CommandError(
                "the service closed the connection",
                where=where,
                hint="it may be stopping: homespecctl status",
            )
        return CommandError(error.strerror or str(error), where=where)

    @staticmethod
    def expect_success(reply: Reply) -> Any:
        if reply.status < 400:
            return reply.body
        raise _as_error(reply.body, NOT_ALLOWED if reply.status in (401, 403) else FAILED)


def model_route(name: str, action: str) -> str:
    """The control route of one model."""
    return f"/homespec/models/{quote(name, safe='')}/{action}"


def _as_error(body: Any, exit_code: int) -> CommandError:
    error = body.get("error") if isinstance(body, dict) else None
    message = error.get("message") if isinstance(error, dict) else None
    return CommandError(str(message or f"the service answered {body!r}"), exit_code=exit_code)


def _json(data: bytes, path: Path) -> Any:
    try:
        return json.loads(data) if data.strip() else None
    except ValueError:
        raise CommandError("what answers on the socket is not homespecd", where=str(path)) from None
