"""A process of another account at a service's port gets no secret: a real process where tests may start one."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from fedcore.errors import InputError
from fedcore.home import Home
from flows.services.environment import prefect_settings
from flows.services.listener import accounts, check_listener
from flows.services.prefect_server import answers, listen
from flows.services.secret import secret

HEAD = "  sl  local_address rem_address   st tx_queue rx_queue tr tm->when retrnsmt   uid  timeout inode\n"
NOBODY = 65534


def row(address: str, state: str, account: int) -> str:
    return f"   0: {address} 00000000:0000 {state} 00000000:00000000 00:00000000 00000000 {account:5d} 0 4242 1\n"


def test_the_tables_show_the_account_that_listens_for_loopback(tmp_path):
    """In the format of proc(5), on a little-endian machine."""
    tables = (tmp_path / "tcp", tmp_path / "tcp6")
    tables[0].write_text(
        HEAD
        + row("0100007F:1068", "0A", 1)
        + row("00000000:1068", "0A", 2)
        + row("0100007F:1069", "0A", 3)
        + row("0100007F:1068", "01", 4)
        + row("0200A8C0:1068", "0A", 5)
    )
    tables[1].write_text(
        HEAD
        + row("0" * 32 + ":1068", "0A", 6)
        + row("0" * 24 + "01000000:1068", "0A", 7)
        + row("0000000000000000FFFF00000100007F:1068", "0A", 8)
        + row("B80D0120" + "0" * 24 + ":1068", "0A", 9)
    )
    assert accounts(4200, tables) == {1, 2, 6, 7, 8}
    assert accounts(4201, tables) == {3} and accounts(4202, tables) == set()
    assert accounts(4200, (tmp_path / "none",)) == set()


def test_the_secret_goes_to_our_own_listener_and_not_beyond_this_machine(tmp_path):
    with listen(None) as mine:
        port = mine.getsockname()[1]
        check_listener(f"http://127.0.0.1:{port}/api")
        if Path("/proc/net/tcp").exists():
            assert accounts(port) == {os.geteuid()}
    check_listener(f"http://127.0.0.1:{port}/api")
    for url in ("http://10.0.0.1:4200/api", "http://gate.example:4200", "http://127.0.0.1"):
        with pytest.raises(InputError, match="secret goes nowhere else"):
            check_listener(url)


@pytest.mark.skipif(os.geteuid() != 0 or not Path("/proc/net/tcp").exists(), reason="root's to start")
def test_another_accounts_process_at_our_port_receives_nothing(tmp_path):
    """The server has died, and the other account's process has its port."""
    home = Home(tmp_path / "home")
    known, code = (
        secret(home),
        (
            f"import os, socket\nos.setgid({NOBODY}); os.setuid({NOBODY})\n"
            "s = socket.create_server(('127.0.0.1', 0))\nprint(s.getsockname()[1], flush=True)\n"
            "c, _ = s.accept()\nprint(c.recv(65536), flush=True)"
        ),
    )
    stranger = subprocess.Popen([sys.executable, "-S", "-c", code], stdout=subprocess.PIPE, text=True)
    assert stranger.stdout is not None
    try:
        url = f"http://127.0.0.1:{int(stranger.stdout.readline())}/api"
        with pytest.raises(InputError, match=f"account {NOBODY}"):
            answers(f"{url}/health", home, timeout=2.0)
        with pytest.raises(InputError, match=f"account {NOBODY}"), prefect_settings(home, url):
            pass
        with socket.create_connection(("127.0.0.1", int(url.split(":")[2].removesuffix("/api")))) as own:
            own.sendall(b"only this")
        received = stranger.stdout.readline()
        assert "only this" in received and known not in received
    finally:
        stranger.kill()
        stranger.wait()
        stranger.stdout.close()
