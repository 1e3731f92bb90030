"""The rules of a configuration that one value alone cannot break, and the state of the disk."""

from __future__ import annotations

import stat
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from homespecd.config import provider_options
from homespecd.config.lines import KeyPath
from homespecd.config.schema import (
    Config,
    DrafterConfig,
    MemoryConfig,
    ModelConfig,
    ServerConfig,
)
from homespecd.config.sections import Checked, Sections, nearest
from homespecd.config.units import format_size

# sizeof(sockaddr_un.sun_path) less the final NUL.
MAX_SOCKET_PATH_BYTES = 107


@dataclass(frozen=True)
class Fault:
    key: KeyPath
    message: str
    hint: str = ""


def between_sections(sections: Sections) -> Iterator[Fault]:
    """Everything wrong about how sections fit together."""
    yield from _listen(sections.server)
    for name, drafter in sections.drafters.items():
        yield from _drafter(name, drafter)
        yield from _provider(("drafters", name), drafter)
    for name, model in sections.models.items():
        yield from _provider(("models", name), model)
        for index, drafter_name in enumerate(model.value.drafters):
            if drafter_name not in sections.drafters:
                yield Fault(
                    ("models", name, "drafters", index),
                    f'there is no drafter "{drafter_name}"',
                    _drafter_hint(drafter_name, sections),
                )
    yield from _memory(sections.memory, sections.models)
    for name, client in sections.clients.items():
        for index, pattern in enumerate(client.value.allow_models):
            if pattern not in sections.models and not set(pattern) & set("*?["):
                guess = nearest(pattern, sections.models)
                yield Fault(
                    ("clients", name, "allow_models", index),
                    f'there is no model "{pattern}"',
                    f'did you mean "{guess}"?' if guess else f"add [models.{pattern}]",
                )


def on_disk(config: Config) -> Iterator[Fault]:
    """What the configuration names and the disk does not have."""
    yield from folders(config)
    if config.server.api_keys_file is not None:
        yield from _keys_file(config.server.api_keys_file)


def folders(config: Config) -> Iterator[Fault]:
    """Models and drafters without a folder."""
    for name, model in config.models.items():
        yield from _folder(("models", name, "path"), model.path)
    for name, drafter in config.drafters.items():
        if drafter.path is not None:
            yield from _folder(("drafters", name, "path"), drafter.path)


def of_paths(config: Config) -> Iterator[Fault]:
    """What is wrong with a path as such, whatever the disk holds."""
    length = len(str(config.server.socket).encode())
    if length > MAX_SOCKET_PATH_BYTES:
        yield Fault(
            ("server", "socket"),
            f"is {length} bytes long, and a Unix socket's path may have {MAX_SOCKET_PATH_BYTES}",
            "use a shorter folder",
        )


def _listen(server: Checked[ServerConfig]) -> Iterator[Fault]:
    if server.value.api_keys_file is not None or "api_keys_file" in server.faulty:
        return
    for index, address in enumerate(server.value.listen):
        if not address.loopback:
            yield Fault(
                ("server", "listen", index),
                f"{address} can be reached from other machines, so it needs api_keys_file",
                "set server.api_keys_file, or listen on 127.0.0.1",
            )


def _drafter(name: str, drafter: Checked[DrafterConfig]) -> Iterator[Fault]:
    if not drafter.sound("kind", "path"):
        return
    if drafter.value.kind == "model" and drafter.value.path is None:
        yield Fault(
            ("drafters", name, "path"),
            "is missing",
            'kind = "model" needs the folder of the draft model',
        )
    if drafter.value.kind != "model":
        for key in ("path", "variant", "provider", "provider_options"):
            if drafter.sound(key) and getattr(drafter.value, key) not in (None, "", "auto", {}):
                yield Fault(
                    ("drafters", name, key),
                    f'kind = "{drafter.value.kind}" has no model',
                    f'remove {key}, or use kind = "model"',
                )


def _provider(
    place: KeyPath, one: Checked[ModelConfig] | Checked[DrafterConfig]
) -> Iterator[Fault]:
    section = one.value
    if not one.sound("provider"):
        return
    if one.sound("provider_options"):
        for fault in provider_options.faults(section.provider, section.provider_options):
            yield Fault((*place, "provider_options", *fault.key), fault.message, fault.hint)
    if (
        isinstance(section, ModelConfig)
        and section.provider_required
        and section.provider == "auto"
    ):
        yield Fault(
            (*place, "provider_required"),
            'says nothing with provider = "auto", which is content with any',
            'name the one that is required, like provider = "cuda"',
        )


def _drafter_hint(name: str, sections: Sections) -> str:
    guess = nearest(name, sections.drafters)
    if guess:
        return f'did you mean "{guess}"?'
    kind = "ngram" if name == "ngram" else "model"
    return f'add [drafters.{name}] with kind = "{kind}"'


def _memory(
    memory: Checked[MemoryConfig], models: Mapping[str, Checked[ModelConfig]]
) -> Iterator[Fault]:
    if not memory.sound("cap"):
        return
    cap = memory.value.cap_bytes
    pinned = 0
    for name, model in models.items():
        own = model.value.memory_cap_bytes
        if own is None:
            continue
        key = ("models", name, "memory_cap")
        if own > cap:
            yield Fault(
                key,
                f"{format_size(own)} is more than memory.cap, {format_size(cap)}",
                "raise memory.cap or lower this",
            )
        elif model.value.residency == "pinned" and model.sound("residency"):
            pinned += own
            if pinned > cap:
                yield Fault(
                    key,
                    f"the pinned models up to this one may hold {format_size(pinned)}, "
                    f"and memory.cap is {format_size(cap)}",
                    'make one of them residency = "on-demand", or raise memory.cap',
                )


def _folder(key: KeyPath, path: Path) -> Iterator[Fault]:
    try:
        mode = path.stat().st_mode
    except PermissionError:
        yield Fault(key, f"{path} cannot be reached: permission denied", "see who may enter it")
        return
    except (OSError, ValueError):
        yield Fault(key, f"there is no folder {path}", "homespecctl import makes one")
        return
    if not stat.S_ISDIR(mode):
        yield Fault(
            key, f"{path} is a file, not a model folder", "homespecctl import makes one from it"
        )


def _keys_file(path: Path) -> Iterator[Fault]:
    key = ("server", "api_keys_file")
    try:
        mode = path.stat().st_mode
    except (OSError, ValueError):
        yield Fault(key, f"{path} cannot be found", "one key a line, mode 0640")
        return
    if not stat.S_ISREG(mode):
        yield Fault(key, f"{path} is not a file", "one key a line, mode 0640")
    elif mode & 0o137:
        yield Fault(
            key,
            f"{path} has mode {stat.S_IMODE(mode):04o}, so others can read the keys",
            f"chmod 0640 {path}",
        )
