"""A client of a server holds its port for their account, even while no server lives."""

from __future__ import annotations

import contextlib
import os
import socket
import subprocess
import sys
import threading

import pytest

from flows.services.listener import TABLES, accounts, held, listening
from flows.services.prefect_server import listen
from tests.patience import HANGS

pytestmark = pytest.mark.skipif(not TABLES[0].exists(), reason="ports are shared where tables tell of listeners")

TAKES = """
import os, socket, sys
if sys.argv[2] != "-1":
    os.setuid(int(sys.argv[2]))
taken = socket.socket()
taken.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
if sys.argv[3] == "shared":
    taken.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
taken.bind(("127.0.0.1", int(sys.argv[1])))
taken.listen()
"""


def takes(port: int, account: int, how: str) -> bool:
    """True if a process of this account (-1: the present one) can listen at the port."""
    done = subprocess.run([sys.executable, "-c", TAKES, str(port), str(account), how], capture_output=True, text=True)
    assert done.returncode == 0 or "Address already in use" in done.stderr, done.stderr
    return done.returncode == 0


STRANGERS = [(-1, "alone"), *([(65534, "alone"), (65534, "shared")] if os.geteuid() == 0 else [])]


@pytest.mark.parametrize("account, how", STRANGERS)
def test_nobody_takes_the_port_of_a_dead_server_that_is_held(account, how):
    server = listening(0)
    port = server.getsockname()[1]
    with held(f"http://127.0.0.1:{port}/api"):
        server.close()
        assert accounts(port) == set() and not takes(port, account, how)
        with listen(port) as again:  # the next server of this account gets the port
            assert again.getsockname()[1] == port
            with socket.create_connection(("127.0.0.1", port), timeout=10):
                assert again.accept()
    assert takes(port, account, how)  # the control


def test_a_server_takes_no_port_at_which_another_of_the_account_listens():
    with listening(0) as first:
        port = first.getsockname()[1]
        with pytest.raises(OSError, match="another process of this account listens"):
            listening(port)
        with listen(port) as second:
            assert second.getsockname()[1] != port
        with held(f"http://127.0.0.1:{port}/api"), socket.create_connection(("127.0.0.1", port), timeout=10):
            assert first.accept()  # a holder of the port takes no connections


def test_a_start_elsewhere_resets_no_connection_of_a_server():
    """Such a start tries the preferred port first; it once listened there for a moment, beside the server."""
    ended = threading.Event()

    def answer(server: socket.socket) -> None:
        with contextlib.suppress(OSError):  # until the socket is shut down
            while True:
                with server.accept()[0] as caller:
                    caller.sendall(caller.recv(1))

    def start(port: int) -> None:
        while not ended.is_set():
            with pytest.raises(OSError, match="another process of this account listens"):
                listening(port)

    with listening(0) as server:
        port = server.getsockname()[1]
        threads = [threading.Thread(target=answer, args=[server]), threading.Thread(target=start, args=[port])]
        for thread in threads:
            thread.start()
        answered = 0
        try:
            for _ in range(300):  # 4 in 10 were reset
                with contextlib.suppress(ConnectionResetError), socket.create_connection(("127.0.0.1", port)) as mine:
                    mine.sendall(b"?")
                    answered += mine.recv(1) == b"?"
        finally:
            ended.set()
            server.shutdown(socket.SHUT_RDWR)
            for thread in threads:
                thread.join(HANGS)
    assert answered == 300


def test_a_server_that_shares_no_port_is_talked_to_all_the_same():
    with socket.socket() as older:
        older.bind(("127.0.0.1", 0))
        older.listen()
        with held(f"http://127.0.0.1:{older.getsockname()[1]}/api"):
            assert accounts(older.getsockname()[1]) == {os.geteuid()}
