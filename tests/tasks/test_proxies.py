"""Proxies of the environment that no client can use: out of the way of this machine's own calls, and of no others."""

from __future__ import annotations

import os

import pytest

from fedcore.errors import InputError
from tasks import outgoing
from tasks.proxies import LEFT_OUT, leave_out_unusable_proxies, unusable_proxy, with_usable_proxies
from tasks.shuffling import calls

UNUSABLE = [
    "socks5://127.0.0.1:1",
    "socks5h://me:word@proxy.example:1080",
    "socks4://h",
    "ftp://h",
    "http://h:abc",
    "http://[::",
]


@pytest.fixture(autouse=True)
def clean(monkeypatch):
    for name in [*os.environ]:
        if name.lower().endswith("_proxy") or name == LEFT_OUT:
            monkeypatch.delenv(name)
    outgoing.client_of.cache_clear()
    yield
    for name in ("ALL_PROXY", LEFT_OUT):
        os.environ.pop(name, None)
    outgoing.client_of.cache_clear()


@pytest.mark.parametrize("proxy", UNUSABLE)
@pytest.mark.parametrize("name", ["ALL_PROXY", "all_proxy", "HTTP_PROXY", "https_proxy"])
def test_what_cannot_be_used_is_left_out_and_its_variable_named(name, proxy):
    given = {name: proxy, "HOME": "/h", "NO_PROXY": "a.example"}
    assert with_usable_proxies(given) == {"HOME": "/h", "NO_PROXY": "a.example", LEFT_OUT: name}


def test_what_can_be_used_stays():
    for proxy in ("http://proxy.example:3128", "https://proxy.example", "proxy.example:80", ""):
        given = {"HTTPS_PROXY": proxy, "http_proxy": proxy}
        assert with_usable_proxies(given) == given


def test_a_client_of_this_machine_can_be_made(monkeypatch):
    """It could not, by the proxies alone: httpx raises ImportError."""
    import httpx

    monkeypatch.setenv("ALL_PROXY", "socks5://127.0.0.1:1")
    with pytest.raises(ImportError):
        httpx.Client(base_url="http://127.0.0.1:4200")
    leave_out_unusable_proxies()
    httpx.Client(base_url="http://127.0.0.1:4200").close()


@pytest.mark.parametrize("left_out_before", [False, True])
def test_no_call_to_another_machine_goes_around_the_proxy(monkeypatch, left_out_before):
    monkeypatch.setenv("ALL_PROXY", "socks5://127.0.0.1:1")
    if left_out_before:  # as a driver does, for Prefect's clients
        leave_out_unusable_proxies()
    assert unusable_proxy("http://192.0.2.1:9") == "ALL_PROXY" and unusable_proxy("https://192.0.2.1") == "ALL_PROXY"
    with pytest.raises(InputError, match=r"shuffler\.address = http://192\.0\.2\.1:9: ALL_PROXY names a proxy that"):
        calls.check_listening("http://192.0.2.1:9")
    monkeypatch.setenv("NO_PROXY", "192.0.2.1")
    assert unusable_proxy("http://192.0.2.1:9") is None
    monkeypatch.setenv("NO_PROXY", "")
    monkeypatch.setenv("HTTP_PROXY", "http://proxy.example:3128")  # before that of all schemes
    assert unusable_proxy("http://192.0.2.1:9") is None and unusable_proxy("https://192.0.2.1") == "ALL_PROXY"
