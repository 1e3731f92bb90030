"""Strangers on TCP: other programs without a key, and web pages however they come."""

from __future__ import annotations

import pytest
from aiohttp.test_utils import make_mocked_request

from homespecd.api.gate import check_tcp
from homespecd.errors import RequestError

KEYS = ("first-key", "second-key")


def status(path: str = "/v1/models", *, keys: tuple[str, ...] = (), **headers: str) -> int:
    names = {name.replace("_", "-"): value for name, value in headers.items()}
    request = make_mocked_request("GET", path, headers={"Host": "127.0.0.1:8435"} | names)
    try:
        check_tcp(request, keys)
    except RequestError as error:
        return error.status
    return 200


@pytest.mark.parametrize(
    "host", ["127.0.0.1", "127.0.0.1:8435", "localhost:1", "LOCALHOST", "[::1]:8435", "10.0.0.2:80"]
)
def test_addresses_are_hosts(host: str) -> None:
    assert status(Host=host) == 200


@pytest.mark.parametrize(
    "host",
    ["evil.example", "evil.example:8435", "127.0.0.1.evil.example", "", "localhost.", "[", "[x]"],
)
def test_a_name_that_resolves_here_is_not_ours(host: str) -> None:
    assert status(Host=host) == 403
    assert status("/healthz", Host=host) == 403


def test_with_a_key_any_name_will_do() -> None:
    assert status(keys=KEYS, Host="nas.local", Authorization="Bearer second-key") == 200


@pytest.mark.parametrize("keys", [(), KEYS])
@pytest.mark.parametrize(
    "headers",
    [
        {"Origin": "http://evil.example"},
        {"Origin": "null"},
        {"Origin": "http://127.0.0.1:8435"},
        {"Sec_Fetch_Site": "cross-site"},
        {"Sec_Fetch_Site": "same-site"},
    ],
)
def test_pages_are_kept_out(keys: tuple[str, ...], headers: dict[str, str]) -> None:
    assert status(keys=keys, Authorization="Bearer first-key", **headers) == 403


def test_what_is_typed_into_a_browser_is_no_page() -> None:
    assert status(Sec_Fetch_Site="none") == 200


@pytest.mark.parametrize(
    "given",
    [
        "",
        "Bearer",
        "Bearer ",
        "Bearer third-key",
        "Basic first-key",
        "first-key",
        "Bearer first-ke",
    ],
)
def test_a_key_is_needed_where_there_are_some(given: str) -> None:
    assert status(keys=KEYS, Authorization=given) == 401
    assert status("/healthz", keys=KEYS, Authorization=given) == 200


def test_keys_are_bearer_tokens() -> None:
    for key in KEYS:
        assert status(keys=KEYS, Authorization=f"bearer {key} ") == 200
    assert status(keys=KEYS, Authorization="Bearer \u00e9") == 401
