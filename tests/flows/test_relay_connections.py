"""Connections that hang at a relay: idle ones, slow heads, slow bodies, slow readers; an honest silo is served."""

from __future__ import annotations

import contextlib
import resource
import select
import socket
import threading
import time
from collections.abc import Iterator
from urllib.parse import urlsplit

import pytest

from fedcore.home import Home
from fedcore.identity.envelope import Envelope, Heading
from fedcore.relay.members import COORDINATOR
from fedcore.remote.membership import Membership
from flows.carriers import connections, relay
from flows.carriers.connections import Bounds, Connections
from flows.carriers.relay import OF_SILO, store_list
from tasks.relay.client import RelayClient
from tasks.relay.federation import Federation
from tests.fedcore.relay.conftest import envelope, listed
from tests.flows.federations.parties import Heart
from tests.flows.test_relay import CHIEF, client, served
from tests.patience import HANGS, SLOWNESS

pytestmark = pytest.mark.slow
POST = b"POST /%s HTTP/1.1\r\nHost: %s\r\nContent-Type: application/octet-stream\r\nContent-Length: %d\r\n%s\r\n"
MANY, FILES = 200, 512


def head(address: str, path: str, size: int, token: str = "") -> bytes:
    session = f"fedcore-session: {token}\r\n".encode() if token else b""
    return POST % (path.encode(), urlsplit(address).netloc.encode(), size, session)


@contextlib.contextmanager
def opened(address: str, count: int, first: bytes = b"", buffer: int = 0) -> Iterator[list[socket.socket]]:
    """Connections to a service, each after it has sent `first`. `buffer`: bytes that its kernel reads ahead."""
    parts = urlsplit(address)
    with contextlib.ExitStack() as stack:
        made = []
        for _ in range(count):
            found = stack.enter_context(socket.socket())
            if buffer:
                found.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, buffer)
            found.connect((parts.hostname, parts.port))
            found.sendall(first)
            made.append(found)
        yield made


def ended(connection: socket.socket) -> bool:
    """True if the other side has ended the connection; reads what came before."""
    try:
        while select.select([connection], [], [], 0)[0]:
            if not connection.recv(2**16):
                return True
    except ConnectionError:
        return True
    return False


def wait_until(true, seconds: float = HANGS) -> float:
    """Seconds until it is true."""
    began = time.monotonic()
    while not true():
        assert time.monotonic() - began < seconds
        time.sleep(0.02)
    return time.monotonic() - began


def crosses(address: str, number: int) -> float:
    """Seconds that a new pair of clients takes for an envelope, sessions and connections included."""
    began = time.monotonic()
    data = envelope(COORDINATOR, "cleveland", number, run=f"run-{number}")
    client(address, COORDINATOR).deposit(data)
    receiver = client(address, "cleveland")
    assert receiver.collect(f"run-{number}") == [data]
    receiver.taken([data])
    receiver.flush()
    return time.monotonic() - began


@pytest.fixture
def quick(monkeypatch):
    """Seconds in place of minutes."""
    monkeypatch.setattr(connections, "FIRST", 1.0)
    monkeypatch.setattr(connections, "KEPT", 2.0)
    monkeypatch.setattr(connections, "PATIENCE", 1.0)
    monkeypatch.setattr("flows.carriers.http.PATIENCE", 1.0)
    monkeypatch.setattr(connections, "LOOK", 0.1)


@contextlib.contextmanager
def relayed(tmp_path, monkeypatch, bounds: Bounds | None = None, **options) -> Iterator[str]:
    """Address of a relay with other bounds of a silo, or of all connections together."""
    if bounds is not None:
        usual = relay.bounds_of
        monkeypatch.setattr(relay, "bounds_of", lambda quotas: lambda name: (
            usual(quotas)(name) if name == COORDINATOR else bounds
        ))  # fmt: skip
    monkeypatch.setattr(relay, "Connections", lambda of: Connections(of, **options))
    store_list(tmp_path, listed().text(CHIEF).encode())
    with served(tmp_path) as address:
        yield address


