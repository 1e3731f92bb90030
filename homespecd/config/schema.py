"""What may stand in the configuration file: every key, its type, default and range.

TOML keys are the outside contract; the attributes carry their unit (`max_body` is
`max_body_bytes` here). Sizes are whole bytes, durations are seconds, modes are integers. The rules
that need two sections, or the disk, are in `checks`; this module looks at one value at a time.
"""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal, TypeVar

from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    PlainValidator,
    WithJsonSchema,
)
from pydantic_core import PydanticCustomError

from homespecd.config.units import DURATION_FORM, SIZE_FORM, parse_duration, parse_size

Item = TypeVar("Item")

# A model's name is a path segment of the HTTP routes.
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._:@+-]{0,127}")


def bad_value(message: str, hint: str = "") -> PydanticCustomError:
    """A fault in one value, in this program's own words."""
    # Braces would be taken for a template of pydantic's.
    return PydanticCustomError("homespec", "{message}", {"message": message, "hint": hint})


def _size(value: Any) -> int:
    if not isinstance(value, str):
        raise bad_value("a size is a string with a unit", SIZE_FORM)
    try:
        return parse_size(value)
    except ValueError:
        raise bad_value(f'"{value}" is not a size', SIZE_FORM) from None


def _positive_size(value: Any) -> int:
    size = _size(value)
    if size == 0:
        raise bad_value("must be more than nothing", SIZE_FORM)
    return size


def _optional_size(value: Any) -> int | None:
    return None if value == "" else _positive_size(value)


def _duration(value: Any) -> float:
    if not isinstance(value, str):
        raise bad_value("a duration is a string with a unit", DURATION_FORM)
    try:
        return parse_duration(value)
    except ValueError:
        raise bad_value(f'"{value}" is not a duration', DURATION_FORM) from None


def _mode(value: Any) -> int:
    hint = 'four octal digits in quotes, like "0660"'
    if not isinstance(value, str) or re.fullmatch(r"0?[0-7]{3}", value) is None:
        raise bad_value(f"{value!r} is not a file mode", hint)
    mode = int(value, 8)
    if mode & 0o600 != 0o600:
        raise bad_value(f'"{value}" shuts out the service itself', hint)
    return mode


def _path(value: Any) -> Path:
    if not isinstance(value, str):
        raise bad_value("must be a path in quotes")
    if not value:
        raise bad_value("must not be empty")
    if "\0" in value:
        raise bad_value("must not hold a NUL character")
    return Path(value)


def _optional_path(value: Any) -> Path | None:
    return None if value == "" else _path(value)


def _as_tuple(value: Any) -> Any:
    return tuple(value) if isinstance(value, list) else value


def _distinct(value: tuple[str, ...]) -> tuple[str, ...]:
    twice = sorted({item for item in value if value.count(item) > 1})
    if twice:
        raise bad_value(f'names "{twice[0]}" twice')
    return value


def _provider_options(value: Any) -> Any:
    if not isinstance(value, dict):
        raise bad_value("must be a table", 'like provider_options = { device_type = "GPU" }')
    # What each provider takes is in `provider_options`; here, that a worker can be sent it.
    for key, one in value.items():
        for each in one.values() if isinstance(one, dict) else (one,):
            if not isinstance(each, str | int | float | bool):
                raise bad_value(f'option "{key}" must be a string, a number or a boolean')
    return value


