"""A party's HTTP connection: it stays open, survives its end, reads within bounds, and obeys a proxy that is set."""

from __future__ import annotations

import contextlib
import socket
import threading
import time
from collections.abc import Iterator

import pytest

from fedcore.errors import RelayError
from fedcore.identity.envelope import Envelope
from fedcore.relay.members import COORDINATOR
from tasks import outgoing
from tasks.relay.client import RelayClient, joined
from tasks.relay.line import SILENT, Line
from tests.fedcore.relay.conftest import HEART, PARTIES, envelope

MOST, OTHER = {200: 10}, 5


class Server:
    """Answers each call with the next of `answers`; None ends the connection. `pause`: seconds between two bytes."""

    def __init__(self, answers: list[bytes | None], pause: float = 0.0) -> None:
        self.answers, self.calls, self.connections, self.pause = answers, [], 0, pause
        self._socket = socket.create_server(("127.0.0.1", 0))
        self.address = f"http://127.0.0.1:{self._socket.getsockname()[1]}"
        self._thread = threading.Thread(target=self._serve, daemon=True)
        self._thread.start()

    def _serve(self) -> None:
        with contextlib.suppress(OSError):
            while self.answers:
                connection, _ = self._socket.accept()
                self.connections += 1
                with connection:
                    self._speak(connection)

    def _speak(self, connection: socket.socket) -> None:
        while self.answers:
            head = b""
            while b"\r\n\r\n" not in head:
                if not (data := connection.recv(2**16)):
                    return
                head += data
            start, _, body = head.partition(b"\r\n\r\n")
            length = next(
                int(line.split(b":")[1]) for line in start.split(b"\r\n") if line.lower().startswith(b"content-l")
            )
            while len(body) < length:
                body += connection.recv(2**16)
            self.calls.append((start.split(b" ")[1].decode(), body))
            answer = self.answers.pop(0)
            if answer is None:
                return
            for part in [answer[at : at + 1] for at in range(len(answer))] if self.pause else [answer]:
                connection.sendall(part)
                time.sleep(self.pause)

    def close(self) -> None:
        with contextlib.suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)
        self._socket.close()
        self._thread.join()


@contextlib.contextmanager
def served(*answers: bytes | None, pause: float = 0.0) -> Iterator[tuple[Server, Line]]:
    server = Server(list(answers), pause)
    line = Line(server.address)
    try:
        yield server, line
    finally:
        line.close()
        server.close()


def said(status: int, body: bytes, length: int | None = None) -> bytes:
    return b"HTTP/1.1 %d X\r\nContent-Length: %d\r\n\r\n" % (status, len(body) if length is None else length) + body


def post(line: Line, body: bytes = b"question") -> tuple[int, bytes]:
    return tuple(line.post("collect", body, {"fedcore-session": "a"}, MOST, OTHER))


def test_calls_share_a_connection():
    with served(said(200, b"one"), said(409, b"two")) as (server, line):
        assert post(line) == (200, b"one") and post(line) == (409, b"two")
        assert server.connections == 1 and server.calls == [("/collect", b"question")] * 2


def test_a_call_is_repeated_once_if_the_kept_connection_has_ended():
    with served(said(200, b"one"), None, said(200, b"two")) as (server, line):
        assert post(line) == (200, b"one") and post(line) == (200, b"two")
        assert server.connections == 2 and len(server.calls) == 3
    with served(None, said(200, b"two")) as (server, line), pytest.raises(RelayError) as found:
        post(line)
    assert found.value.code == SILENT


def test_a_connection_that_the_answer_ends_is_opened_anew_with_the_time_limits_of_every_other():
    last = said(200, b"one").replace(b"\r\n", b"\r\nConnection: close\r\n", 1)
    with served(last, None, said(200, b"two"), said(200, b"three")) as (server, line):
        assert post(line) == (200, b"one") and line._open is None
        with pytest.raises(RelayError):
            post(line)
        assert post(line) == (200, b"two") and line._open.sock.gettimeout() == outgoing.SLOW
        assert post(line) == (200, b"three") and server.connections == 3


def test_a_body_that_is_refused_before_its_end_has_its_refusal():
    """As a proxy does whose bound is smaller: it reads no more, answers, and ends the connection."""
    listening = socket.create_server(("127.0.0.1", 0))

    def refuse() -> None:
        connection, _ = listening.accept()
        with connection:
            connection.recv(2**12)
            connection.sendall(said(413, b"long"))
            time.sleep(0.5)

    refusing = threading.Thread(target=refuse)
    refusing.start()
    line = Line(f"http://127.0.0.1:{listening.getsockname()[1]}")
    try:
        assert post(line, b"x" * 2**26) == (413, b"long") and line._open is None
    finally:
        line.close()
        refusing.join()
        listening.close()


def test_a_long_body_arrives_whole():
    with served(said(200, b"one")) as (server, line):
        body = bytes(range(256)) * 3000
        assert post(line, body) == (200, b"one") and server.calls == [("/collect", body)]