def test_an_honest_silo_is_served_while_a_thousand_connections_hang(tmp_path):
    """The relay is the command's process, on a system that allows it fewer files than there are connections."""
    heart = Heart(tmp_path)
    try:
        heart.carry(lambda: resource.setrlimit(resource.RLIMIT_NOFILE, (FILES, FILES)))
        heart.join("cleveland")
        address = f"http://127.0.0.1:{heart.port}"
        federation = Federation.of(Home(heart.coordinator.folder / "home"), "heart")
        silo = Membership.of(Home(heart.silos["cleveland"].folder / "home"), "cleveland")
        id = federation.invitation.federation
        with (
            opened(address, FILES),
            opened(address, MANY, b"POST /session HTTP/1.1\r\nHo"),
            opened(address, MANY, head(address, "session", 900) + b"x"),
            opened(address, MANY, head(address, "envelope", 2**26, "f" * 64) + b"x" * 2000),
        ):
            began = time.monotonic()
            heading = Heading(id, COORDINATOR, "cleveland", "run", int(time.time() * 1e6))
            data = Envelope.made(heading, federation.identity, silo.identity.public, b"question").to_bytes()
            RelayClient(address, id, COORDINATOR, federation.identity).deposit(data)
            receiver = RelayClient(address, id, "cleveland", silo.identity)
            assert receiver.collect() == [data]
            receiver.taken([data])
            receiver.flush()
            assert time.monotonic() - began < 5 * SLOWNESS  # the hanging ones are let go after 10 s at the earliest
        assert heart.processes["relay"].poll() is None and "Traceback" not in heart.relay.log("relay")
    finally:
        heart.close()


def test_connections_without_a_whole_head_end_though_single_bytes_come(tmp_path, monkeypatch, quick):
    with relayed(tmp_path, monkeypatch) as address, opened(address, 3) as idle, opened(address, 3, b"POST /") as slow:

        def all_ended() -> bool:
            for each in slow:
                with contextlib.suppress(OSError):
                    each.send(b"x")
            return all(map(ended, [*idle, *slow]))

        assert wait_until(all_ended, 20 * SLOWNESS) >= 0.5
        assert crosses(address, 1) < 10 * SLOWNESS


def test_a_body_after_its_answer_and_an_idle_line_after_a_request_end_too(tmp_path, monkeypatch, quick):
    with relayed(tmp_path, monkeypatch) as address:
        refused = head(address, "envelope", 2**20) + b"x" * 100
        with opened(address, 2, refused) as early, opened(address, 2, head(address, "challenge", 0)) as kept:

            def all_ended() -> bool:
                for each in early:
                    with contextlib.suppress(OSError):
                        each.send(b"x")
                return all(map(ended, [*early, *kept]))

            assert wait_until(all_ended, 20 * SLOWNESS) >= 1.0


def test_a_body_that_stops_is_refused_as_slow(tmp_path, monkeypatch, quick):
    with relayed(tmp_path, monkeypatch) as address:
        zurich = client(address, "zurich")
        zurich.flush()
        zurich._token = zurich._opened()
        for path, token in (("session", ""), ("taken", zurich._token), ("envelope", zurich._token)):
            with opened(address, 1, head(address, path, 900, token) + b"x") as (one,):
                one.settimeout(20 * SLOWNESS)
                assert b"408" in one.recv(2**12)


def test_strangers_displace_each_other_and_no_party(tmp_path, monkeypatch):
    with relayed(tmp_path, monkeypatch, most=20) as address:
        request = head(address, "collect", 0, client(address, "zurich")._opened())
        with opened(address, 5, request) as polls:
            crosses(address, 1)  # by now the relay has read whose those are
            with contextlib.ExitStack() as stack:
                strangers: list[socket.socket] = []
                for _ in range(5):
                    before, strangers = strangers, stack.enter_context(opened(address, 20))
                    wait_until(lambda before=before: all(map(ended, before)))
                    wait_until(lambda made=strangers: sum(map(ended, made)) >= 5)
                    assert not all(map(ended, strangers)) and not any(map(ended, polls))
                assert crosses(address, 2) < 10 * SLOWNESS
                assert not any(map(ended, polls))


def test_a_party_displaces_only_its_own_connections(tmp_path, monkeypatch):
    with relayed(tmp_path, monkeypatch) as address:
        zurich, cleveland = client(address, "zurich"), client(address, "cleveland")
        tokens = [each._opened() for each in (zurich, cleveland)]
        with (
            opened(address, 2, head(address, "collect", 0, tokens[1])) as others,
            opened(address, OF_SILO + 5, head(address, "collect", 0, tokens[0])) as mine,
        ):
            wait_until(lambda: sum(map(ended, mine)) == 5, 20 * SLOWNESS)
            assert not any(map(ended, others))


