"""The sockets the service listens on: made safely, or taken over from systemd."""

from __future__ import annotations

import contextlib
import errno
import grp
import os
import socket
import stat
from collections.abc import Iterator, MutableMapping
from dataclasses import dataclass
from pathlib import Path

from homespecd.errors import HomespecError

# Clients that connect while the service is busy with something else wait here. Past it one that
# does not block is turned away, as if nobody were there: so many may start at the same moment.
BACKLOG = 1024
_FIRST_INHERITED_FD = 3
# struct sockaddr_un has 108 bytes for the path and its end; the socket gets a longer name first.
_MAX_PATH_BYTES = 107
_SUFFIX = ".new"


class SocketError(HomespecError):
    """The socket cannot be made; names the path."""


@dataclass(frozen=True)
class BoundSocket:
    """A listening Unix socket and the file it is reached by."""

    sock: socket.socket
    path: Path
    device: int
    inode: int

    def remove(self) -> None:
        """Take the file away, if it is still this socket's."""
        try:
            found = os.lstat(self.path)
            if (found.st_dev, found.st_ino) == (self.device, self.inode):
                self.path.unlink()
        except FileNotFoundError:
            pass


def bind_unix(path: Path, *, mode: int, group: str) -> BoundSocket:
    """Listen on `path`.

    The socket is made beside `path` for its owner alone, gets its group and mode, and is renamed
    into place: nobody ever sees it wider than configured, and a dead socket of an earlier run is
    replaced in one step. A missing folder is made.

    Raises:
        SocketError: something other than a dead socket is at `path` (it is left alone), the group
            does not exist, or the system says no.
    """
    where = str(path)
    beside = path.with_name(path.name + _SUFFIX)
    if len(os.fsencode(beside)) > _MAX_PATH_BYTES:
        raise SocketError(
            f"the path is longer than {_MAX_PATH_BYTES - len(_SUFFIX)} bytes",
            where=where,
            hint="set server.socket to a shorter one",
        )
    group_id = _group_id(group, where)
    try:
        with _umask(0o022):
            path.parent.mkdir(parents=True, exist_ok=True)
        _check_free(path)
        _remove_dead(beside)
        return _bind(path, beside, mode=mode, group_id=group_id)
    except OSError as error:
        raise SocketError(
            f"cannot listen here: {error.strerror or error}",
            where=error.filename if isinstance(error.filename, str) else where,
            hint=_hint(error, group),
        ) from error


def inherited_sockets(environment: MutableMapping[str, str]) -> list[socket.socket]:
    """Sockets passed by systemd's socket activation; the variables are taken out."""
    count = environment.pop("LISTEN_FDS", "")
    pid = environment.pop("LISTEN_PID", "")
    environment.pop("LISTEN_FDNAMES", None)
    if pid != str(os.getpid()) or not count.isdigit():
        return []
    sockets = []
    for fd in range(_FIRST_INHERITED_FD, _FIRST_INHERITED_FD + int(count)):
        os.set_inheritable(fd, False)
        sock = socket.socket(fileno=fd)
        sock.setblocking(False)
        sockets.append(sock)
    return sockets


def _bind(path: Path, beside: Path, *, mode: int, group_id: int | None) -> BoundSocket:
    sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_NONBLOCK)
    try:
        with _umask(0o177):
            sock.bind(str(beside))
        if group_id is not None:
            os.chown(beside, -1, group_id, follow_symlinks=False)
        beside.chmod(mode)
        sock.listen(BACKLOG)
        made = os.lstat(beside)
        beside.rename(path)
    except BaseException:
        sock.close()
        beside.unlink(missing_ok=True)
        raise
    return BoundSocket(sock=sock, path=path, device=made.st_dev, inode=made.st_ino)


@contextlib.contextmanager
def _umask(mask: int) -> Iterator[None]:
    """Whatever the service was started with must make nothing wider or narrower."""
    before = os.umask(mask)
    try:
        yield
    finally:
        os.umask(before)


def _check_free(path: Path) -> None:
    """Nothing at `path`, or a socket that nobody answers."""
    try:
        found = os.lstat(path)
    except FileNotFoundError:
        return
    if not stat.S_ISSOCK(found.st_mode):
        what = "a symbolic link" if stat.S_ISLNK(found.st_mode) else "something else than a socket"
        raise SocketError(
            f"{what} is in the way and is left alone",
            where=str(path),
            hint="remove it, or set server.socket to another path",
        )
    if _answers(path):
        raise SocketError(
            "another process is serving here",
            where=str(path),
            hint="stop it, or set server.socket to another path",
        )


def _answers(path: Path) -> bool:
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
        probe.setblocking(False)
        try:
            probe.connect(str(path))
        except (ConnectionRefusedError, FileNotFoundError):
            return False
        except BlockingIOError:  # alive, with a full backlog
            return True
    return True


def _remove_dead(beside: Path) -> None:
    """What a run left that was killed between making its socket and renaming it."""
    try:
        if stat.S_ISSOCK(os.lstat(beside).st_mode) and not _answers(beside):
            beside.unlink()
    except FileNotFoundError:
        pass


def group_exists(group: str) -> bool:
    """Whether the system knows a group of this name."""
    try:
        grp.getgrnam(group)
    except KeyError:
        return False
    return True


def _group_id(group: str, where: str) -> int | None:
    if not group:
        return None
    try:
        return grp.getgrnam(group).gr_gid
    except KeyError:
        raise SocketError(
            f'there is no group "{group}"',
            where=where,
            hint='create it, or set server.socket_group ("" = the service\'s own group)',
        ) from None


def _hint(error: OSError, group: str) -> str:
    if error.errno in (errno.EPERM, errno.EACCES):
        member = f", and it must be in group {group}" if group else ""
        return f"the service's user needs write access to the folder{member}"
    return "see server.socket in the configuration"
