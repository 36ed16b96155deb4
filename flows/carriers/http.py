"""The HTTP code that a shuffler and a relay share: bounded bodies, refusals, the socket, and the server's life."""

from __future__ import annotations

import asyncio
import socket
import ssl
import threading
import time
from collections.abc import Callable
from ipaddress import ip_address
from pathlib import Path
from typing import Any

import uvicorn
from fastapi import Request, Response
from fastapi.concurrency import run_in_threadpool
from fastapi.responses import JSONResponse
from filelock import FileLock, Timeout

from fedcore.errors import BusyError, InputError, Refused
from fedcore.process.open_files import make_room
from flows.carriers.connections import KEPT, LONGEST_HEAD, PATIENCE, RATE, Connections
from flows.services.door import Door
from flows.services.leases import ProcessId

POLL = 0.2
TAKE_OVER = 10.0
"""Seconds to wait for a folder that another process holds: it may be about to end."""
LEAST_CONNECTIONS = 64
QUEUED, AT_ONCE = 512, 16
"""Connections that wait to be accepted, and those accepted in one turn of the loop.

A displaced one is closed four turns after another was accepted: these hold 64 of the 128 files in reserve.
"""
OCTETS = "application/octet-stream"


async def body_of(request: Request, most: int, grows: Callable[[int], None] = lambda size: None) -> bytes | None:
    """The request's body; None above `most` bytes. Raises TimeoutError if it is late or the sender disconnects.

    `grows`: takes the bytes so far, and may raise Refused.
    """
    parts, size = [], 0
    try:
        began = asyncio.get_running_loop().time()
        async with asyncio.timeout(PATIENCE) as limit:
            async for part in request.stream():
                size += len(part)
                limit.reschedule(began + PATIENCE + size / RATE)
                if size > most:
                    return None
                grows(size)
                parts.append(part)
    except Refused:
        raise
    except Exception as error:  # from the connection: the content is not read yet
        raise TimeoutError from error
    return b"".join(parts)


async def answered(
    request: Request,
    most: int,
    act: Callable[[bytes], bytes],
    grows: Callable[[int], None] = lambda size: None,
    quick: int = -1,
) -> Response:
    """The response to a body of at most `most` bytes, by `act` in a thread, which may raise `Refused`.

    `grows`: as for `body_of`. `quick`: bytes up to which `act` waits for nothing and takes less time than a change of
    threads.
    """
    try:
        body = await body_of(request, most, grows)
        if body is None:
            return refusal(413, "long", f"it takes messages of at most {most} bytes")
        found = act(body) if len(body) <= quick else await run_in_threadpool(act, body)
    except Refused as error:
        return refusal(409, error.code, error.sentence)
    except TimeoutError:
        return refusal(408, "slow", f"a message has {PATIENCE:g} s to arrive, and a second for each {RATE} bytes")
    return Response(found, media_type=OCTETS, status_code=200 if found else 204)


def refusal(status: int, code: str, sentence: str) -> Response:
    """A refusal as JSON, with its sentence made printable."""
    printable = "".join(each if each.isprintable() else "?" for each in sentence[:600])
    return JSONResponse({"code": code, "sentence": printable}, status)


def listening(host: str, port: int) -> socket.socket:
    """A listening socket at this address. Raises InputError if the address cannot be used."""
    try:
        family = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0][0]
        found = socket.socket(family, socket.SOCK_STREAM)
        found.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        # Connections inherit it. asyncio sets it for sockets made with this protocol's number only, and a small answer
        # would wait for 40 ms.
        found.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        found.bind((host, port))
        found.listen(QUEUED)
    except (OSError, OverflowError) as error:
        raise InputError(f"--host {host} --port {port}: it cannot listen there ({error})") from None
    return found


def reaches_others(listening: socket.socket) -> bool:
    """True if the socket listens beyond loopback."""
    found = ip_address(listening.getsockname()[0].partition("%")[0])
    return not (getattr(found, "ipv4_mapped", None) or found).is_loopback


def check_certificate(certificate: tuple[Path, Path]) -> None:
    """Raises InputError unless the files are a certificate and its key."""
    try:
        ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER).load_cert_chain(*certificate)
    except (OSError, ssl.SSLError) as error:
        raise InputError(f"--certificate {certificate[0]}, --private-key {certificate[1]}: {error}") from None


def serve(
    app: Door,
    socket: socket.socket,
    certificate: tuple[Path, Path] | None = None,
    until: ProcessId | None = None,
    ready: Callable[[], None] | None = None,
    connections: Connections | None = None,
) -> None:
    """Serves until SIGTERM or the end of `until`; first calls `ready`.

    `certificate`: files of a certificate and its private key, which `check_certificate` has seen; without them the
    service uses HTTP. `connections`: bounds them; None: as for callers that are all strangers.
    """
    bounded = connections or Connections()
    if (short := make_room(bounded.most)) is not None:  # the operator allows fewer files
        needed, limit = short
        bounded.most = max(LEAST_CONNECTIONS, bounded.most - (needed - limit))
    options: dict[str, Any] = {}
    if certificate is not None:
        options = {"ssl_certfile": str(certificate[0]), "ssl_keyfile": str(certificate[1])}
    if ready is not None:
        ready()
    server = _Server(
        uvicorn.Config(
            app,
            log_level="warning",
            access_log=False,
            timeout_graceful_shutdown=2,
            timeout_keep_alive=int(KEPT),
            http=bounded.protocol,  # type: ignore[arg-type]
            ws="none",
            h11_max_incomplete_event_size=LONGEST_HEAD,
            backlog=AT_ONCE,
            proxy_headers=False,
            **options,
        )
    )
    if until is not None:
        threading.Thread(target=_end_with, args=(until, server), daemon=True).start()
    server.run(sockets=[socket])


def locked(folder: Path, what: str) -> FileLock:
    """The lock of a service's folder, which is made. `what`: the service. Raises InputError or BusyError."""
    try:
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        lock = FileLock(folder / "lock")
        lock.acquire(timeout=TAKE_OVER)
    except Timeout:
        raise BusyError(f"{folder}: another {what} keeps its files there; end it, or name another folder") from None
    except OSError as error:
        raise InputError(f"--home {folder}: it cannot be written ({error.strerror})") from None
    return lock


class _Server(uvicorn.Server):
    """A server that accepts few connections at once from a long queue; asyncio has one number for both."""

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        for each in sockets or ():
            each.listen(QUEUED)


def _end_with(process: ProcessId, server: Any) -> None:
    while process.alive():
        time.sleep(POLL)
    server.should_exit = True
