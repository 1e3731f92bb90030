"""The keys that TCP peers must know."""

from __future__ import annotations

import stat

from homespecd.config.schema import ServerConfig
from homespecd.errors import ConfigError, Problem


def read_keys(server: ServerConfig) -> tuple[str, ...]:
    """One key a line, `#` begins a comment line; () when the configuration names no file.

    Raises:
        ConfigError: the file cannot be read, is open to others, or holds no key; or an address
            beyond this machine is served without any.
    """
    path = server.api_keys_file
    if path is None:
        open_to_all = [str(address) for address in server.listen if not address.loopback]
        if open_to_all:
            raise _problem(
                "server.listen", f"{open_to_all[0]} is not loopback and needs server.api_keys_file"
            )
        return ()
    try:
        with path.open(encoding="utf-8") as file:
            mode = stat.S_IMODE(path.stat().st_mode)
            lines = [line.strip() for line in file]
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is not UTF-8 text"
        raise _problem(
            "server.api_keys_file",
            f"cannot read {path}: {reason}",
            hint="the user that homespecd runs as must be able to: mode 0640, and its group",
        ) from error
    if mode & 0o137:
        raise _problem(
            "server.api_keys_file",
            f"{path} has mode {mode:04o}",
            hint="chmod 0600 or 0640",
        )
    keys = tuple(line for line in lines if line and not line.startswith("#"))
    if not keys:
        raise _problem("server.api_keys_file", f"{path} holds no key")
    return keys


def _problem(key: str, message: str, *, hint: str = "") -> ConfigError:
    return ConfigError([Problem(file="[server]", line=0, key=key, message=message, hint=hint)])
