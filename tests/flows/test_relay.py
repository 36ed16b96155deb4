"""The relay's HTTP service: real connections, long polls, a new list, and callers that are no parties."""

from __future__ import annotations

import contextlib
import http.client
import http.server
import json
import subprocess
import sys
import threading
import time
from collections.abc import Iterator

import pytest

from fedcore.errors import BusyError, InputError, RelayError
from fedcore.identity.keys import Identity
from fedcore.relay.members import COORDINATOR
from fedcore.relay.relay import Quotas
from flows.carriers.http import listening
from flows.carriers.relay import serve, store_list
from flows.services.leases import ProcessId
from tasks import outgoing
from tasks.relay.client import Backoff, RelayClient
from tests.doors import issued
from tests.fedcore.relay.conftest import HEART, PARTIES, STRANGER, envelope, listed
from tests.patience import HANGS

pytestmark = pytest.mark.slow
CHIEF = PARTIES[COORDINATOR]


@contextlib.contextmanager
def served(folder, **options) -> Iterator[str]:
    """Address of a relay of this folder, which ends with the process that it is served for."""
    reason = subprocess.Popen([sys.executable, "-S", "-c", "input()"], stdin=subprocess.PIPE)
    found = listening("127.0.0.1", 0)
    options |= {"until": ProcessId.of(reason.pid)}
    thread = threading.Thread(target=serve, args=(folder, found, CHIEF.public, HEART), kwargs=options)
    thread.start()
    try:
        yield f"http://127.0.0.1:{found.getsockname()[1]}"
    finally:
        reason.communicate()
        thread.join()
        found.close()


@pytest.fixture(scope="module")
def address(tmp_path_factory) -> Iterator[str]:
    folder = tmp_path_factory.mktemp("relay")
    store_list(folder, listed().text(CHIEF).encode())
    with served(folder, quotas=Quotas(one=2**20)) as found:
        yield found


def client(address: str, name: str, identity: Identity | None = None) -> RelayClient:
    return RelayClient(address, HEART, name, identity or PARTIES[name])


def test_an_envelope_crosses_and_is_deleted_once_it_is_there(address):
    sender, receiver = client(address, COORDINATOR), client(address, "cleveland")
    sent = [envelope(COORDINATOR, "cleveland", 1, run=run) for run in ("crosses", "over")]
    for each in sent:
        sender.deposit(each)
    assert receiver.collect() == sent
    receiver.taken(sent[:1])
    assert receiver.collect() == sent[1:]
    other = envelope(COORDINATOR, "cleveland", 1, run="another")
    sender.deposit(other)
    assert receiver.collect("another") == [other] and receiver.collect("over") == sent[1:]
    receiver.taken([other, *sent, b"made up"])


def test_a_poll_that_waits_is_answered_when_an_envelope_comes(address):
    receiver, found = client(address, "zurich"), []

    def poll() -> None:
        found.extend(receiver.collect())
        found.append(time.monotonic())

    waiting = threading.Thread(target=poll)
    waiting.start()
    time.sleep(1.0)
    assert not found
    data, sent_at = envelope(COORDINATOR, "zurich", 1, run="waits"), time.monotonic()
    client(address, COORDINATOR).deposit(data)
    waiting.join(HANGS)
    assert found[0] == data and found[1] - sent_at < 5.0  # a poll lasts 25 s
    receiver.taken([data])


def test_one_call_leaves_an_answer_acknowledges_its_question_and_waits_for_the_next(address):
    sender, receiver = client(address, COORDINATOR), client(address, "zurich")
    question = envelope(COORDINATOR, "zurich", 1, run="one call")
    answer = envelope("zurich", COORDINATOR, 1, run="one call")
    following = envelope(COORDINATOR, "zurich", 2, run="one call")
    before = sender.seen()["zurich"].waiting
    sender.deposit(question)
    assert receiver.collect("one call") == [question]
    threading.Timer(0.3, client(address, COORDINATOR).deposit, [following]).start()
    assert receiver.exchange([answer], [question], run="one call") == [following]
    assert sender.collect("one call") == [answer]
    receiver.taken([following])
    receiver.flush()
    assert sender.seen()["zurich"].waiting == before
    # An answer that is refused acknowledges nothing.
    sender.deposit(envelope(COORDINATOR, "zurich", 3, run="one call"))
    (kept,) = receiver.collect("one call")
    with pytest.raises(RelayError) as found:
        receiver.exchange([envelope("zurich", COORDINATOR, 1, b"other", run="one call")], [kept], run="one call")
    assert found.value.code == "old" and sender.seen()["zurich"].waiting == before + 1
    receiver.taken([kept])
    receiver.flush()
    sender.taken([answer])
    sender.flush()


