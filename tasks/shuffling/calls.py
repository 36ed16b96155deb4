"""Calls to a shuffler over HTTP: a site sends envelopes, a server opens rounds and fetches batches."""

from __future__ import annotations

import ssl
import time
from functools import cache
from typing import Any
from urllib.parse import urlsplit

from fedcore.errors import InputError, ShufflerError
from fedcore.shuffling.forms import Opening, Request, SealedBatch
from fedcore.shuffling.shuffler import LATE, SILENT
from tasks.shuffling.proxies import leave_out_unusable_proxies, unusable_proxy

CONNECT = 5.0
"""Seconds within which a connection is made."""
BODY = "application/octet-stream"
"""Content type of every message; a browser sends it across origins only after a preflight request."""
SLOW = 60.0
"""Seconds without an answer after which a call to the shuffler fails."""
PAUSE = 0.1
"""Seconds between two attempts to reach it."""
OWN = ("127.0.0.1", "localhost", "::1")
"""Names of this machine, which is called without a proxy."""


@cache
def _client(address: str) -> Any:
    """The HTTP client of an address, one per process, with persistent connections.

    Raises InputError if the environment names an unusable proxy for the address: to bypass it would expose the call
    to the network.
    """
    import httpx

    direct = urlsplit(address).hostname in OWN
    if not direct and (variable := unusable_proxy(address)) is not None:
        raise InputError(
            f"shuffler.address = {address}: {variable} names a proxy that cannot be used (none of http:// or https://):"
            " give another, or list the shuffler's host in NO_PROXY"
        )
    if not direct:
        leave_out_unusable_proxies()
    # The machine's own certificates, and those of SSL_CERT_FILE: an institution may have its own authority.
    known = ssl.create_default_context() if urlsplit(address).scheme == "https" else True
    timeout = httpx.Timeout(SLOW, connect=CONNECT)
    return httpx.Client(base_url=address, timeout=timeout, trust_env=not direct, verify=known)


def carry(address: str, envelope: bytes, patience: float, secret: str = "") -> None:
    """Sends a silo's envelope to the shuffler; retries for `patience` seconds if that cannot be reached.

    `secret`: the shuffler's secret for its callers, empty if it has none. A late message is no error: its batch is
    committed, with it or without. Raises ShufflerError.
    """
    try:
        _post(address, "message", envelope, patience, secret)
    except ShufflerError as error:
        if error.code != LATE:
            raise


class Mailbox:
    """A server's client of the shuffler at `address`; `patience` (seconds) and `secret` as for `carry`."""

    def __init__(self, address: str, patience: float, secret: str = "") -> None:
        self.address, self._patience, self._secret = address, patience, secret

    def open(self, opening: Opening) -> bool:
        """`Shuffler.open`. Raises ShufflerError."""
        return _post(self.address, "open", opening.to_bytes(), self._patience, self._secret) != b"committed"

    def batch(self, request: Request) -> SealedBatch | None:
        """The batch; None if it was not there within a second. Raises ShufflerError, also for another round's."""
        data = _post(self.address, "batch", request.to_bytes(), self._patience, self._secret)
        if not data:
            return None
        try:
            found = SealedBatch.from_bytes(data)
        except ValueError:
            found = None
        if found is None or found.at != request.at:
            raise ShufflerError("answer", f"{self.address} sent something else than the batch of {request.at}")
        return found

    def end(self, request: Request) -> None:
        """Lets the shuffler delete the run's batches. Raises ShufflerError."""
        _post(self.address, "batch", request.to_bytes(), self._patience, self._secret)


def check_listening(address: str, secret: str = "") -> None:
    """Raises InputError unless a shuffler at this address accepts this secret."""
    import httpx

    refused, client = False, _client(address)
    try:
        found = client.get("/health", timeout=CONNECT, headers=_known(secret))
        if found.status_code == 200 and found.json().get("service") == "fedcore shuffler":
            return
        fault = "what answers there is no shuffler"
        refused = found.status_code == 401
    except ValueError:  # the body is no JSON
        fault = "what answers there is no shuffler"
    except httpx.HTTPError:
        fault = "nobody answers there"
    if refused:
        raise InputError(f"shuffler.address = {address}: {_unknown(secret)}")
    raise InputError(f"shuffler.address = {address}: {fault}; start one there with `fedcore shuffler`")


def _known(secret: str) -> dict[str, str]:
    return {"Authorization": f"Bearer {secret}"} if secret else {}


def _unknown(secret: str) -> str:
    """The reason, as a sentence, why a shuffler refuses a call with this secret."""
    found = "does not know the secret that it was told" if secret else "asks its callers for a secret"
    return f"the shuffler there {found}; set shuffler.secret to a file with the line of its --secret"


def _post(address: str, path: str, body: bytes, patience: float, secret: str) -> bytes:
    """The shuffler's answer. Raises ShufflerError, with its code, if it refuses or is not reached within `patience`."""
    import httpx

    headers, until = {"Content-Type": BODY, **_known(secret)}, time.monotonic() + patience
    while True:
        try:
            answer = _client(address).post(f"/{path}", content=body, headers=headers)
            break
        except httpx.HTTPError:
            if time.monotonic() >= until:
                raise ShufflerError(SILENT, f"none answers at {address}; it was tried for {patience:g} s") from None
            time.sleep(PAUSE)
    if answer.status_code in (200, 204):
        return bytes(answer.content)
    if answer.status_code == 401:
        raise ShufflerError("secret", f"{address}: {_unknown(secret)}")
    try:
        code, sentence = answer.json()["code"], answer.json()["sentence"]
        if type(code) is str and type(sentence) is str:
            raise ShufflerError(code, sentence)
    except (ValueError, KeyError, TypeError):
        pass
    raise ShufflerError("answer", f"{address} answered with status {answer.status_code}")
