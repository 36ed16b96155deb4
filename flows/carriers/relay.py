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
from fedcore.relay.relay import LARGEST_ACKNOWLEDGEMENT, Quotas, Relay
from fedcore.relay.sessions import FORM, LARGEST_CLAIM
from flows.carriers import http
from flows.carriers.arrivals import MOST_POLLS, Arrivals
from flows.carriers.connections import Bounds, Connections
from flows.carriers.http import OCTETS, answered, body_of, refusal
from flows.services.door import Door, allowed_hosts
from flows.services.leases import ProcessId
from tasks.relay.client import LARGEST_SIZES, PORTION, SESSION, joined, parted

WAIT = 25.0
"""Most seconds that a request for envelopes waits: proxies and load balancers end quiet connections after a minute."""
OF_COORDINATOR, OF_SILO = 2 * MOST_POLLS, 16
"""Connections at a time: each of a coordinator's runs leaves questions beside its poll, and a silo has one loop."""
LARGEST_NAME = 2**10
LIST = "members.json"


def bounds_of(quotas: Quotas) -> Callable[[str], Bounds]:
    """Bounds of each party's connections: two longest bodies of a silo, eight of the coordinator apart from these."""
    longest = LARGEST_SIZES + max(PORTION, quotas.one)

    def found(name: str) -> Bounds:
        of_coordinator = name == COORDINATOR
        return Bounds(OF_COORDINATOR, 8 * longest, apart=True) if of_coordinator else Bounds(OF_SILO, 2 * longest)

    return found


def application(
    relay: Relay,
    arrivals: Arrivals,
    renew: Callable[[bytes], None],
    wait: float = WAIT,
    connections: Connections | None = None,
) -> FastAPI:
    """The relay's HTTP interface. `renew`: takes a new list of members, signed by the coordinator.

    `connections`: the server's, which learn whose they are.
    """
    known = connections or Connections()

    @asynccontextmanager
    async def life(_: FastAPI) -> Any:
        arrivals.run_in(asyncio.get_running_loop())
        yield

    app = FastAPI(title="fedcore relay", openapi_url=None, docs_url=None, redoc_url=None, lifespan=life)

    def token(request: Request) -> str:
        return request.headers.get(SESSION, "")

    def party(request: Request) -> str:
        """The party whose session a request has. Raises Refused; called before a body is read."""
        try:
            name = relay.name(token(request))
        except Refused:
            known.belongs(request, "")
            raise
        known.belongs(request, name)
        return name

    async def of_party(
        request: Request, most: int, act: Callable[[bytes], bytes], check: Callable[[Request], object] = party
    ) -> Response:
        try:
            check(request)
        except Refused as error:
            return refusal(409, error.code, error.sentence)
        with known.body(request) as grows:
            return await answered(request, most, act, grows)

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

        return await of_party(request, relay.quotas.one, deposit)

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

        return await of_party(request, LARGEST_SIZES + max(PORTION, relay.quotas.one), deposit)

    @app.post("/collect")
    async def collect(request: Request) -> Response:
        try:
            name = party(request)
            with known.body(request) as grows:
                body = await body_of(request, LARGEST_NAME + LARGEST_ACKNOWLEDGEMENT, grows)
            if body is None:
                return refusal(413, "long", "a call for envelopes names a run, and acknowledges what was taken")
            about, _, taken_before = body.partition(b"\n")
            run = about.decode() or None
            if taken_before:
                await run_in_threadpool(relay.acknowledge, token(request), taken_before)
            known.check_room(request)  # answers that were not read yet
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

        return await of_party(request, LARGEST_ACKNOWLEDGEMENT, take)

    @app.post("/members")
    async def members(request: Request) -> Response:
        def renewed(body: bytes) -> bytes:
            renew(body)
            return b""

        def by_coordinator(request: Request) -> None:
            party(request)
            relay.check_coordinator(token(request))

        return await of_party(request, LARGEST_FILE, renewed, by_coordinator)

    @app.post("/seen")
    async def seen(request: Request) -> Response:
        try:
            party(request)
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

        connections = Connections(bounds_of(relay.quotas))
        app = application(relay, arrivals, renew, connections=connections)
        hosts = allowed_hosts(socket.getsockname()[1], (gethostname(), getfqdn(), *names))
        # No shared secret: a caller proves by a signature that it is a party, before it gets or leaves anything.
        door = Door(app, hosts=hosts, secret=None, bodies=(OCTETS,), numeric=True)
        http.serve(door, socket, certificate, until, ready, connections)
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
