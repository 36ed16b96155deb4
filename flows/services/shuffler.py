"""HTTP service of a shuffler: that of `fedcore shuffler`, or a run's own beside its driver.

The service reads each body up to a bound and rebuilds it from declared fields (`fedcore.shuffling.forms`). A refusal is
one sentence.
"""

from __future__ import annotations

import asyncio
import socket
import ssl
import sys
import threading
import time
from collections.abc import Callable
from ipaddress import ip_address
from pathlib import Path
from socket import getfqdn, gethostname
from typing import Any

from fastapi import FastAPI, Request, Response
from fastapi.concurrency import run_in_threadpool
from fastapi.responses import JSONResponse
from filelock import FileLock, Timeout

from fedcore.bounded_file import read_within
from fedcore.errors import BusyError, InputError
from fedcore.limits import LARGEST_KEY
from fedcore.process_start import begin
from fedcore.shuffling.batches import Batches
from fedcore.shuffling.forms import LARGEST_ENVELOPE, LARGEST_OPENING
from fedcore.shuffling.shuffler import Refused, Shuffler
from flows.services.door import Door, allowed_hosts
from flows.services.leases import ProcessId
from tasks.shuffling.calls import BODY

PATIENCE = 30.0
"""Seconds for a body to arrive."""
WAIT = 1.0
"""Most seconds that a server's request for a batch waits."""
POLL = 0.2
TAKE_OVER = 10.0
"""Seconds to wait for a folder that another shuffler holds: it may be about to end."""


async def _body(request: Request, most: int) -> bytes | None:
    """The request's body; None above `most` bytes. Raises TimeoutError if it is late or the sender disconnects."""
    parts, size = [], 0
    try:
        async with asyncio.timeout(PATIENCE):
            async for part in request.stream():
                size += len(part)
                if size > most:
                    return None
                parts.append(part)
    except Exception as error:  # from the connection: the content is not read yet
        raise TimeoutError from error
    return b"".join(parts)


def application(shuffler: Shuffler, longest: int = LARGEST_ENVELOPE) -> FastAPI:
    """The shuffler's HTTP interface. `longest`: most bytes of an envelope."""
    app = FastAPI(title="fedcore shuffler", openapi_url=None, docs_url=None, redoc_url=None)

    async def answered(request: Request, most: int, act: Callable[[bytes], bytes]) -> Response:
        try:
            body = await _body(request, most)
            if body is None:
                return _refusal(413, "long", f"it takes messages of at most {most} bytes")
            found = await run_in_threadpool(act, body)
        except Refused as error:
            return _refusal(409, error.code, error.sentence)
        except TimeoutError:
            return _refusal(408, "form", f"a message has {PATIENCE:g} s to arrive")
        return Response(found, media_type="application/octet-stream", status_code=200 if found else 204)

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


def _refusal(status: int, code: str, sentence: str) -> Response:
    printable = "".join(each if each.isprintable() else "?" for each in sentence[:600])
    return JSONResponse({"code": code, "sentence": printable}, status)


def listening(host: str, port: int) -> socket.socket:
    """A listening socket at this address. Raises InputError if the address cannot be used."""
    try:
        family = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0][0]
        found = socket.socket(family, socket.SOCK_STREAM)
        found.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        found.bind((host, port))
        found.listen(512)
    except (OSError, OverflowError) as error:
        raise InputError(f"--host {host} --port {port}: it cannot listen there ({error})") from None
    return found


def reaches_others(listening: socket.socket) -> bool:
    """True if the socket listens beyond loopback."""
    found = ip_address(listening.getsockname()[0].partition("%")[0])
    return not (getattr(found, "ipv4_mapped", None) or found).is_loopback


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
    import uvicorn

    if certificate is not None:
        try:
            ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER).load_cert_chain(*certificate)
        except (OSError, ssl.SSLError) as error:
            raise InputError(f"--certificate {certificate[0]}, --private-key {certificate[1]}: {error}") from None
    lock = _lock(folder)
    batches = Batches(folder / "batches.sqlite")
    try:
        options: dict[str, Any] = {}
        if certificate is not None:
            options = {"ssl_certfile": str(certificate[0]), "ssl_keyfile": str(certificate[1])}
        hosts = allowed_hosts(socket.getsockname()[1], (gethostname(), getfqdn()))
        # Callers are sites and servers of other machines; a round's batch goes to its own server only.
        app = Door(
            application(Shuffler(batches, least)), hosts=hosts, secret=secret, bodies=(BODY,), numeric=True, bearer=True
        )
        if ready is not None:
            ready()
        server = uvicorn.Server(
            uvicorn.Config(
                app,
                log_level="warning",
                access_log=False,
                timeout_graceful_shutdown=2,
                timeout_keep_alive=75,
                limit_concurrency=1024,
                proxy_headers=False,
                **options,
            )
        )
        if until is not None:
            threading.Thread(target=_end_with, args=(until, server), daemon=True).start()
        server.run(sockets=[socket])
    finally:
        batches.close()
        lock.release()


def _lock(folder: Path) -> FileLock:
    try:
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        lock = FileLock(folder / "lock")
        lock.acquire(timeout=TAKE_OVER)
    except Timeout:
        raise BusyError(f"{folder}: another shuffler keeps its batches there; end it, or name another folder") from None
    except OSError as error:
        raise InputError(f"--home {folder}: it cannot be written ({error.strerror})") from None
    return lock


def _end_with(process: ProcessId, server: Any) -> None:
    while process.alive():
        time.sleep(POLL)
    server.should_exit = True


def main(folder: str, descriptor: str, least: str, pid: str, start: str) -> None:
    """Serves on an inherited listening socket while the driver `pid`, `start` lives."""
    inherited = socket.socket(fileno=int(descriptor))
    inherited.set_inheritable(False)
    known = read_within(Path(folder) / "secret", LARGEST_KEY).decode()
    serve(Path(folder), inherited, int(least), until=ProcessId(int(pid), start), secret=known)


if __name__ == "__main__":
    begin()
    main(*sys.argv[1:])