@dataclass(frozen=True)
class ListenAddress:
    """A TCP address to serve on besides the socket."""

    host: str
    port: int

    @property
    def loopback(self) -> bool:
        """Only this machine can reach it."""
        if self.host == "localhost":
            return True
        try:
            return ipaddress.ip_address(self.host).is_loopback
        except ValueError:
            return False

    def __str__(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


def _listen(value: Any) -> ListenAddress:
    hint = '"HOST:PORT", like "127.0.0.1:8435" or "[::1]:8435"'
    match = (
        re.fullmatch(r"(?:\[([0-9A-Fa-f:.]+)\]|([A-Za-z0-9._-]+)):([0-9]{1,5})", value)
        if isinstance(value, str)
        else None
    )
    if match is None or not 1 <= int(match[3]) <= 65535:
        raise bad_value(f"{value!r} is not an address", hint)
    if match[1] is not None:
        try:
            ipaddress.IPv6Address(match[1])
        except ValueError:
            raise bad_value(f"{value!r} is not an address", hint) from None
    return ListenAddress(match[1] or match[2], int(match[3]))


def _schema(description: str, **more: Any) -> WithJsonSchema:
    return WithJsonSchema({"type": "string", "description": description, **more})


Size = Annotated[int, PlainValidator(_positive_size), _schema(SIZE_FORM)]
SizeOrZero = Annotated[int, PlainValidator(_size), _schema(SIZE_FORM)]
OptionalSize = Annotated[
    int | None, PlainValidator(_optional_size), _schema(f'"" for none, or {SIZE_FORM}')
]
Duration = Annotated[float, PlainValidator(_duration), _schema(DURATION_FORM)]
FileMode = Annotated[int, PlainValidator(_mode), _schema("octal file mode", pattern="^0?[0-7]{3}$")]
ConfigPath = Annotated[
    Path, PlainValidator(_path), _schema("a path; a relative one starts at the configuration file")
]
OptionalPath = Annotated[
    Path | None, PlainValidator(_optional_path), _schema('a path, or "" for none')
]
ModelPath = Annotated[
    Path, PlainValidator(_path), _schema("a folder under paths.models, or an absolute path")
]
Listen = Annotated[ListenAddress, PlainValidator(_listen), _schema("HOST:PORT")]
# TOML has arrays; a frozen configuration has tuples.
ListOf = Annotated[tuple[Item, ...], BeforeValidator(_as_tuple)]
Names = Annotated[tuple[str, ...], BeforeValidator(_as_tuple), AfterValidator(_distinct)]
Provider = Literal["auto", "cpu", "cuda", "openvino", "directml"]
ProviderOption = str | int | float | bool
ProviderOptions = Annotated[
    Mapping[str, ProviderOption | Mapping[str, ProviderOption]], BeforeValidator(_provider_options)
]


def _written(default: str, *, alias: str | None = None) -> Any:
    """A default in the file's own notation; it is validated like any other value."""
    return Field(default=default, alias=alias)


class Section(BaseModel):
    """A table of the file: unknown keys are errors, values are not converted, nothing changes."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True, validate_default=True)


class ServerConfig(Section):
    """`[server]`: where the service listens, and for whom."""

    socket: ConfigPath = _written("/run/homespecd/homespecd.sock")
    socket_mode: FileMode = _written("0660")
    socket_group: str = "homespecd"
    listen: ListOf[Listen] = ()
    api_keys_file: OptionalPath = _written("")
    max_body_bytes: Size = _written("4MiB", alias="max_body")
    max_queue: int = Field(default=32, ge=0, le=100_000)


class PathsConfig(Section):
    """`[paths]`: the folders of the service."""

    models: ConfigPath = _written("/var/lib/homespecd/models")
    state: ConfigPath = _written("/var/lib/homespecd/state")


class MemoryConfig(Section):
    """`[memory]`: what the whole service may hold. `pressure` is PSI some avg10 in percent."""

    cap_bytes: Size = _written("6GiB", alias="cap")
    reserve_bytes: SizeOrZero = _written("1GiB", alias="reserve")
    pressure: float = Field(default=10.0, gt=0, le=100)


class SpeculationConfig(Section):
    """`[speculation]`: when to speculate at all. `probe_budget` is a share of the time."""

    enabled: bool = True
    min_speedup: float = Field(default=1.0, ge=0.5, le=10)
    max_draft_tokens: int = Field(default=16, ge=1, le=64)
    probe_budget: float = Field(default=0.02, ge=0, le=0.5)


class ModelConfig(Section):
    """`[models.NAME]`: one model to serve. `path` is absolute once loaded."""

    path: ModelPath
    variant: str = ""
    provider: Provider = "auto"
    provider_options: ProviderOptions = Field(default_factory=dict)
    provider_required: bool = False
    threads: int = Field(default=0, ge=0, le=1024)
    context: int = Field(default=4096, ge=2, le=16_777_216)
    slots: int = Field(default=2, ge=1, le=64)
    residency: Literal["pinned", "on-demand"] = "on-demand"
    idle_unload_s: Duration = _written("15m", alias="idle_unload")
    memory_cap_bytes: OptionalSize = _written("", alias="memory_cap")
    drafters: Names = ()


# Recognised, so that the message can say more than "unknown".
PLANNED_KINDS = ("layers", "heads")


def _kind(value: Any) -> Any:
    if value in PLANNED_KINDS:
        raise bad_value(f'kind "{value}" is not available yet', 'use "ngram" or "model"')
    return value


class DrafterConfig(Section):
    """`[drafters.NAME]`: something that proposes tokens. `path` is for kind "model" only."""

    kind: Annotated[Literal["ngram", "model"], BeforeValidator(_kind)]
    path: OptionalPath = _written("")
    variant: str = ""
    provider: Provider = "auto"
    provider_options: ProviderOptions = Field(default_factory=dict)
    max_draft_tokens: int = Field(default=8, ge=1, le=64)


class ClientConfig(Section):
    """`[clients.NAME]`: what one Unix user or "@group" may do; "default" is everybody else."""

    allow_models: Names = ("*",)
    max_active: int = Field(default=4, ge=1, le=10_000)
    max_tokens_per_minute: int = Field(default=0, ge=0, le=2**31)  # 0 = as many as there are
    control: bool = True  # load, unload, bench, verify, reload; unstated: not over TCP without keys


def check_name(name: str) -> str:
    """The fault in a model's or drafter's name, "" when there is none."""
    if _NAME.fullmatch(name):
        return ""
    return "a name is letters, digits and . _ : @ + - (it is part of a URL)"


class Config(Section):
    """A whole configuration. Made by `load`; every path in it is absolute."""

    server: ServerConfig = Field(default_factory=ServerConfig)
    paths: PathsConfig = Field(default_factory=PathsConfig)
    memory: MemoryConfig = Field(default_factory=MemoryConfig)
    speculation: SpeculationConfig = Field(default_factory=SpeculationConfig)
    models: Mapping[str, ModelConfig] = Field(default_factory=dict)
    drafters: Mapping[str, DrafterConfig] = Field(default_factory=dict)
    clients: Mapping[str, ClientConfig] = Field(default_factory=dict)


SECTIONS: Mapping[str, type[Section]] = {
    "server": ServerConfig,
    "paths": PathsConfig,
    "memory": MemoryConfig,
    "speculation": SpeculationConfig,
}
TABLES_OF_SECTIONS: Mapping[str, type[Section]] = {
    "models": ModelConfig,
    "drafters": DrafterConfig,
    "clients": ClientConfig,
}


def json_schema() -> dict[str, Any]:
    """The JSON schema of the file, for editors."""
    schema = Config.model_json_schema(by_alias=True, mode="validation")
    return {
        "$schema": "http://json-schema.org/draft-07/schema#",
        "title": "homespecd configuration",
        **{key: value for key, value in schema.items() if key != "title"},
    }
