"""Tokens per minute: a sliding window, and when to come again."""

from __future__ import annotations

import pytest

from homespecd.api.service import Peer
from homespecd.config.schema import ClientConfig
from homespecd.daemon.clients import Clients, Spent
from homespecd.errors import RequestError
from tests.fakes import FakeClock


def test_tokens_leave_the_window_after_a_minute() -> None:
    spent = Spent()
    spent.add(0.0, 60)
    spent.add(30.0, 60)
    assert spent.wait_s(30.0, 200) == 0.0
    assert spent.wait_s(30.0, 100) == 30.0  # the first sixty have to go
    assert spent.wait_s(30.0, 50) == 60.0
    assert spent.wait_s(60.0, 100) == 0.0
    assert spent.wait_s(200.0, 1) == 0.0


def test_many_small_pieces_are_few_entries() -> None:
    spent = Spent()
    for tick in range(1000):
        spent.add(tick * 0.001, 1)
    assert spent.wait_s(1.0, 1001) == 0.0
    assert spent.wait_s(1.0, 1000) == pytest.approx(59.0)


def test_a_user_over_its_quota_is_told_when_to_come_again() -> None:
    clock = FakeClock()
    clients = Clients({"default": ClientConfig(max_tokens_per_minute=100)}, clock_s=clock)
    me, other = Peer(uid=1, gid=1), Peer(uid=2, gid=2)
    account = clients.admit(me, "m")
    clients.spend(account, 99)
    clients.admit(me, "m")
    clients.spend(account, 1)
    with pytest.raises(RequestError) as caught:
        clients.admit(me, "m")
    assert (caught.value.status, caught.value.code) == (429, "token_quota_exceeded")
    assert caught.value.retry_after_s == pytest.approx(60.0)
    clients.admit(other, "m")
    clock.advance_ms(61_000)
    clients.admit(me, "m")


def test_without_a_quota_there_is_none() -> None:
    clients = Clients({"default": ClientConfig()}, clock_s=FakeClock())
    clients.spend(clients.admit(Peer(), "m"), 10**9)
    clients.admit(Peer(), "m")
