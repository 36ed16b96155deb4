"""A run's own shuffler: a process beside its driver, which the driver starts again if it dies, at the same address.

It is for simulations and tests. Whoever has the driver's account has this process too: only a shuffler that somebody
else runs, named by `shuffler.address`, stands between silos and a server that wants to know more.
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
from flows.services.environment import child_environment
from flows.services.leases import ProcessId, end, spawn
from flows.services.shuffler import listening

POLL = 0.2


class OwnShuffler:
    """Keeps a shuffler alive between `start` and `close`. Its batches stay in `folder`; its process ends with this one.

    `secret`: what silos and the driver tell it, and another account of the machine does not know; new with every start
    of a driver. The listening socket is this process's, handed down: no restart changes the address, and whoever
    connects in between waits in its queue.
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
        """Raises InputError if it cannot be started."""
        try:
            make_private(self._folder)
            # A file: arguments and environments of a process are shown to others, or inherited.
            write_new(self._secret_path(), self.secret.encode())
            self.process = self._spawned()
        except OSError as error:
            self._socket.close()
            raise InputError(f"{self._folder}: no shuffler can be started there ({error.strerror})") from None
        self._thread.start()

    def close(self) -> None:
        """Ends it. Safe to call again."""
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
                    continue  # no memory, no descriptors: whoever waits for it gives up in time

    def _spawned(self) -> ProcessId:
        me, descriptor = ProcessId.of(os.getpid()), self._socket.fileno()
        arguments = [str(self._folder), str(descriptor), str(self._least), str(me.pid), me.start]
        return spawn(
            [sys.executable, "-P", "-m", "flows.services.shuffler", *arguments],
            log=self._folder / "shuffler.log",
            environment=child_environment(self._home),
            pass_fds=[descriptor],
        )
