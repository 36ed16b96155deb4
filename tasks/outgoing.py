"""HTTP clients of the services that carry messages: proxies and certificates as the machine has them."""

from __future__ import annotations

import ssl
from collections.abc import Iterator
from functools import cache
from http import HTTPStatus
from http.cookiejar import CookieJar, DefaultCookiePolicy
from typing import Any
from urllib.parse import urlsplit

from fedcore.errors import InputError
from tasks.proxies import leave_out_unusable_proxies, unusable_proxy

CONNECT = 5.0
"""Seconds within which a connection is made."""
SLOW = 60.0
"""Seconds without an answer after which a call fails."""
OCTETS = "application/octet-stream"
"""Content type of every message; a browser sends it across origins only after a preflight request."""
OWN = ("127.0.0.1", "localhost", "::1")
"""Names of this machine, which is called without a proxy."""


@cache
def client_of(address: str, key: str) -> Any:
    """The HTTP client of an address, one per process, with persistent connections. `key`: that names the address.

    Raises InputError if the environment names an unusable proxy for the address: to bypass it would expose the call
    to the network.
    """
    import httpx

    direct = urlsplit(address).hostname in OWN
    if not direct and (variable := unusable_proxy(address)) is not None:
        raise InputError(
            f"{key} = {address}: {variable} names a proxy that cannot be used (none of http:// or https://):"
            " give another, or list the host in NO_PROXY"
        )
    if not direct:
        leave_out_unusable_proxies()
    # The machine's own certificates, and those of SSL_CERT_FILE: an institution may have its own authority.
    known = ssl.create_default_context() if urlsplit(address).scheme == "https" else True
    timeout = httpx.Timeout(SLOW, connect=CONNECT)
    # Kept cookies would grow with every answer of a hostile service or proxy, and come back in every request.
    none = CookieJar(DefaultCookiePolicy(allowed_domains=()))
    return httpx.Client(base_url=address, timeout=timeout, trust_env=not direct, verify=known, cookies=none)


def fault(error: Exception) -> str:
    """Words for an error of a call that got no answer: a refused certificate, a proxy's refusal, or its type."""
    import httpx

    for each in _causes(error):
        if isinstance(each, ssl.SSLCertVerificationError):
            return f"its certificate is refused: {each.verify_message}; SSL_CERT_FILE names an authority of your own"
    if isinstance(error, httpx.ProxyError):
        return f"the proxy on the way: {str(error)[:80]}"
    return type(error).__name__


def status(number: int) -> str:
    """An HTTP status with its name: "502 (Bad Gateway)"."""
    try:
        return f"{number} ({HTTPStatus(number).phrase})"
    except ValueError:
        return str(number)


def _causes(error: BaseException | None) -> Iterator[BaseException]:
    while error is not None:
        yield error
        error = error.__cause__ or error.__context__
