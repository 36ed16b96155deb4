"""Process of a home's Prefect server, which ends itself: `python -m flows.services.supervisor`.

Server and supervisor are one process, so that neither can outlive the other. A thread checks the leases
(`flows.services.leases`) every half second. It stops the server after FEDCORE_SERVER_IDLE seconds without a living
driver. It also stops it if the home is gone, or its record names another server, for GRACE seconds. LAST_CALL seconds
later the process ends in any case.
"""

from __future__ import annotations

import contextlib
import gc
import os
import socket
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from filelock import FileLock, Timeout

from fedcore.errors import BusyError, InputError
from fedcore.home import Home
from fedcore.process_start import begin
from flows.services.database import make_database
from flows.services.door import Door, allowed_hosts
from flows.services.leases import ProcessId, lease_holders, read_json
from flows.services.secret import secret

IDLE = "FEDCORE_SERVER_IDLE"
"""Variable with the seconds for which a server waits for its next driver; 900 if it is not set."""
GRACE = 3.0
"""Least seconds that a server stays, for drivers' last data to reach the database.

They sufficed for 1,500 task runs on a loaded machine.
"""
LAST_CALL = 4.5  # GRACE, a poll, a wait for the lock and LAST_CALL stay below the allowed 10 s
POLL = 0.5


def record_path(home: Home) -> Path:
    """Path of the file that names the home's Prefect server (process and address)."""
    return home.services / "prefect.json"


def lease_folder(home: Home) -> Path:
    return home.services / "leases"


def up_path(home: Home) -> Path:
    """Path of the file that names the services of `fedcore up`; a server in it needs no driver."""
    return home.services / "up.json"


@contextlib.contextmanager
def server_lock(home: Home, timeout: float = 30.0) -> Iterator[None]:
    """Lock on the home's server, taken by a driver that obtains one and by a server that ends.

    So no driver obtains a server that is about to end. Raises BusyError after `timeout` seconds.
    """
    lock = FileLock(home.services / "prefect.lock")
    try:
        lock.acquire(timeout=timeout)
    except Timeout as error:
        raise BusyError(
            f"{lock.lock_file}: held for {timeout:.0f} s by another start or end of the Prefect server; "
            "see which process holds it, or try again"
        ) from error
    try:
        yield
    finally:
        lock.release()


def idle_seconds() -> float:
    """Seconds that the server of this environment waits for its next driver, at least GRACE. Raises InputError."""
    value = os.environ.get(IDLE, "900")
    with contextlib.suppress(ValueError):
        seconds = float(value)
        if 0 <= seconds < float("inf"):
            return max(GRACE, seconds)
    raise InputError(f"{IDLE} = {value!r} is not a number of seconds")


def needed(home: Home, server: ProcessId) -> bool:
    """True if a living driver, or `fedcore up`, needs this Prefect server of the home."""
    if lease_holders(lease_folder(home)):
        return True
    up = read_json(up_path(home)) or {}
    record = (up.get("services") or {}).get("prefect") or {}
    return up.get("state") == "up" and ProcessId.read(record) == server


class Watch(threading.Thread):
    """Thread that ends this process, LAST_CALL seconds after `stop`, once its server is not needed."""

    def __init__(self, home: Home, idle: float) -> None:
        super().__init__(name="lease-watch", daemon=True)
        self.home = home
        self.idle = idle
        self.me = ProcessId.of(os.getpid())
        self.server: Any = None  # the uvicorn server, once there is one
        self.ending = False

    def run(self) -> None:
        wanted = time.monotonic()
        while True:
            time.sleep(POLL)
            now = time.monotonic()
            try:
                owned = self.owned()
                if owned and needed(self.home, self.me):
                    wanted = now
                elif now - wanted >= (self.idle if owned else GRACE) and self.resign():
                    break
            except Exception as error:  # a lost disk or an incomplete file must not keep the process alive
                print(f"lease watch: {error}", file=sys.stderr, flush=True)
                if now - wanted >= GRACE:
                    break
        self.stop()

    def owned(self) -> bool:
        """True if the home exists and its record names this process."""
        record = read_json(record_path(self.home))
        return record is not None and ProcessId.read(record) == self.me

    def resign(self) -> bool:
        """Removes this server's record, unless a driver has come; true if the server may end."""
        if not self.home.services.is_dir():
            return True
        try:
            with server_lock(self.home, timeout=1.0):
                if self.owned():
                    if needed(self.home, self.me):
                        return False
                    record_path(self.home).unlink(missing_ok=True)
                return True
        except BusyError:  # a driver has the lock: check again later
            return False

    def stop(self) -> None:
        self.ending = True
        last = threading.Timer(LAST_CALL, os._exit, args=(0,))
        last.daemon = True
        last.start()
        if self.server is None:  # still importing: nothing to shut down
            os._exit(0)
        self.server.should_exit = True


def serve(home: Home, listening: socket.socket, watch: Watch) -> None:
    """Serves Prefect's API and page on a socket until the watch stops it."""
    gc.disable()  # imports drop few objects, and collection would take a quarter of their time
    make_database(home)
    import uvicorn
    from prefect.server.api.server import create_app

    host, port = listening.getsockname()[:2]
    # The pages' live updates use WebSockets, which Prefect's own password does not protect.
    app = Door(create_app(final=True), hosts=allowed_hosts(port), secret=secret(home))
    gc.enable()
    gc.freeze()
    server = uvicorn.Server(
        uvicorn.Config(
            app,
            host=host,
            port=port,
            log_level="warning",
            access_log=False,
            proxy_headers=False,
            # Longer than 5 s, after which Prefect's client drops an idle connection. A server that closes first may
            # close a connection just as the client sends a request.
            timeout_keep_alive=30,
            timeout_graceful_shutdown=1,
        )
    )
    watch.server = server
    if not watch.ending:
        server.run(sockets=[listening])


def main(root: str, descriptor: str) -> None:
    """Runs the server of the home at `root` on the inherited listening socket `descriptor`."""
    home = Home(Path(root))
    listening = socket.socket(fileno=int(descriptor))
    listening.set_inheritable(False)
    watch = Watch(home, idle_seconds())
    watch.start()
    serve(home, listening, watch)


if __name__ == "__main__":
    begin()
    main(*sys.argv[1:])
