"""Calls to a shuffler over HTTP: a site sends envelopes, a server opens rounds and fetches batches."""

from __future__ import annotations

import time

from fedcore.errors import InputError, ShufflerError
from fedcore.shuffling.forms import Opening, Request, SealedBatch
from fedcore.shuffling.shuffler import LATE, SILENT
from tasks.outgoing import CONNECT, OCTETS, client_of

KEY = "shuffler.address"
"""Key of a config that names a shuffler."""
PAUSE = 0.1
"""Seconds between two attempts to reach it."""


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

    refused, client = False, client_of(address, KEY)
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

    headers, until = {"Content-Type": OCTETS, **_known(secret)}, time.monotonic() + patience
    while True:
        try:
            answer = client_of(address, KEY).post(f"/{path}", content=body, headers=headers)
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
