"""What every command is given."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from homespecd.cli.client import Client
from homespecd.cli.terminal import Terminal


class Commands(Protocol):
    """What `argparse.ArgumentParser.add_subparsers` returns, which has no public name."""

    def add_parser(
        self,
        name: str,
        *,
        parents: Sequence[argparse.ArgumentParser],
        help: str,  # noqa: A002
        description: str,
    ) -> argparse.ArgumentParser: ...


@dataclass(frozen=True)
class Context:
    """Where to write, and the socket to talk to."""

    terminal: Terminal
    socket: Path

    @property
    def client(self) -> Client:
        return Client(self.socket)
