"""Accounts that listen at a port: a stranger on a dead server's port must not receive the secret.

Prefect's clients send the secret with every request, and a port is free between a server's death and the next start.
Each client of a server therefore holds its port. Sockets of one account can share a port (SO_REUSEPORT, socket(7)).
While one of them is open, no socket of another account can be bound to the port.
"""

from __future__ import annotations

import contextlib
import os
import socket
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import urlsplit

from fedcore.errors import InputError

TABLES = (Path("/proc/net/tcp"), Path("/proc/net/tcp6"))
"""Linux's tables of sockets (proc(5)): columns 2, 4 and 8 are address (HEX:PORT), state, account."""
_LISTENS = "0A"


def check_listener(url: str) -> None:
    """Raises InputError if another account's process listens at the port of `url` on this machine.

    Without a listener no secret can leak. Systems without `TABLES` show no listeners, and no address is refused.
    """
    parts = urlsplit(url)
    if parts.hostname not in ("127.0.0.1", "localhost", "::1") or parts.port is None:
        raise InputError(f"{url} is no address of a service of this machine, and the secret goes nowhere else")
    if strangers := accounts(parts.port) - {os.geteuid()}:
        raise InputError(
            f"{url}: a process of account {min(strangers)} listens there, not this one's service; the secret was not "
            "sent. `fedcore down`, then see what took the port"
        )


def accounts(port: int, tables: tuple[Path, ...] = TABLES) -> set[int]:
    """Accounts whose processes listen at a port for connections of loopback."""
    return set(_listeners(port, tables))


def listening(port: int) -> socket.socket:
    """A socket that listens at this port of 127.0.0.1, the only one there, which `held` may share. Raises OSError."""
    made = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
    # The port may have connections of its last owner in TIME_WAIT; they must have had the option too.
    made.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        _bind(made, port)
        own = made.getsockname()[1]
        # Before as well: a second listener gets connections of the first, and closes them when it gives up.
        _refuse_others(own, 0)
        made.listen(512)
        _refuse_others(own, 1)  # two that start at once
    except OSError:
        made.close()
        raise
    return made


@contextlib.contextmanager
def held(url: str) -> Iterator[None]:
    """Within the block, no other account can take the port of `url`, a service of this machine.

    The port of a server from another version is not shared, and is not held.
    """
    with contextlib.ExitStack() as stack:
        # Without SO_REUSEADDR: two sockets with it may both be bound to a port while none listens.
        holder = stack.enter_context(socket.socket(socket.AF_INET, socket.SOCK_STREAM))
        with contextlib.suppress(OSError):
            _bind(holder, urlsplit(url).port or 0)
        yield


def _refuse_others(port: int, own: int) -> None:
    """Raises OSError if more than `own` sockets of loopback listen at the port."""
    if len(_listeners(port, TABLES)) > own:
        raise OSError(f"another process of this account listens at port {port}")


def _bind(made: socket.socket, port: int) -> None:
    if TABLES[0].exists():  # the tables show a second listener
        made.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
    made.bind(("127.0.0.1", port))


def _listeners(port: int, tables: tuple[Path, ...]) -> list[int]:
    found = []
    for table in tables:
        try:
            rows = table.read_text().splitlines()[1:]
        except OSError:
            continue
        for words in map(str.split, rows):
            address, _, at = words[1].rpartition(":")
            if words[3] == _LISTENS and int(at, 16) == port and _takes_loopback(bytes.fromhex(address)):
                found.append(int(words[7]))
    return found


def _takes_loopback(address: bytes) -> bool:
    """True if a listener at `address`, in the tables' form, may get loopback's connections."""
    own = b"".join(int.from_bytes(address[at : at + 4], "little").to_bytes(4) for at in range(0, len(address), 4))
    plain = own[-4:] if own[:-4] in (b"", bytes(12), bytes(10) + b"\xff\xff") else own
    return plain in (bytes(4), socket.inet_aton("127.0.0.1"), bytes(3) + b"\x01")