def test_a_call_that_expects_several_envelopes_gets_them_at_once(address):
    receiver = client(address, COORDINATOR)
    answers = [envelope(name, COORDINATOR, 1, run="several") for name in ("cleveland", "zurich")]
    found: list[list[bytes]] = []

    def gather(expected: int) -> None:
        while sum(map(len, found)) < 2:
            found.append(receiver.exchange([], run="several", expected=expected))
            receiver.taken(found[-1])

    waiting = threading.Thread(target=gather, args=(2,))
    waiting.start()
    time.sleep(0.5)
    for name, each in zip(("cleveland", "zurich"), answers, strict=True):
        client(address, name).deposit(each)
    waiting.join(HANGS)
    assert sorted(each for part in found for each in part) == sorted(answers)
    # Whoever expects more than comes gets what is there, after a moment.
    more = envelope("cleveland", COORDINATOR, 2, run="several")
    threading.Timer(0.3, client(address, "cleveland").deposit, [more]).start()
    began = time.monotonic()
    assert receiver.exchange([], run="several", expected=2) == [more] and time.monotonic() - began < 20.0
    receiver.taken([more])
    receiver.flush()


def test_who_is_no_party_gets_and_leaves_nothing(address):
    for name, identity in (("zurich", STRANGER), ("geneva", STRANGER)):
        with pytest.raises(RelayError) as found:
            client(address, name, identity).collect()
        assert found.value.code == "unknown"
    with pytest.raises(RelayError, match="envelope that of coordinator"):
        client(address, "zurich").deposit(envelope(COORDINATOR, "cleveland", 9))
    with pytest.raises(RelayError, match="only the coordinator"):
        client(address, "zurich").seen()
    with pytest.raises(RelayError, match="messages of at most"):
        client(address, COORDINATOR).deposit(b"x" * (2**20 + 1))


def raw(address: str, method: str, path: str, body: bytes = b"", **headers: str) -> tuple[int, bytes]:
    connection = http.client.HTTPConnection(address.removeprefix("http://"), timeout=HANGS)
    with contextlib.closing(connection):
        connection.request(method, path, body, {"Content-Type": "application/octet-stream"} | headers)
        answer = connection.getresponse()
        return answer.status, answer.read()


@pytest.mark.parametrize("path", ["/session", "/envelope", "/collect", "/taken", "/members", "/seen"])
def test_arbitrary_bytes_are_refused_by_a_sentence(address, path):
    for body in (b"", b"[]", b"\0" * 5000, b"{" * 1000):
        status, data = raw(address, "POST", path, body)
        assert status in (409, 413) and set(json.loads(data)) == {"code", "sentence"}


def test_a_web_page_does_not_reach_it(address):
    assert raw(address, "GET", "/healthz")[0] == 200
    assert raw(address, "POST", "/challenge", Host="evil.example")[0] == 403
    assert raw(address, "POST", "/challenge", b"x", **{"Content-Type": "text/plain"})[0] == 415
    assert raw(address, "POST", "/challenge", Origin="https://evil.example")[0] == 403


def test_a_session_that_the_relay_forgot_opens_again(tmp_path):
    store_list(tmp_path, listed().text(CHIEF).encode())
    data = envelope(COORDINATOR, "zurich", 1)
    with served(tmp_path) as first:
        sender = client(first, COORDINATOR)
        sender.deposit(data)
    with pytest.raises(RelayError, match="none answers"):
        sender.deposit(data)
    with served(tmp_path) as second:
        receiver = client(second, "zurich")
        receiver._token = "f" * 64
        assert receiver.collect() == [data]


