"""Exit codes of `homespecctl`, and the error that carries one.

Scripts may rely on them: 0 fine · 1 failed · 2 wrong use · 3 not running · 4 not allowed ·
5 does not answer · 6 running, with something wrong · 70 a bug · 78 invalid configuration ·
130 interrupted.
"""

from __future__ import annotations

from homespecd.errors import HomespecError

OK = 0
FAILED = 1
USAGE = 2
NOT_RUNNING = 3  # systemctl's and the LSB's code for it
NOT_ALLOWED = 4
NO_ANSWER = 5
DEGRADED = 6
BUG = 70  # EX_SOFTWARE
BAD_CONFIG = 78  # EX_CONFIG
BROKEN_PIPE = 141  # 128 + SIGPIPE
INTERRUPTED = 130  # 128 + SIGINT


class CommandError(HomespecError):
    """A command that could not do its work; `exit_code` is what the process ends with."""

    def __init__(
        self, message: str, *, where: str = "", hint: str = "", exit_code: int = FAILED
    ) -> None:
        super().__init__(message, where=where, hint=hint)
        self.exit_code = exit_code