@pytest.mark.parametrize("path", ["envelope", "collect"])
def test_bodies_that_arrive_slowly_take_bounded_memory(tmp_path, monkeypatch, path):
    size = 2**20
    with relayed(tmp_path, monkeypatch, Bounds(16, 4 * size), held=6 * size) as address:
        names = ("zurich", "cleveland")
        tokens = {name: client(address, name)._opened() for name in names}
        begun = {name: head(address, path, 2 * size, tokens[name]) + b"x" * size for name in names}
        with opened(address, 3, begun["zurich"]) as held:
            wait_until(lambda: refused_as_full(address, tokens["zurich"], size + size // 2, path))
            # Of both parties together: the second has room of its own, and the relay has none.
            with opened(address, 2, begun["cleveland"]):
                wait_until(lambda: refused_as_full(address, tokens["cleveland"], size + size // 2, path))
                assert not any(map(ended, held))
                # The coordinator's questions still pass.
                client(address, COORDINATOR).deposit(envelope(COORDINATOR, "cleveland", 1, b"x" * 100_000))
        # Room is given back with the connections.
        wait_until(lambda: not refused_as_full(address, tokens["zurich"], size + size // 2, path))


def test_calls_that_wait_hold_no_memory_for_the_envelopes_that_they_left(tmp_path, monkeypatch):
    size, runs = 2**20, [f"run-{number}" for number in range(3)]
    with relayed(tmp_path, monkeypatch, Bounds(16, 2 * size)) as address:
        chief = client(address, COORDINATOR)

        def leave_and_wait(run: str) -> None:
            data = envelope("zurich", COORDINATOR, 1, b"x" * (size - 1000), run=run)
            client(address, "zurich").exchange([data], run=run)

        waiting = [threading.Thread(target=leave_and_wait, args=(run,)) for run in runs]
        for number, each in enumerate(waiting):
            each.start()  # one after the other: together they are above the bound
            wait_until(lambda number=number: chief.seen()[COORDINATOR].waiting == number + 1, 20 * SLOWNESS)
        assert all(each.is_alive() for each in waiting)
        for run in runs:
            chief.deposit(envelope(COORDINATOR, "zurich", 1, run=run))
        for each in waiting:
            each.join(HANGS)


def refused_as_full(address: str, token: str, size: int, path: str = "envelope") -> bool:
    """True if a body of this size is refused while it arrives; else it is refused for its form."""
    with opened(address, 1, head(address, path, size, token)) as (one,):
        one.settimeout(HANGS)
        with contextlib.suppress(ConnectionError):
            one.sendall(b"\n\n" + b"x" * (size - 2))
        data = one.recv(2**12)
        assert b"409" in data, data
        return b'"full"' in data


def test_who_does_not_read_its_answers_is_cut_off_and_gets_no_more_of_them(tmp_path, monkeypatch, quick):
    monkeypatch.setattr(connections, "RATE", 2**24)
    size = 2**24
    with relayed(tmp_path, monkeypatch, Bounds(16, size)) as address:
        sender = client(address, COORDINATOR)
        for number in range(2):
            sender.deposit(envelope(COORDINATOR, "zurich", 1, b"x" * size, run=f"long-{number}"))
        token = client(address, "zurich")._opened()
        request = head(address, "collect", 0, token)
        with opened(address, 2, request, buffer=2**12) as slow:
            answers = []

            def refused() -> bool:
                with opened(address, 1, request) as (one,):
                    one.settimeout(HANGS)
                    answers.append(one.recv(2**12))
                return b'"full"' in answers[-1]

            wait_until(refused, 20 * SLOWNESS)
            began = time.monotonic()
            time.sleep(3.5)
            # What its kernel has is read; the rest was dropped.
            got = []
            for each in slow:
                each.settimeout(HANGS)
                count = 0
                with contextlib.suppress(ConnectionError):
                    while part := each.recv(2**16):
                        count += len(part)
                got.append(count)
            assert max(got) < size and time.monotonic() - began < HANGS
        # Its envelopes wait as before.
        assert len(client(address, "zurich").collect()) == 1
        assert crosses(address, 7) < 10 * SLOWNESS
