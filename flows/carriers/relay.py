"""HTTP service of a relay (`fedcore.relay`): one port, which parties call."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from contextlib import asynccontextmanager
from pathlib import Path
from socket import getfqdn, gethostname, socket
from typing import Any

from fastapi import FastAPI, Request, Response
from fastapi.concurrency import run_in_threadpool

from fedcore.bounded_file import read_within
from fedcore.errors import InputError, Refused
from fedcore.identity.keys import PublicIdentity
from fedcore.identity.signed_file import LARGEST_FILE
from fedcore.ledger.anchor import write_whole
from fedcore.relay.mailboxes import Mailboxes
from fedcore.relay.members import COORDINATOR, Members
from fedcore.relay.relay import FULL, LARGEST_ACKNOWLEDGEMENT, Quotas, Relay
from fedcore.relay.sessions import FORM, LARGEST_CLAIM
from flows.carriers import http
from flows.carriers.http import OCTETS, answered, body_of, refusal
from flows.services.door import Door, allowed_hosts
from flows.services.leases import ProcessId
from tasks.relay.client import LARGEST_SIZES, PORTION, SESSION, joined, parted

WAIT = 25.0
"""Most seconds that a request for envelopes waits: proxies and load balancers end quiet connections after a minute."""
MOST_POLLS = 256
"""Requests of one party that wait at a time: each run of a coordinator has one."""
LARGEST_NAME = 2**10
LIST = "members.json"


class Arrivals:
    """Wakes the requests that wait for a party's envelopes; `arrived` may be called from any thread."""

    def __init__(self) -> None:
        self._loop: asyncio.AbstractEventLoop | None = None
        self._waiting: dict[str, set[asyncio.Event]] = {}

    def run_in(self, loop: asyncio.AbstractEventLoop) -> None:
        """Names the loop of the requests."""
        self._loop = loop

    def arrived(self, receiver: str) -> None:
        """Wakes those that wait for this receiver's envelopes."""
        if self._loop is not None:
            self._loop.call_soon_threadsafe(self._wake, receiver)

    def _wake(self, receiver: str) -> None:
        for event in self._waiting.get(receiver, ()):
            event.set()

    async def found(self, receiver: str, look: Callable[[], list[bytes]], seconds: float) -> list[bytes]:
        """The envelopes that `look` finds, at once or after an arrival within `seconds`."""
        event = asyncio.Event()
        waiting = self._waiting.setdefault(receiver, set())
        if len(waiting) >= MOST_POLLS:
            raise Refused(FULL, f"{MOST_POLLS} requests of {receiver} wait already")
        waiting.add(event)
        try:
            until = asyncio.get_running_loop().time() + seconds
            while True:
                event.clear()
                if found := await run_in_threadpool(look):
                    return found
                left = until - asyncio.get_running_loop().time()
                if left <= 0:
                    return []
                try:
                    await asyncio.wait_for(event.wait(), left)
                except TimeoutError:
                    return []
        finally:
            waiting.discard(event)
            if not waiting:
                del self._waiting[receiver]


