"""Keeps a driver's Prefect server alive: restarts a killed one at the same address."""

from __future__ import annotations

import contextlib
import threading
from types import TracebackType
from urllib.parse import urlsplit

from fedcore.errors import BusyError, InputError
from fedcore.home import Home
from flows.services.leases import ProcessId
from flows.services.prefect_server import PrefectServer, living_server, start_server
from flows.services.supervisor import server_lock

POLL = 0.5
REVIVALS = 3
"""Most restarts of a server that dies repeatedly, for instance of a full disk."""


class ServerKeeper:
    """Watches a server from a thread of its own, within the block. `revived` counts the restarts.

    Prefect's clients retry an unanswered address for a minute per call, and for seven seconds per event. That is longer
    than a new server's start, so the run continues.
    """

    def __init__(self, home: Home, server: PrefectServer) -> None:
        self.revived = 0
        self._home, self._url, self._process = home, server.url, server.process
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._watch, name="fedcore-server-keeper", daemon=True)

    def __enter__(self) -> ServerKeeper:
        self._thread.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._ended.set()
        self._thread.join()

    def _watch(self) -> None:
        tried = 0
        while tried < REVIVALS and not self._ended.wait(POLL):
            if not self._process.alive():
                tried += 1
                # On a busy machine a start may exceed its deadline; the next attempt may succeed.
                try:
                    self._process = self._revive()
                    self.revived += 1
                except (InputError, BusyError, OSError) as error:
                    self._complain(error)

    def _complain(self, error: Exception) -> None:
        """Writes the error to the server's log, which a driver's message names."""
        with contextlib.suppress(OSError), open(self._home.services / "prefect.log", "a") as log:
            print(f"{type(error).__name__}: the server was not started again: {error}", file=log)

    def _revive(self) -> ProcessId:
        """Process of the server at the old address, started if necessary. Raises InputError if the address is taken."""
        with server_lock(self._home):
            url, process = living_server(self._home) or start_server(self._home, urlsplit(self._url).port)
        if url != self._url:
            raise InputError(f"the Prefect server at {self._url} died, and its address is taken")
        return process
