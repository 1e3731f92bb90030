"""The configuration file: schema, loading with every problem named, differences."""

from homespecd.config.diff import Change, diff
from homespecd.config.load import load
from homespecd.config.schema import (
    ClientConfig,
    Config,
    DrafterConfig,
    ListenAddress,
    MemoryConfig,
    ModelConfig,
    PathsConfig,
    ServerConfig,
    SpeculationConfig,
)

__all__ = [
    "Change",
    "ClientConfig",
    "Config",
    "DrafterConfig",
    "ListenAddress",
    "MemoryConfig",
    "ModelConfig",
    "PathsConfig",
    "ServerConfig",
    "SpeculationConfig",
    "diff",
    "load",
]