def test_many_envelopes_travel_in_one_call_and_what_was_taken_is_deleted_by_the_next(tmp_path):
    with served(tmp_path) as found:
        chief = client(found, COORDINATOR)
        chief.renew(listed().text(CHIEF).encode())
        sent = [envelope(COORDINATOR, name, 1) for name in ("cleveland", "zurich")]
        chief.deposit_all(sent)
        receiver = client(found, "cleveland")
        assert receiver.collect() == sent[:1]
        receiver.taken(sent[:1])
        assert chief.seen()["cleveland"].waiting == 1  # its word comes with its next call
        receiver.flush()
        assert chief.seen()["cleveland"].waiting == 0 and chief.seen()["zurich"].waiting == 1
        for wrong in (b"", b"[1]\n", b"[1, 2]\nxx", b"{}\nx", b"[1]"):
            with pytest.raises(RelayError, match="a line of their sizes"):
                chief._call("envelopes", wrong)
        with pytest.raises(RelayError, match="a later envelope"):  # the first is stored again, the second refused
            chief.deposit_all([envelope(COORDINATOR, "zurich", 2), envelope(COORDINATOR, "zurich", 1)])


def test_the_coordinator_renews_the_list_and_the_relay_remembers_it(tmp_path):
    geneva = Identity.new()
    with served(tmp_path) as found:  # a new relay, which knows the coordinator alone
        with pytest.raises(RelayError, match="zurich is not on the coordinator's list 0"):
            client(found, "zurich").collect()
        client(found, COORDINATOR).renew(listed().text(CHIEF).encode())
        with pytest.raises(RelayError):
            stranger_there = client(found, "geneva", geneva)
            stranger_there.taken([envelope(COORDINATOR, "zurich", 1)])
            stranger_there.flush()
        with pytest.raises(RelayError, match="signed by"):
            stranger = listed(2, **{COORDINATOR: STRANGER})
            client(found, COORDINATOR).renew(stranger.text(STRANGER).encode())
        with pytest.raises(RelayError, match="only the coordinator"):
            client(found, "zurich").renew(listed(2, geneva=geneva).text(CHIEF).encode())
        client(found, COORDINATOR).renew(listed(2, geneva=geneva).text(CHIEF).encode())
        assert set(client(found, COORDINATOR).seen()) == {*PARTIES, "geneva"}
        client(found, COORDINATOR).renew(listed(1).text(CHIEF).encode())  # an older one changes nothing
    with served(tmp_path) as found:
        assert set(client(found, COORDINATOR).seen()) == {*PARTIES, "geneva"}


def test_a_folder_has_one_relay_and_a_list_of_its_coordinator(tmp_path, monkeypatch):
    with listening("127.0.0.1", 0) as free:
        store_list(tmp_path, listed(1, **{COORDINATOR: STRANGER}).text(STRANGER).encode())
        with pytest.raises(InputError, match="signed by"):
            serve(tmp_path, free, CHIEF.public, HEART)
        store_list(tmp_path, listed().text(CHIEF).encode())
        monkeypatch.setattr("flows.carriers.http.TAKE_OVER", 0.2)
        with served(tmp_path) as found:
            raw(found, "GET", "/healthz")
            with pytest.raises(BusyError, match="another relay keeps its files there"):
                serve(tmp_path, free, CHIEF.public, HEART)


def test_pauses_grow_to_15_seconds_and_differ():
    class Half:
        def uniform(self, low: float, high: float) -> float:
            return (low + high) / 2

    backoff = Backoff(Half())
    assert [backoff.next() for _ in range(7)] == [0.375, 0.75, 1.5, 3.0, 6.0, 11.25, 11.25]
    backoff.reset()
    assert backoff.next() == 0.375
    assert len({Backoff().next() for _ in range(10)}) > 1


def test_what_a_relay_makes_up_is_no_envelope(address, monkeypatch):
    caller = client(address, "zurich")
    for answer in (b"[5]\nabc", b"[]x", b"no\n", b"[-1]\n", b"[1.5]\nx", b"[" + b"1," * 5000 + b"1]\n"):
        monkeypatch.setattr(caller, "_call", lambda path, body, answer=answer: answer)
        with pytest.raises(RelayError, match="something else than envelopes"):
            caller.collect()


@pytest.mark.parametrize(
    ("status", "body", "headers"),
    [
        (500, b"[" * 200_000, {}),
        (409, b'{"code": 5, "sentence": []}', {}),
        (403, b"<html>a captive portal</html>", {}),
        (200, b"[" + b"1," * 100_000 + b"1]\n", {}),
        (200, b"x" * 100, {"Content-Encoding": "gzip"}),
    ],
)
def test_no_response_of_a_hostile_relay_is_more_than_an_error(status, body, headers):
    with hostile(status, body, headers) as address:
        for call in (
            lambda caller: caller.collect(),
            lambda caller: caller.seen(),
            lambda caller: caller.deposit(b"x"),
        ):
            caller = client(address, "zurich")
            caller._token = "f" * 64
            with contextlib.suppress(RelayError):
                call(caller)


