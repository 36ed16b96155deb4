"""A driver's use of the home's Prefect server: finds or starts it, holds it, and releases it. Imports no Prefect."""

from __future__ import annotations

import contextlib
import hashlib
import http.client
import re
import shutil
import sys
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from importlib.metadata import version
from pathlib import Path
from socket import socket as Socket
from typing import Any
from urllib.parse import urlsplit

from fedcore.errors import InputError
from fedcore.home import Home
from flows.services.door import added_hosts
from flows.services.environment import server_environment
from flows.services.leases import Lease, ProcessId, end, read_json, spawn, write_json
from flows.services.listener import listening
from flows.services.secret import authorization, secret
from flows.services.supervisor import idle_seconds, lease_folder, needed, record_path, server_lock

START_DEADLINE = 90.0  # seconds; a first start on a slow disk with all of Prefect's migrations takes about 30
LITTLE_MB = 10.0
"""Free MB below which a server's error is attributed to the disk, which may lack room for a log."""


class ServiceError(InputError):
    """A service that did not start, or died; the message names its log and the log's last line."""


def complaint(log: Path) -> str:
    """Last exception in the last 20 kB of a log, else its last line; a placeholder without one."""
    try:
        with open(log, "rb") as file:
            file.seek(max(0, log.stat().st_size - 20_000))
            text = file.read().decode(errors="replace")
    except OSError:
        return "no log"
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    exceptions = [line for line in lines if re.match(r"[\w.]+(Error|Exception|Interrupt)\b", line)]
    return [*(exceptions or lines or ["empty log"])][-1]


@contextlib.contextmanager
def server_errors(log: Path) -> Iterator[None]:
    """Turns failures of the Prefect server into ServiceError, with the last line of its log."""
    import httpx

    try:
        yield
    except httpx.HTTPError as error:
        answer = f"answered {error.response.status_code}" if isinstance(error, httpx.HTTPStatusError) else str(error)
        free = shutil.disk_usage(log.parent).free / 2**20
        why = f"only {free:.1f} MB are free at {log.parent}" if free < LITTLE_MB else f"see {log} ({complaint(log)})"
        raise ServiceError(f"Prefect server: {answer}; {why}; `fedcore runs` lists what can be resumed") from error


def answers(url: str, home: Home, timeout: float) -> bool:
    """True if a service of the home answers a GET of `url` with 200 within `timeout` seconds. Uses no proxy.

    Raises InputError if another account listens there.
    """
    parts = urlsplit(url)
    assert parts.hostname is not None
    connection = http.client.HTTPConnection(parts.hostname, parts.port, timeout=timeout)
    try:
        known = {"Authorization": authorization(home, url)}
        connection.request("GET", parts.path, headers={"Connection": "close", **known})
        return connection.getresponse().status == 200
    except (OSError, http.client.HTTPException):
        return False
    finally:
        connection.close()


def listen(preferred: int | None, tries: int = 20) -> Socket:
    """A socket that listens on 127.0.0.1, at the preferred port, one of the next, or any free one."""
    for port in [*(range(preferred, preferred + tries) if preferred else ()), 0]:
        with contextlib.suppress(OSError):
            return listening(port)
    raise ServiceError("127.0.0.1: no port is free for the Prefect server")


@dataclass(frozen=True)
class PrefectServer:
    """A driver's hold on its home's Prefect server. `url` is known at once; call `wait` before using it."""

    home: Home
    url: str  # of the API; the page is at the same address without the path
    process: ProcessId
    log: Path
    lease: Lease
    shared: bool  # True if another driver or `fedcore up` had started it

    def wait(self, seconds: float = START_DEADLINE) -> str:
        """Waits until the server answers; returns the API address. Raises ServiceError if it dies or is too slow."""
        limit = time.monotonic() + seconds
        while not answers(f"{self.url}/health", self.home, timeout=2.0):
            if not self.process.alive():
                raise ServiceError(
                    f"Prefect server: ended while it was starting; see {self.log} ({complaint(self.log)})"
                )
            if time.monotonic() > limit:
                raise ServiceError(
                    f"Prefect server: process {self.process.pid} gave no answer at {self.url} within "
                    f"{seconds:.0f} s; see {self.log} ({complaint(self.log)})"
                )
            time.sleep(0.05)
        return self.url

    def release(self) -> None:
        """Releases the server, which ends after FEDCORE_SERVER_IDLE without a driver. Safe to call again."""
        self.lease.release()


