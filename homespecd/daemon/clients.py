"""Who asks, what they may, and what they have had so far."""

from __future__ import annotations

import grp
import os
import pwd
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from homespecd.api.service import Peer
from homespecd.config.schema import ClientConfig
from homespecd.errors import RequestError

# What quotas of tokens are counted over.
_MINUTE_S = 60.0

_DEFAULT = "default"  # the section of everybody who has no other


class Spent:
    """Tokens of the last minute, prompts and answers alike."""

    def __init__(self) -> None:
        self._entries: deque[tuple[float, int]] = deque()
        self._sum = 0

    def add(self, now_s: float, tokens: int) -> None:
        """Tokens that were used now. Those of the same second share an entry."""
        if self._entries and now_s - self._entries[-1][0] < 1.0:
            at_s, before = self._entries.pop()
            self._entries.append((at_s, before + tokens))
        else:
            self._entries.append((now_s, tokens))
        self._sum += tokens

    def wait_s(self, now_s: float, limit: int) -> float:
        """How long until fewer than `limit` tokens lie within a minute; 0 = they do."""
        while self._entries and self._entries[0][0] <= now_s - _MINUTE_S:
            self._sum -= self._entries.popleft()[1]
        over = self._sum - limit
        if over < 0:
            return 0.0
        for at_s, tokens in self._entries:
            over -= tokens
            if over < 0:
                return at_s + _MINUTE_S - now_s
        return 0.0


@dataclass
class Client:
    """The account of one Unix user; of all TCP peers together when uid is None."""

    peer: Peer
    active: int = 0
    requests: int = 0
    completion_tokens: int = 0
    spent: Spent = field(default_factory=Spent)


class Clients:
    """Policies from the configuration, applied by the identity that the kernel states."""

    def __init__(
        self,
        sections: Mapping[str, ClientConfig],
        *,
        clock_s: Callable[[], float] = time.monotonic,
    ) -> None:
        self._clock_s = clock_s
        self._sections = sections
        self._by_uid: dict[int | None, Client] = {}
        self._names: dict[int | None, str] = {}  # of the section that applies

    def reconfigure(self, sections: Mapping[str, ClientConfig]) -> None:
        """Other policies from now on; the accounts stay."""
        self._sections = sections
        self._names.clear()

    def permit(self, peer: Peer, model: str) -> None:
        """Raises RequestError (403) when the peer may not use the model at all."""
        allowed = self._policy(peer).allow_models
        if "*" not in allowed and model not in allowed:
            raise RequestError(
                f"this user may not use model {model!r}",
                status=403,
                code="model_not_allowed",
                param="model",
            )

    def permit_control(self, peer: Peer, model: str | None, *, keyed: bool) -> None:
        """May the peer load and unload models, have them measured, and have the files read again?

        Unix users and whoever showed a key may, for models they may use, unless their section says
        otherwise; others, which can be any program on this machine, only if it says so. Root may
        whatever the default is: a section of its own binds it.

        Args:
            model: the one that it is about, None = the service.
            keyed: TCP peers have shown a key.

        Raises:
            RequestError: 403.
        """
        if peer.uid == 0 and self._name(peer) == _DEFAULT:
            return
        if model is not None:
            self.permit(peer, model)
        policy = self._policy(peer)
        trusted = peer.uid is not None or keyed
        if not (policy.control if "control" in policy.model_fields_set else trusted):
            raise RequestError(
                "this user may not control the service",
                status=403,
                code="control_not_allowed",
                hint=f"set `control = true` in [clients.{self._name(peer)}]",
            )

    def admit(self, peer: Peer, model: str) -> Client:
        """The peer's account, `active` counted up; whoever calls this counts it down.

        Raises:
            RequestError: 403 when the peer may not use the model, 429 over its quota.
        """
        self.permit(peer, model)
        policy = self._policy(peer)
        client = self._by_uid.setdefault(peer.uid, Client(peer))
        # A quota counts where the configuration states one.
        if "max_active" in policy.model_fields_set and client.active >= policy.max_active:
            raise RequestError(
                f"this user has {client.active} requests running, as many as it may",
                status=429,
                code="quota_exceeded",
                retry_after_s=1.0,
            )
        limit = policy.max_tokens_per_minute
        wait_s = client.spent.wait_s(self._clock_s(), limit) if limit else 0.0
        if wait_s > 0:
            raise RequestError(
                f"this user has had its {limit} tokens of the last minute",
                status=429,
                code="token_quota_exceeded",
                retry_after_s=wait_s,
            )
        client.peer = peer
        client.active += 1
        client.requests += 1
        return client

    def spend(self, client: Client, tokens: int) -> None:
        """Tokens that an answer has used, as it goes on."""
        client.spent.add(self._clock_s(), tokens)

    def snapshot(self) -> Sequence[Mapping[str, Any]]:
        return [
            {
                "uid": client.peer.uid,
                "gid": client.peer.gid,
                "pid": client.peer.pid,
                "comm": client.peer.comm,
                "active": client.active,
                "requests": client.requests,
                "completion_tokens": client.completion_tokens,
            }
            for client in self._by_uid.values()
        ]

    def _policy(self, peer: Peer) -> ClientConfig:
        return self._sections.get(self._name(peer)) or ClientConfig()

    def _name(self, peer: Peer) -> str:
        if peer.uid not in self._names:
            self._names[peer.uid] = self._find_name(peer)
        return self._names[peer.uid]

    def _find_name(self, peer: Peer) -> str:
        """The user's own section, else that of the first group it is in, else the default."""
        if peer.uid is not None and peer.gid is not None and set(self._sections) - {_DEFAULT}:
            user, groups = _names(peer.uid, peer.gid)
            for name in (user, *(f"@{group}" for group in groups)):
                if name in self._sections:
                    return name
        return _DEFAULT


def _names(uid: int, gid: int) -> tuple[str, list[str]]:
    """The names of a user and of its groups; a number stands for a name that there is not."""
    try:
        user = pwd.getpwuid(uid).pw_name
        group_ids = os.getgrouplist(user, gid)
    except KeyError:
        user, group_ids = str(uid), [gid]
    groups = []
    for group_id in group_ids:
        try:
            groups.append(grp.getgrgid(group_id).gr_name)
        except KeyError:
            groups.append(str(group_id))
    return user, groups
