"""Sections of clients whose user or group this machine does not have: no error, they may come.

A user may be made later, or be known to a directory that does not answer now; until then the
section applies to nobody.
"""

from __future__ import annotations

import grp
import pwd
from collections.abc import Callable, Iterable, Iterator

from homespecd.config.checks import Fault

DEFAULT = "default"


def unknown_accounts(
    sections: Iterable[str],
    *,
    is_user: Callable[[str], bool],
    is_group: Callable[[str], bool],
) -> Iterator[Fault]:
    """One fault for every section that applies to nobody. A number is an id without a name."""
    for name in sections:
        account = name.removeprefix("@")
        if name == DEFAULT or account.isdecimal():
            continue
        kind, known = ("group", is_group) if name.startswith("@") else ("user", is_user)
        if not known(account):
            other = "group" if kind == "user" and is_group(account) else ""
            hint = f'"@{account}" is the group' if other else "it applies to nobody until there is"
            yield Fault(("clients", name), f'there is no {kind} "{account}" on this machine', hint)


def is_user(name: str) -> bool:
    """Whether this machine knows a user of this name."""
    try:
        pwd.getpwnam(name)
    except (KeyError, ValueError):
        return False
    return True


def is_group(name: str) -> bool:
    """Whether this machine knows a group of this name."""
    try:
        grp.getgrnam(name)
    except (KeyError, ValueError):
        return False
    return True