@pytest.mark.parametrize("answer", [said(200, b"x" * 11), said(500, b"x" * 6)])
def test_a_longer_answer_is_refused(answer):
    with served(answer) as (_, line), pytest.raises(RelayError, match="bytes at once"):
        post(line)


@pytest.mark.parametrize(
    "answer", [said(200, b"abc", 9), b"SSH-2.0\r\n\r\n", b"HTTP/1.1 200 X\r\n" + b"a: b\r\n" * 200]
)
def test_a_cut_answer_and_other_protocols_are_none(answer):
    server = Server([answer])
    line = Line(server.address)
    threading.Timer(0.3, server.close).start()
    try:
        with pytest.raises(RelayError) as found:
            post(line)
        assert found.value.code == SILENT
    finally:
        line.close()


@pytest.mark.parametrize(
    "endless",
    [
        b"HTTP/1.1 100 Continue\r\n\r\n" * 50_000,
        b"HTTP/1.1 200 X\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n" + b"a: b\r\n" * 200_000,
        b"HTTP/1.1 200 X\r\nTransfer-Encoding: chunked\r\n\r\n" + b"0000000000000000001\r\nx\r\n" * 50_000,
    ],
    ids=["continues", "trailers", "chunks"],
)
def test_lines_without_end_are_no_answer(endless):
    with served(endless) as (_, line), pytest.raises(RelayError) as found:
        line.post("collect", b"question", {}, {200: 2**20}, OTHER)
    assert found.value.code == SILENT


SLOW = [
    b"HTTP/1.1 200 X\r\n" + b"a: b\r\n" * 90,
    b"HTTP/1.1 100 Continue\r\n\r\n" * 50,
    b"HTTP/1.1 200 X\r\nTransfer-Encoding: chunked\r\n\r\n" + b"1\r\nx\r\n" * 90,
]


@pytest.mark.parametrize("answer", SLOW, ids=["head", "continues", "chunks"])
def test_single_bytes_now_and_then_are_no_answer(answer, monkeypatch):
    """Each comes in time for a limit on single reads."""
    monkeypatch.setattr("tasks.relay.line.PATIENCE", 0.5)
    with served(answer, pause=0.02) as (_, line):
        with pytest.raises(RelayError, match="sends its answer too slowly") as found:
            post(line)
        assert found.value.code == SILENT and line._open is None


def test_an_answer_that_begins_late_has_all_its_time(monkeypatch):
    monkeypatch.setattr("tasks.relay.line.PATIENCE", 0.5)
    with served(said(200, b"one")) as (server, line):
        speak = server._speak
        monkeypatch.setattr(server, "_speak", lambda connection: (time.sleep(1.0), speak(connection)))
        assert post(line) == (200, b"one")


def test_a_call_whose_proxy_did_not_wait_leaves_its_envelopes_again_and_acknowledges_later():
    """A proxy may give up before the relay has read the call."""
    answer, question = envelope("zurich", COORDINATOR, 1), envelope(COORDINATOR, "zurich", 1)
    with served(said(504, b""), said(204, b""), said(504, b""), said(409, b'{"code": "full", "sentence": "a"}')) as (
        server,
        line,
    ):
        caller = RelayClient(server.address, HEART, "zurich", PARTIES["zurich"])
        caller._line, caller._token = line, "f" * 64
        assert caller.exchange([answer], [question]) == []
        assert server.calls[1] == ("/envelopes", joined([answer]))
        assert caller._taken == [Envelope.from_bytes(question).digest]
        with pytest.raises(RelayError, match=r"a$"):
            caller.exchange([answer], [envelope(COORDINATOR, "zurich", 2)])
        assert caller._taken == [Envelope.from_bytes(question).digest]  # not of what was not left


def test_an_answer_in_chunks_is_read_within_its_bound():
    chunked = b"HTTP/1.1 200 X\r\nTransfer-Encoding: chunked\r\n\r\n3\r\none\r\n3\r\ntwo\r\n0\r\n\r\n"
    with served(chunked, chunked.replace(b"3\r\ntwo", b"8\r\ntwotwotw")) as (_, line):
        assert post(line) == (200, b"onetwo")
        with pytest.raises(RelayError, match="bytes at once"):
            post(line)


def test_no_listener_is_silent():
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    with pytest.raises(RelayError) as found:
        post(Line(f"http://127.0.0.1:{port}"))
    assert found.value.code == SILENT


def test_a_proxy_of_the_environment_gets_the_calls(monkeypatch):
    outgoing.client_of.cache_clear()
    server = Server([said(200, b"one"), said(200, b"x" * 11)])
    monkeypatch.setenv("http_proxy", server.address)
    line = Line("http://relay.example")
    try:
        assert post(line) == (200, b"one")
        assert server.calls == [("http://relay.example/collect", b"question")]
        with pytest.raises(RelayError, match="bytes at once"):
            post(line)
        monkeypatch.setenv("no_proxy", "relay.example")
        assert not Line("http://relay.example")._proxied
    finally:
        outgoing.client_of("http://relay.example", "relay").close()
        outgoing.client_of.cache_clear()
        server.close()
