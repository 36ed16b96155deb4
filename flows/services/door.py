"""Access check of all HTTP services: hosts, origins, secrets and content types of requests.

A web page reaches a service on loopback through its visitor's browser: by a name that it rebinds to 127.0.0.1, or by a
form. The first shows in `Host`, the second in `Origin`, `Sec-Fetch-Site` and a body's content type. A page of another
site cannot set the type to JSON without a preflight request. Another account of the machine can forge all headers, but
does not have the secret.
"""

from __future__ import annotations

import hmac
import json
import os
import re
from collections.abc import Awaitable, Callable, Iterable, MutableMapping
from ipaddress import ip_address
from typing import Any

from fedcore.errors import InputError
from flows.services.secret import basic

HOSTS = "FEDCORE_HOSTS"
"""Variable with additional host names, separated by commas, with a port or without."""
LOOPBACK = ("127.0.0.1", "localhost", "[::1]")
JSON = "application/json"
_HOST = re.compile(r"(?:[a-z0-9._-]+|\[[0-9a-f:.]+\])(?::[0-9]{1,5})?")

_BASIC = (
    b'Basic realm="fedcore", charset="UTF-8"',
    "user name and password are missing or wrong; `fedcore password` shows them",
)
_BEARER = (b'Bearer realm="fedcore"', "the secret of its callers is missing or wrong")

Scope = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[MutableMapping[str, Any]]]
Send = Callable[[MutableMapping[str, Any]], Awaitable[None]]
Application = Callable[[Scope, Receive, Send], Awaitable[None]]
Headers = dict[bytes, list[str]]

_ADDED_HEADERS = (
    (b"x-frame-options", b"SAMEORIGIN"),
    (b"x-content-type-options", b"nosniff"),
    (b"cross-origin-resource-policy", b"same-origin"),
)
"""Headers of every response, unless the service sets them, against frames in other sites' pages."""


def added_hosts() -> list[str]:
    """Host names from the variable `HOSTS`, in lower case. Raises InputError for an invalid name."""
    names = [name.strip().lower() for name in os.environ.get(HOSTS, "").split(",")]
    for name in filter(None, names):
        if _HOST.fullmatch(name) is None:
            raise InputError(f"{HOSTS}: {name!r} is no host, as gate.example or gate.example:8443, and no wildcard is")
    return [name for name in names if name]


def allowed_hosts(port: int, more: Iterable[str] = ()) -> frozenset[str]:
    """Values of `Host` for a service at this port: loopback's, `more`, and those of `added_hosts`."""
    named = [*more, *added_hosts()]
    own = {f"{name}:{port}" for name in (*LOOPBACK, *named) if re.search(r":[0-9]+$", name) is None}
    return frozenset(own | set(named))


class RefusedError(Exception):
    """A refused request: HTTP status and a sentence for the response."""

    def __init__(self, status: int, sentence: str) -> None:
        super().__init__(sentence)
        self.status, self.sentence = status, sentence


