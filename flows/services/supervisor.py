"""The Prefect server of a home, as a process of its own that ends itself: `python -m flows.services.supervisor`.

Server and supervisor are one process, so that neither can outlive the other: a thread looks at the leases
(`flows.services.leases`) every half second. When there was no living driver for as long as FEDCORE_SERVER_IDLE says, or
the home has been gone, or its record has named another server, for GRACE seconds, it stops the server. Whatever happens
then, the process is gone after LAST_CALL more seconds.
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
"""Names the seconds for which a server waits for its next driver; 900 if it is not set."""
GRACE = 3.0
"""Seconds that any server stays: what drivers have sent reaches the database (1,500 task runs did on a loaded machine,
without any other wait)."""
LAST_CALL = 4.5  # GRACE, a poll, a wait for the lock and LAST_CALL: below the 10 s that are allowed
POLL = 0.5


def record_path(home: Home) -> Path:
    """The file that names the home's Prefect server (process and address)."""
    return home.services / "prefect.json"


def lease_folder(home: Home) -> Path:
    return home.services / "leases"


def up_path(home: Home) -> Path:
    """The file that names what `fedcore up` keeps; a server that is named in it needs no driver."""
    return home.services / "up.json"


@contextlib.contextmanager
def server_lock(home: Home, timeout: float = 30.0) -> Iterator[None]:
    """Held while somebody decides whether the home's server lives: by a driver that wants one, and by a
    server that is about to end. So nobody is handed a server that has decided to go. Raises BusyError."""
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
    """How long the server of this environment waits for its next driver, at least GRACE. Raises InputError."""
    said = os.environ.get(IDLE, "900")
    with contextlib.suppress(ValueError):
        seconds = float(said)
        if 0 <= seconds < float("inf"):
            return max(GRACE, seconds)
    raise InputError(f"{IDLE} = {said!r} is not a number of seconds")


def needed(home: Home, server: ProcessId) -> bool:
    """Whether a living driver, or `fedcore up`, wants this Prefect server of the home."""
    if lease_holders(lease_folder(home)):
        return True
    kept = read_json(up_path(home)) or {}
    record = (kept.get("services") or {}).get("prefect") or {}
    return kept.get("state") == "up" and ProcessId.read(record) == server


class Watch(threading.Thread):
    """Ends this process when nobody needs it: from `stop` on, the process has LAST_CALL seconds."""

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
            except Exception as error:  # a vanished disk, a torn file: never a reason to live for ever
                print(f"lease watch: {error}", file=sys.stderr, flush=True)
                if now - wanted >= GRACE:
                    break
        self.stop()

    def owned(self) -> bool:
        """Whether the home is there and its record names this process."""
        record = read_json(record_path(self.home))
        return record is not None and ProcessId.read(record) == self.me

    def resign(self) -> bool:
        """Takes this server's name out of the home, unless somebody has come meanwhile; True if it may go."""
        if not self.home.services.is_dir():
            return True
        try:
            with server_lock(self.home, timeout=1.0):
                if self.owned():
                    if needed(self.home, self.me):
                        return False
                    record_path(self.home).unlink(missing_ok=True)
                return True
        except BusyError:  # a driver is deciding right now: look again
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
    """Serves Prefect's API and page on a socket until told to stop."""
    gc.disable()  # the imports make many objects and drop few: a quarter of their time
    make_database(home)
    import uvicorn
    from prefect.server.api.server import create_app

    host, port = listening.getsockname()[:2]
    # The pages' live updates come by WebSockets, which Prefect's own password does not lock for its own page.
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
            # Longer than the 5 s after which Prefect's client drops an idle connection: the client must be
            # the one that closes, or it sends a request into a connection that was just closed.
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
