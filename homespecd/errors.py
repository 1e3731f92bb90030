"""Typed errors: what went wrong, where, and what to do about it.

Every error that can reach a person derives from `HomespecError`. The edges of the program (the
command line, the HTTP routes, the worker's reply) turn one into a sentence; nothing in between
catches it to rephrase it. Bugs stay ordinary exceptions.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass


class HomespecError(Exception):
    """What is wrong, where it is (a file, a key, a parameter), and a hint at the mend.

    Args:
        message: one sentence without the place and without a final period.
        where: the file, key or parameter at fault; "" when the message names it already.
        hint: what to do; "" when there is nothing to say.
    """

    def __init__(self, message: str, *, where: str = "", hint: str = "") -> None:
        super().__init__(message)
        self.message = message
        self.where = where
        self.hint = hint

    def __str__(self) -> str:
        place = f"{self.where}: " if self.where else ""
        hint = f" ({self.hint})" if self.hint else ""
        return f"{place}{self.message}{hint}"


@dataclass(frozen=True)
class Problem:
    """One fault in a configuration file. `line` is 1-based, 0 when it has no line of its own."""

    file: str
    line: int
    key: str
    message: str
    hint: str = ""

    def __str__(self) -> str:
        return f"{self._place()}:{self._what()}"

    def as_warning(self) -> str:
        """The same line for what is no error and may not be meant."""
        return f"{self._place()}: warning:{self._what()}"

    def _place(self) -> str:
        return f"{self.file}:{self.line}" if self.line else self.file

    def _what(self) -> str:
        key = f" {self.key}:" if self.key else ""
        hint = f" ({self.hint})" if self.hint else ""
        return f"{key} {self.message}{hint}"


class ConfigError(HomespecError):
    """A configuration that cannot be used; carries every problem, not only the first."""

    def __init__(self, problems: Sequence[Problem]) -> None:
        self.problems = tuple(problems)
        super().__init__("\n".join(str(problem) for problem in self.problems))


class BundleError(HomespecError):
    """A model on disk that cannot be read, recognised, converted or written."""


class ModelError(HomespecError):
    """A model that cannot be loaded or that failed while it ran.

    `out_of_memory` tells a caller that giving memory back and trying again may help; `device_lost`,
    that nothing will help in this process: what it had on the device is gone.
    """

    def __init__(
        self,
        message: str,
        *,
        where: str = "",
        hint: str = "",
        out_of_memory: bool = False,
        device_lost: bool = False,
    ) -> None:
        super().__init__(message, where=where, hint=hint)
        self.out_of_memory = out_of_memory
        self.device_lost = device_lost


class RequestError(HomespecError):
    """A request that cannot be answered as asked; becomes an OpenAI-shaped error body.

    Args:
        status: the HTTP status it maps to.
        code: OpenAI's machine-readable code, for example "context_length_exceeded".
        param: the request parameter at fault.
        retry_after_s: for 429 and 503, when to try again.
    """

    def __init__(
        self,
        message: str,
        *,
        status: int = 400,
        code: str | None = None,
        param: str | None = None,
        hint: str = "",
        retry_after_s: float | None = None,
    ) -> None:
        super().__init__(message, hint=hint)
        self.status = status
        self.code = code
        self.param = param
        self.retry_after_s = retry_after_s