class Door:
    """An ASGI application behind the access check, for requests and WebSockets.

    `secret`: required of callers by HTTP Basic on every path; None: every caller that reaches the service is let in.
    `bearer`: the secret is a bearer token (RFC 6750), so that no browser asks for it.
    `bodies`: content types beside JSON that the service's clients send; none that a page sends without a preflight.
    `numeric`: accepts any IP address as `Host`: rebinding needs a name.
    """

    def __init__(
        self,
        app: Application,
        *,
        hosts: Iterable[str],
        secret: str | None,
        bodies: Iterable[str] = (),
        numeric: bool = False,
        bearer: bool = False,
    ) -> None:
        self._app, self._hosts, self._bodies = app, frozenset(hosts), frozenset({JSON, *bodies})
        self._numeric = numeric
        self._expected = None if secret is None else (f"Bearer {secret}" if bearer else basic(secret)).encode()
        self._scheme, self._unauthorized = _BEARER if bearer else _BASIC

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan":
            await self._app(scope, receive, send)
            return
        try:
            self._check(scope)
        except RefusedError as refused:
            await _refuse(scope, send, refused, self._scheme)
            return
        # The service does not need the secret; without it, no log of the service can contain it.
        passed = [each for each in scope["headers"] if each[0].lower() != b"authorization"]
        await self._app({**scope, "headers": passed}, receive, _with_headers(send))

    def _check(self, scope: Scope) -> None:
        """Raises RefusedError for a wrong host, page, secret or content type."""
        headers = _headers(scope)
        host = _one(headers, b"host").lower()
        if host not in self._hosts and not (self._numeric and _is_number(host)):
            raise RefusedError(403, f"Host is not a name of this service; {HOSTS} adds names")
        self._check_page(scope, headers, host)
        if self._expected is not None:
            given = _one(headers, b"authorization").encode("latin-1")
            if not hmac.compare_digest(given, self._expected):
                raise RefusedError(401, self._unauthorized)
        if scope["type"] == "http":
            self._check_body(scope["method"], headers)

    def _check_page(self, scope: Scope, headers: Headers, host: str) -> None:
        for origin in headers.get(b"origin", ()):
            if origin.lower() not in (f"http://{host}", f"https://{host}"):
                raise RefusedError(403, "Origin is another site's page")
        if _first(headers, b"sec-fetch-site") in ("", "same-origin", "none"):
            return
        # Another site's page may link to the service, and do nothing more.
        mode, target = _first(headers, b"sec-fetch-mode"), _first(headers, b"sec-fetch-dest")
        if scope["type"] != "http" or scope["method"] != "GET" or (mode, target) != ("navigate", "document"):
            raise RefusedError(403, "Sec-Fetch-Site: another site's page asks")

    def _check_body(self, method: str, headers: Headers) -> None:
        if method in ("GET", "HEAD", "OPTIONS"):
            return
        if b"transfer-encoding" not in headers and _first(headers, b"content-length") in ("", "0"):
            return
        kind = _one(headers, b"content-type").partition(";")[0].strip().lower()
        if kind not in self._bodies:
            raise RefusedError(415, f"Content-Type must be {' or '.join(sorted(self._bodies))}")


def _is_number(host: str) -> bool:
    """True for an IP address, with a port or without."""
    bare = re.sub(r":[0-9]{1,5}$", "", host) if host.count(":") == 1 or "]" in host else host
    try:
        ip_address(bare.removeprefix("[").removesuffix("]"))
    except ValueError:
        return False
    return True


def _headers(scope: Scope) -> Headers:
    found: Headers = {}
    for name, value in scope["headers"]:
        found.setdefault(name.lower(), []).append(value.decode("latin-1").strip())
    return found


def _first(headers: Headers, name: bytes) -> str:
    return headers.get(name, [""])[0]


def _one(headers: Headers, name: bytes) -> str:
    """Value of a header that occurs once; else empty, because programs may read different ones."""
    found = headers.get(name, ())
    return found[0] if len(found) == 1 else ""


def _with_headers(send: Send) -> Send:
    async def sent(message: MutableMapping[str, Any]) -> None:
        if message["type"] == "http.response.start":
            own = list(message.get("headers", ()))
            names = {name.lower() for name, _ in own}
            message = {**message, "headers": own + [each for each in _ADDED_HEADERS if each[0] not in names]}
        await send(message)

    return sent


async def _refuse(scope: Scope, send: Send, refused: RefusedError, scheme: bytes) -> None:
    if scope["type"] == "websocket":
        await send({"type": "websocket.close", "code": 1008})  # before it is accepted: the handshake fails with 403
        return
    body = json.dumps({"detail": refused.sentence}).encode()
    headers = [(b"content-type", JSON.encode()), (b"content-length", b"%d" % len(body)), (b"connection", b"close")]
    if refused.status == 401:
        headers.append((b"www-authenticate", scheme))
    await send({"type": "http.response.start", "status": refused.status, "headers": headers})
    await send({"type": "http.response.body", "body": b"" if scope["method"] == "HEAD" else body})
