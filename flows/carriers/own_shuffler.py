"""A run's own shuffler, for simulations and tests: a process that its driver keeps alive.

The driver's account controls this process too. Only a shuffler of another operator, which `shuffler.address` names,
protects silos from a curious server.
"""

from __future__ import annotations

import os
import secrets
import sys
import threading
from pathlib import Path

from fedcore.errors import InputError
from fedcore.home import Home
from fedcore.ledger.anchor import write_new
from fedcore.process.private_files import make_private
from flows.carriers.http import listening
from flows.services.environment import child_environment
from flows.services.leases import ProcessId, end, spawn

POLL = 0.2


class OwnShuffler:
    """Keeps a shuffler alive between `start` and `close`. Its batches stay in `folder`; its process ends with this one.

    `secret`: required of silos and the driver, and unknown to other accounts of the machine; each driver makes a new
    one. This process owns the listening socket and passes it on. A restart therefore keeps the address, and callers in
    between wait in the socket's queue.
    """

    def __init__(self, home: Home, folder: Path, least: int) -> None:
        self._home, self._folder, self._least = home, folder, least
        self._ended = threading.Event()
        self.secret = secrets.token_hex(32)
        self._socket = listening("127.0.0.1", 0)
        self.address = f"http://127.0.0.1:{self._socket.getsockname()[1]}"
        self.process: ProcessId | None = None
        self._thread = threading.Thread(target=self._watch, name="fedcore-shuffler-keeper", daemon=True)

    def start(self) -> None:
        """Starts the shuffler and its watch. Raises InputError if it cannot be started."""
        try:
            make_private(self._folder)
            # In a file: other accounts see a process's arguments, and children inherit its environment.
            write_new(self._secret_path(), self.secret.encode())
            self.process = self._spawned()
        except OSError as error:
            self._socket.close()
            raise InputError(f"{self._folder}: no shuffler can be started there ({error.strerror})") from None
        self._thread.start()

    def close(self) -> None:
        """Ends the shuffler. Safe to call again."""
        self._ended.set()
        if self._thread.is_alive():
            self._thread.join()
        if self.process is not None:
            end([self.process])
        self._socket.close()

    def _secret_path(self) -> Path:
        return self._folder / "secret"

    def _watch(self) -> None:
        while not self._ended.wait(POLL):
            if self.process is not None and not self.process.alive():
                try:
                    self.process = self._spawned()
                except OSError:
                    continue  # no memory or descriptors: callers have deadlines of their own

    def _spawned(self) -> ProcessId:
        me, descriptor = ProcessId.of(os.getpid()), self._socket.fileno()
        arguments = [str(self._folder), str(descriptor), str(self._least), str(me.pid), me.start]
        return spawn(
            [sys.executable, "-P", "-m", "flows.carriers.shuffler", *arguments],
            log=self._folder / "shuffler.log",
            environment=child_environment(self._home),
            pass_fds=[descriptor],
        )