@pytest.mark.parametrize(
    ("status", "code", "words"),
    [
        (413, "long", "status 413 (.*) to a body of 9 bytes"),
        (403, "answer", r"status 403 \(Forbidden\); a relay takes calls under its invitation's name and port"),
        (502, "answer", r"or a proxy on the way, answered with status 502 \(Bad Gateway\)"),
        (504, "late", r"status 504 \(Gateway Timeout\)$"),
        (599, "answer", "status 599$"),
    ],
)
def test_a_proxys_own_answer_is_named_and_only_too_long_a_body_lasts(status, code, words):
    """A lasting error is refused instead of the answer (`tasks.relay.serving`); the rest is tried again."""
    with hostile(status, b"<html>a proxy</html>", {}) as address:
        caller = client(address, "zurich")
        caller._token = "f" * 64
        with pytest.raises(RelayError, match=words) as found:
            caller.deposit(b"x" * 9)
        assert found.value.code == code


def test_a_proxy_that_waits_for_less_than_the_relay_makes_a_quiet_poll_shorter():
    with hostile(504, b"", {}) as address:
        caller = client(address, "zurich")
        caller._token, caller._taken = "f" * 64, [b"d" * 32]
        assert caller.collect() == [] and caller._taken  # what it may have lost is acknowledged once more


def test_a_certificate_of_an_unknown_authority_and_a_refusing_proxy_are_named(tmp_path, monkeypatch):
    outgoing.client_of.cache_clear()
    own = issued(tmp_path, "localhost", issued(tmp_path, "authority", None), hosts=["localhost"])
    with served(tmp_path / "relay", certificate=(own, own.with_suffix(".key"))) as address:
        there = address.replace("http://127.0.0.1", "https://localhost")
        with pytest.raises(RelayError, match=r"its certificate is refused: unable to get .*; SSL_CERT_FILE names"):
            client(there, COORDINATOR).seen()
        monkeypatch.setenv("SSL_CERT_FILE", str(tmp_path / "authority.pem"))
        assert set(client(there, COORDINATOR).seen()) == {COORDINATOR}
    with hostile(407, b"", {}) as proxy:
        monkeypatch.setenv("HTTPS_PROXY", proxy)
        monkeypatch.delenv("NO_PROXY", raising=False)
        with pytest.raises(RelayError, match="the proxy on the way: 407 Proxy Authentication Required"):
            client("https://127.0.0.2:1", COORDINATOR).seen()
    outgoing.client_of.cache_clear()


def test_a_relay_that_sends_single_bytes_holds_no_party(monkeypatch):
    """Each byte comes in time for a limit on single reads."""
    monkeypatch.setattr("tasks.relay.line.PATIENCE", 1.0)
    with hostile(200, b"x" * 1000, {}, pause=0.1) as address:
        caller, began = client(address, "zurich"), time.monotonic()
        caller._token = "f" * 64
        with pytest.raises(RelayError, match="sends its answer too slowly"):
            caller.collect()
        assert time.monotonic() - began < 30


def test_a_hostile_relay_leaves_no_cookie_in_the_client():
    came: list[str | None] = []
    with hostile(204, b"", {"Set-Cookie": "a=" + "x" * 3000}, came) as address:
        caller = client(address, "zurich")
        caller._token = "f" * 64
        for _ in range(3):
            caller.collect()
    assert came == [None] * 3


@contextlib.contextmanager
def hostile(
    status: int, body: bytes, headers: dict[str, str], cookies: list | None = None, pause: float = 0.0
) -> Iterator[str]:
    """Address of a server that gives every caller this response.

    `cookies`: takes those that come with the calls. `pause`: seconds between two bytes.
    """

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            self.rfile.read(int(self.headers.get("Content-Length", 0)))
            if cookies is not None:
                cookies.append(self.headers.get("Cookie"))
            self.send_response(status)
            for name, value in {**headers, "Content-Length": str(len(body))}.items():
                self.send_header(name, value)
            self.end_headers()
            with contextlib.suppress(OSError):
                for part in [body[at : at + 1] for at in range(len(body))] if pause else [body]:
                    self.wfile.write(part)
                    time.sleep(pause)

        do_CONNECT = do_POST  # as a proxy is asked for a tunnel

        def log_message(self, *_: object) -> None:
            pass

    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_address[1]}"
        server.shutdown()
