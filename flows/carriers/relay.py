"""HTTP service of a relay (`fedcore.relay`): one port, which parties call."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from contextlib import asynccontextmanager
from functools import partial
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
from fedcore.relay.acknowledgements import LARGEST_ACKNOWLEDGEMENT
from fedcore.relay.mailboxes import MOST_FOUND, Mailboxes
from fedcore.relay.members import COORDINATOR, Members
from fedcore.relay.relay import Quotas, Relay
from fedcore.relay.sessions import FORM, LARGEST_CLAIM
from flows.carriers import http
from flows.carriers.arrivals import MOST_POLLS, Arrivals
from flows.carriers.connections import Bounds, Connections
from flows.carriers.http import OCTETS, answered, body_of, refusal
from flows.services.door import Door, allowed_hosts
from flows.services.leases import ProcessId
from tasks.relay.client import EXPECTED, LARGEST_SIZES, PORTION, SESSION, joined, parted

WAIT = 25.0
"""Most seconds that a request for envelopes waits: proxies and load balancers end quiet connections after a minute."""
QUICK = 2**16
"""Bytes of a body that is worked on between two requests, in less time than a change of threads takes."""
OF_COORDINATOR, OF_SILO = 2 * MOST_POLLS, 16
"""Connections at a time: each of a coordinator's runs leaves questions beside its poll, and a silo has one loop."""
LARGEST_NAME = 2**10
LIST = "members.json"


def bounds_of(quotas: Quotas) -> Callable[[str], Bounds]:
    """Bounds of each party's connections: two longest bodies of a silo, eight of the coordinator apart from these."""
    longest = _longest_call(quotas)

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
        request: Request,
        most: int,
        act: Callable[[bytes], bytes],
        check: Callable[[Request], object] = party,
        quick: int = -1,
    ) -> Response:
        try:
            check(request)
        except Refused as error:
            return refusal(409, error.code, error.sentence)
        with known.body(request) as grows:
            return await answered(request, most, act, grows, quick)

    @app.get("/healthz")
    async def healthz() -> dict[str, str]:
        return {"service": "fedcore relay", "status": "ok"}

    @app.post("/challenge")
    async def challenge() -> Response:
        return Response(relay.challenge(), media_type=OCTETS)

    @app.post("/session")
    async def session(request: Request) -> Response:
        return await answered(request, LARGEST_CLAIM, lambda body: relay.session(body).encode())

    async def deposited(request: Request, most: int, act: Callable[[bytes], None]) -> Response:
        def done(body: bytes) -> bytes:
            act(body)
            return b""

        return await of_party(request, most, done, quick=QUICK)

    async def envelope(request: Request) -> Response:
        return await deposited(request, relay.quotas.one, lambda body: relay.deposit(token(request), body))

    async def envelopes(request: Request) -> Response:
        return await deposited(request, longest, lambda body: relay.deposit_all(token(request), parted_of(body)))

    async def begun(request: Request) -> str | None:
        """Leaves and acknowledges what a call for envelopes brings; returns its run. None: its body is too long.

        The body is in memory for no longer than this takes, and the call then waits without it.
        """
        with known.body(request) as grows:
            if (body := await body_of(request, most_called, grows)) is None:
                return None
            about, taken_before, left = [*body.split(b"\n", 2), b"", b""][:3]
            run = about.decode()

            def first() -> None:
                if left:
                    relay.deposit_all(token(request), parted_of(left))
                if taken_before:
                    relay.acknowledge(token(request), taken_before)

            if len(body) <= QUICK:
                first()
            else:
                await run_in_threadpool(first)
            return run

    async def collect(request: Request) -> Response:
        """Leaves envelopes, then acknowledges others, then waits for some: each may be missing."""
        try:
            name, expected = party(request), expected_by(request)
            if (run := await begun(request)) is None:
                return refusal(413, "long", "a call for envelopes names a run, acknowledges, and leaves envelopes")
            known.check_room(request)  # answers that were not read yet
            look = partial(relay.collect, token(request), PORTION, run or None)
            found = await arrivals.found(name, look, wait, expected)
        except Refused as error:
            return refusal(409, error.code, error.sentence)
        except (TimeoutError, UnicodeDecodeError):
            return refusal(408, "slow", "a run's name did not arrive")
        if not found:
            return Response(status_code=204)
        return Response(joined(found), media_type=OCTETS)

    longest, most_called = _longest(relay.quotas), _longest_call(relay.quotas)
    for path, act in (("/envelope", envelope), ("/envelopes", envelopes), ("/collect", collect)):
        app.add_route(path, act, methods=["POST"])  # without FastAPI's reading of arguments

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


def parted_of(body: bytes) -> list[bytes]:
    """The envelopes of a body. Raises Refused for other bytes."""
    try:
        return parted(body)
    except ValueError:
        raise Refused(FORM, "envelopes come with a line of their sizes") from None


def expected_by(request: Request) -> int:
    """Number of envelopes that a caller expects; 1 unless it names another one in bounds."""
    named = request.headers.get(EXPECTED, "")
    number = int(named) if named.isascii() and named.isdigit() and len(named) < 8 else 1
    return min(max(1, number), MOST_FOUND)


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


def _longest(quotas: Quotas) -> int:
    """Bytes of the longest body of envelopes."""
    return LARGEST_SIZES + max(PORTION, quotas.one)


def _longest_call(quotas: Quotas) -> int:
    """Bytes of the longest call for envelopes, which leaves some."""
    return LARGEST_NAME + LARGEST_ACKNOWLEDGEMENT + _longest(quotas)


def _read(path: Path) -> bytes:
    try:
        return read_within(path, LARGEST_FILE)
    except OSError as error:
        raise InputError(f"{path}: the list of members cannot be read ({error.strerror})") from None
