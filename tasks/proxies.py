"""Removal of unusable proxies from the environment, for processes that call only this machine.

httpx builds a client with all proxies that the environment names. It fails if one is no address, or is a SOCKS proxy
whose package is missing. It fails even for a client that would use no proxy, such as Prefect's of our own server.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from urllib.parse import urlsplit
from urllib.request import proxy_bypass

LEFT_OUT = "FEDCORE_PROXIES_LEFT_OUT"
"""Variable with the names of the removed variables, for child processes: calls to other machines are refused then."""
_NAMES = ("http_proxy", "https_proxy", "all_proxy", "HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY")


def with_usable_proxies(environment: Mapping[str, str]) -> dict[str, str]:
    """The environment without the proxies that cannot be used, and with their variables' names in `LEFT_OUT`."""
    wrong = [name for name in _NAMES if environment.get(name) and not _is_usable(environment[name])]
    if not wrong:
        return dict(environment)
    known = [name for name in environment.get(LEFT_OUT, "").split(",") if name]
    usable = {name: value for name, value in environment.items() if name not in wrong}
    return usable | {LEFT_OUT: ",".join(dict.fromkeys([*known, *wrong]))}


def leave_out_unusable_proxies() -> None:
    """Applies `with_usable_proxies` to this process's environment."""
    usable = with_usable_proxies(os.environ)
    for name in set(os.environ) - set(usable):
        del os.environ[name]
    os.environ.update(usable)


def unusable_proxy(address: str) -> str | None:
    """The variable that names an unusable proxy for this address; None if there is none."""
    parts = urlsplit(address)
    if parts.hostname and proxy_bypass(parts.hostname):
        return None
    left_out = os.environ.get(LEFT_OUT, "").split(",")
    for scheme in (parts.scheme, "all"):
        for name in (f"{scheme}_proxy", f"{scheme}_proxy".upper()):
            if name in left_out or (os.environ.get(name) and not _is_usable(os.environ[name])):
                return name
            if os.environ.get(name):
                return None
    return None


def _is_usable(proxy: str) -> bool:
    import httpx

    try:
        httpx.Client(proxy=proxy if "://" in proxy else f"http://{proxy}", trust_env=False, verify=False).close()
    except (ImportError, ValueError, httpx.InvalidURL):
        return False
    return True
