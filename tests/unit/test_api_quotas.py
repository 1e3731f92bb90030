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


ME, ROOT, TCP = Peer(uid=4242, gid=4242), Peer(uid=0, gid=0), Peer()


@pytest.mark.parametrize(
    ("sections", "peer", "model", "keyed", "code"),
    [
        # By default: Unix users and key holders.
        ({}, ME, "m", False, None),
        ({}, ME, None, False, None),
        ({}, TCP, None, True, None),
        ({}, TCP, "m", False, "control_not_allowed"),
        ({"default": {}}, TCP, None, False, "control_not_allowed"),
        ({"default": {"control": True}}, TCP, "m", False, None),
        # Who may not use a model may not do anything else with it.
        ({"default": {"allow_models": ["other"]}}, ME, "m", False, "model_not_allowed"),
        ({"default": {"allow_models": ["other"]}}, ME, "other", False, None),
        # Users, but for some.
        ({"default": {"control": False}}, ME, None, False, "control_not_allowed"),
        ({"default": {"control": False}}, TCP, "m", True, "control_not_allowed"),
        ({"default": {"control": False}, "4242": {"control": True}}, ME, "m", False, None),
        ({"4242": {"control": False}}, ME, "m", False, "control_not_allowed"),
        ({"default": {"control": False, "allow_models": ["other"]}}, ROOT, "m", False, None),
        ({"root": {"control": False}}, ROOT, None, False, "control_not_allowed"),
    ],
)  # fmt: skip
def test_who_may_control(
    sections: dict[str, dict[str, object]],
    peer: Peer,
    model: str | None,
    keyed: bool,
    code: str | None,
) -> None:
    policies = {name: ClientConfig.model_validate(one) for name, one in sections.items()}
    clients = Clients(policies)
    if code is None:
        clients.permit_control(peer, model, keyed=keyed)
        return
    with pytest.raises(RequestError) as caught:
        clients.permit_control(peer, model, keyed=keyed)
    assert (caught.value.status, caught.value.code) == (403, code)
