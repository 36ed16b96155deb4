"""HTTP service of a shuffler: that of `fedcore shuffler`, or a run's own beside its driver.

The service reads each body up to a bound and rebuilds it from declared fields (`fedcore.shuffling.forms`). A refusal is
one sentence.
"""

from __future__ import annotations

import socket
import sys
from collections.abc import Callable
from pathlib import Path
from socket import getfqdn, gethostname

from fastapi import FastAPI, Request, Response

from fedcore.bounded_file import read_within
from fedcore.limits import LARGEST_KEY
from fedcore.process_start import begin
from fedcore.shuffling.batches import Batches
from fedcore.shuffling.forms import LARGEST_ENVELOPE, LARGEST_OPENING
from fedcore.shuffling.shuffler import Shuffler
from flows.carriers import http
from flows.carriers.http import OCTETS, answered
from flows.services.door import Door, allowed_hosts
from flows.services.leases import ProcessId

WAIT = 1.0
"""Most seconds that a server's request for a batch waits."""


def application(shuffler: Shuffler, longest: int = LARGEST_ENVELOPE) -> FastAPI:
    """The shuffler's HTTP interface. `longest`: most bytes of an envelope."""
    app = FastAPI(title="fedcore shuffler", openapi_url=None, docs_url=None, redoc_url=None)

    def taken(body: bytes) -> bytes:
        shuffler.take(body)
        return b""

    @app.get("/health")
    async def health() -> dict[str, str]:
        return {"service": "fedcore shuffler"}

    @app.post("/open")
    async def open(request: Request) -> Response:
        return await answered(request, LARGEST_OPENING, lambda body: b"open" if shuffler.open(body) else b"committed")

    @app.post("/message")
    async def message(request: Request) -> Response:
        return await answered(request, longest, taken)

    @app.post("/batch")
    async def batch(request: Request) -> Response:
        return await answered(request, 2**12, lambda body: shuffler.batch(body, WAIT) or b"")

    return app


def serve(
    folder: Path,
    socket: socket.socket,
    least: int,
    certificate: tuple[Path, Path] | None = None,
    until: ProcessId | None = None,
    ready: Callable[[], None] | None = None,
    secret: str | None = None,
) -> None:
    """Serves the shuffler of `folder` until SIGTERM or the end of `until`; first calls `ready`.

    `secret`: required of callers; None: every caller that reaches the service is let in. `certificate`: files of a
    certificate and its private key; without them the service uses HTTP. Raises InputError or BusyError.
    """
    if certificate is not None:
        http.check_certificate(certificate)
    lock = http.locked(folder, "shuffler")
    batches = Batches(folder / "batches.sqlite")
    try:
        hosts = allowed_hosts(socket.getsockname()[1], (gethostname(), getfqdn()))
        # Callers are sites and servers of other machines; a round's batch goes to its own server only.
        app = application(Shuffler(batches, least))
        door = Door(app, hosts=hosts, secret=secret, bodies=(OCTETS,), numeric=True, bearer=True)
        http.serve(door, socket, certificate, until, ready)
    finally:
        batches.close()
        lock.release()


def main(folder: str, descriptor: str, least: str, pid: str, start: str) -> None:
    """Serves on an inherited listening socket while the driver `pid`, `start` lives."""
    inherited = socket.socket(fileno=int(descriptor))
    inherited.set_inheritable(False)
    known = read_within(Path(folder) / "secret", LARGEST_KEY).decode()
    serve(Path(folder), inherited, int(least), until=ProcessId(int(pid), start), secret=known)


if __name__ == "__main__":
    begin()
    main(*sys.argv[1:])