def application(relay: Relay, arrivals: Arrivals, renew: Callable[[bytes], None], wait: float = WAIT) -> FastAPI:
    """The relay's HTTP interface. `renew`: takes a new list of members, signed by the coordinator."""

    @asynccontextmanager
    async def life(_: FastAPI) -> Any:
        arrivals.run_in(asyncio.get_running_loop())
        yield

    app = FastAPI(title="fedcore relay", openapi_url=None, docs_url=None, redoc_url=None, lifespan=life)

    def token(request: Request) -> str:
        return request.headers.get(SESSION, "")

    @app.get("/healthz")
    async def healthz() -> dict[str, str]:
        return {"service": "fedcore relay", "status": "ok"}

    @app.post("/challenge")
    async def challenge() -> Response:
        return Response(relay.challenge(), media_type=OCTETS)

    @app.post("/session")
    async def session(request: Request) -> Response:
        return await answered(request, LARGEST_CLAIM, lambda body: relay.session(body).encode())

    @app.post("/envelope")
    async def envelope(request: Request) -> Response:
        def deposit(body: bytes) -> bytes:
            relay.deposit(token(request), body)
            return b""

        try:  # before the body is read
            relay.name(token(request))
        except Refused as error:
            return refusal(409, error.code, error.sentence)
        return await answered(request, relay.quotas.one, deposit)

    @app.post("/envelopes")
    async def envelopes(request: Request) -> Response:
        def deposit(body: bytes) -> bytes:
            try:
                found = parted(body)
            except ValueError:
                raise Refused(FORM, "envelopes come with a line of their sizes") from None
            for each in found:
                relay.deposit(token(request), each)
            return b""

        try:
            relay.name(token(request))
        except Refused as error:
            return refusal(409, error.code, error.sentence)
        return await answered(request, LARGEST_SIZES + max(PORTION, relay.quotas.one), deposit)

    @app.post("/collect")
    async def collect(request: Request) -> Response:
        try:
            name, body = relay.name(token(request)), await body_of(request, LARGEST_NAME + LARGEST_ACKNOWLEDGEMENT)
            if body is None:
                return refusal(413, "long", "a call for envelopes names a run, and acknowledges what was taken")
            about, _, taken_before = body.partition(b"\n")
            run = about.decode() or None
            if taken_before:
                await run_in_threadpool(relay.acknowledge, token(request), taken_before)
            found = await arrivals.found(name, lambda: relay.collect(token(request), PORTION, run), wait)
        except Refused as error:
            return refusal(409, error.code, error.sentence)
        except (TimeoutError, UnicodeDecodeError):
            return refusal(408, "slow", "a run's name did not arrive")
        if not found:
            return Response(status_code=204)
        return Response(joined(found), media_type=OCTETS)

    @app.post("/taken")
    async def taken(request: Request) -> Response:
        def take(body: bytes) -> bytes:
            return str(relay.acknowledge(token(request), body)).encode()

        return await answered(request, LARGEST_ACKNOWLEDGEMENT, take)

    @app.post("/members")
    async def members(request: Request) -> Response:
        def renewed(body: bytes) -> bytes:
            renew(body)
            return b""

        try:
            relay.check_coordinator(token(request))
        except Refused as error:
            return refusal(409, error.code, error.sentence)
        return await answered(request, LARGEST_FILE, renewed)

    @app.post("/seen")
    async def seen(request: Request) -> Response:
        try:
            found = await run_in_threadpool(relay.seen, token(request))
        except Refused as error:
            return refusal(409, error.code, error.sentence)
        listed = {name: [each.ago, each.waiting] for name, each in found.items()}
        return Response(json.dumps(listed), media_type="application/json")

    return app


def serve(
    folder: Path,
    socket: socket,
    coordinator: PublicIdentity,
    federation: str,
    names: tuple[str, ...] = (),
    quotas: Quotas | None = None,
    certificate: tuple[Path, Path] | None = None,
    until: ProcessId | None = None,
    ready: Callable[[], None] | None = None,
) -> None:
    """Serves the relay of `folder`, which keeps the newest list of members, until SIGTERM or the end of `until`.

    `names`: under which parties call it, beside this machine's. Raises InputError or BusyError.
    """
    if certificate is not None:
        http.check_certificate(certificate)
    lock = http.locked(folder, "relay")
    arrivals = Arrivals()
    mailboxes = Mailboxes(folder / "envelopes.sqlite")
    try:
        path = folder / LIST
        # Before the coordinator has sent a list, it is the only party.
        members = Members(federation, 0, {COORDINATOR: coordinator})
        if path.exists():
            members = Members.of_text(_read(path), str(path), coordinator, federation)
        relay = Relay(mailboxes, members, quotas, arrivals.arrived)

        def renew(text: bytes) -> None:
            try:
                found = Members.of_text(text, "the list", coordinator, federation)
            except InputError as error:
                raise Refused("form", str(error)) from None
            relay.serve(found, lambda: store_list(folder, text))

        app = application(relay, arrivals, renew)
        hosts = allowed_hosts(socket.getsockname()[1], (gethostname(), getfqdn(), *names))
        # No shared secret: a caller proves by a signature that it is a party, before it gets or leaves anything.
        door = Door(app, hosts=hosts, secret=None, bodies=(OCTETS,), numeric=True)
        http.serve(door, socket, certificate, until, ready)
    finally:
        mailboxes.close()
        lock.release()


def store_list(folder: Path, text: bytes) -> None:
    """Writes the list of members that a relay of this folder serves. Raises InputError."""
    try:
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        write_whole(folder / LIST, text)
    except OSError as error:
        raise InputError(f"{folder}: the list of members cannot be written ({error.strerror})") from None


def _read(path: Path) -> bytes:
    try:
        return read_within(path, LARGEST_FILE)
    except OSError as error:
        raise InputError(f"{path}: the list of members cannot be read ({error.strerror})") from None