def start_prefect_server(home: Home, port: int | None = None, event_feed: bool = False) -> PrefectServer:
    """Holds the home's Prefect server, and starts it if none lives; does not wait for its answer.

    The server lives while a driver holds it and `idle_seconds` longer, or until `fedcore down`. `port` and `event_feed`
    (see `server_environment`) apply to a new server only. A living server that another driver holds is used as it is.
    One without a holder is replaced if its event feed or its version differs.
    Raises InputError if the home cannot be written, BusyError if another start hangs.
    """
    home.make()
    # Checked here, because a mistake in these is the user's.
    idle_seconds()
    added_hosts()
    secret(home)
    lease = None
    try:
        with server_lock(home):
            end_idle_server(home, unless=_made(event_feed))
            lease = Lease.take(lease_folder(home))
            found = living_server(home)
            url, process = found or start_server(home, port, event_feed)
    except BaseException as error:
        if lease is not None:
            lease.release()
        if isinstance(error, OSError):
            raise ServiceError(
                f"{home.services}: the Prefect server cannot be started there ({error}); "
                "free some space, change its permissions, or set FEDCORE_HOME to another folder"
            ) from error
        raise
    return PrefectServer(home, url, process, home.services / "prefect.log", lease, shared=found is not None)


def living_server(home: Home) -> tuple[str, ProcessId] | None:
    """Address and process of the server in the home's record; None if it does not live. Call with the lock."""
    record = read_json(record_path(home)) or {}
    process, url = ProcessId.read(record), record.get("url")
    return (url, process) if process is not None and isinstance(url, str) and process.alive() else None


def end_idle_server(home: Home, unless: dict[str, Any] | None = None) -> bool:
    """Ends a server that no driver and no `up` holds; true if there was one. Call with the lock.

    `unless`: fields of its record with which the server stays.
    """
    record = read_json(record_path(home)) or {}
    found = living_server(home)
    if found is None or needed(home, found[1]):
        return False
    if unless is not None and all(record.get(key) == value for key, value in unless.items()):
        return False
    record_path(home).unlink(missing_ok=True)
    end([found[1]])
    return True


def _made(event_feed: bool) -> dict[str, Any]:
    """Fields of a server's record: digest of Prefect's version and of our code, and the event feed."""
    total = hashlib.sha256(version("prefect").encode())
    for path in sorted(Path(__file__).parent.glob("*.py")):
        total.update(path.read_bytes())
    return {"version": total.hexdigest()[:12], "event_feed": event_feed}


def start_server(home: Home, port: int | None, event_feed: bool = False) -> tuple[str, ProcessId]:
    """Starts a server and writes its record. Call with the lock."""
    home.prefect.mkdir(exist_ok=True)
    # This process makes the socket and passes it on. The address is known at once, no other process can take the port,
    # and early connections wait in the socket's queue.
    with listen(port) as socket:
        url = f"http://127.0.0.1:{socket.getsockname()[1]}/api"
        process = spawn(
            [sys.executable, "-P", "-m", "flows.services.supervisor", str(home.root), str(socket.fileno())],
            log=home.services / "prefect.log",
            environment=server_environment(home, event_feed),
            pass_fds=[socket.fileno()],
        )
    write_json(record_path(home), asdict(process) | {"url": url} | _made(event_feed))
    return url, process


@contextlib.contextmanager
def prefect_server(home: Home) -> Iterator[str]:
    """Starts the home's Prefect server if necessary, holds it within the block; its API address."""
    server = start_prefect_server(home)
    try:
        yield server.wait()
    finally:
        server.release()
