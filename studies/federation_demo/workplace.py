"""The folder of a demo: locked while it runs, and cleared before and after, whatever ended the demo."""

from __future__ import annotations

import contextlib
import fcntl
import os
import shutil
import signal
from collections.abc import Iterator
from pathlib import Path
from types import FrameType

from fedcore.errors import BusyError, InputError
from fedcore.home import Home
from flows.services.machine import down
from studies.federation_demo.isolation import STASH
from studies.federation_demo.network import Network
from studies.federation_demo.parties import Processes, kill

MARK = "fedcore-demo"
"""File of every demo's folder: another folder is never cleared."""
PROCESSES = "processes.jsonl"
SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


class Workplace:
    """The folder of a demo. `kept`: the driver's home, which stays for browsing if the demo comes to its end."""

    def __init__(self, folder: Path, network: Network, kept: Path) -> None:
        self.folder, self._network, self._kept = folder, network, kept
        self.processes = Processes(folder / PROCESSES)
        self.finished = False

    @contextlib.contextmanager
    def open(self) -> Iterator[Workplace]:
        """Clears what a killed demo left, and clears again at the end. Raises InputError, BusyError."""
        with self._alone(), stoppable():
            try:
                self.processes.end_left()
                self._clear(None)
                (self.folder / MARK).touch()
                self.folder.chmod(0o711)  # the users of the parties pass it, and list nothing
            except PermissionError as error:
                left = f"{error.strerror}: a demo of another user left it, and `sudo make demo` removes it"
                raise InputError(f"{self.folder}: {left}") from None
            try:
                yield self
            finally:
                with _deaf():
                    self.processes.end()
                    self._clear(self._kept if self.finished else None)

    @contextlib.contextmanager
    def _alone(self) -> Iterator[None]:
        self.folder.mkdir(parents=True, exist_ok=True)
        if os.listdir(self.folder) and not (self.folder / MARK).exists():
            raise InputError(f"{self.folder} holds files of another kind: name an empty or a new folder")
        lock = os.open(self.folder, os.O_RDONLY | os.O_DIRECTORY)
        try:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                raise BusyError(f"another demo runs in {self.folder}") from None
            yield
        finally:
            os.close(lock)

    def _clear(self, kept: Path | None) -> None:
        """Ends services and processes, then removes namespaces and files, except `kept`. Safe to call again."""
        if self._kept.is_dir():
            with contextlib.suppress(InputError, BusyError):
                down(Home(self._kept))
        kill(self._network.processes())
        self._network.remove()
        with contextlib.suppress(OSError):
            (STASH / self._network.tag).rmdir()
        _remove(self.folder, None if kept is None or not kept.is_dir() else kept)
        if kept is not None:
            self._give_back()

    def _give_back(self) -> None:
        """Gives the folder to the owner of the one above: after `sudo`, to the person."""
        owner = self.folder.parent.stat()
        for path in (self.folder, *self.folder.rglob("*")):
            with contextlib.suppress(OSError):
                os.chown(path, owner.st_uid, owner.st_gid, follow_symlinks=False)


def _remove(folder: Path, kept: Path | None) -> None:
    """Removes all in a folder except `kept` and the mark."""
    for path in folder.iterdir():
        if path == kept or (kept is not None and path.name == MARK):
            continue
        if kept is not None and kept.is_relative_to(path):
            _remove(path, kept)
        elif path.is_dir() and not path.is_symlink():
            shutil.rmtree(path)
        else:
            path.unlink()


@contextlib.contextmanager
def stoppable() -> Iterator[None]:
    """Turns Ctrl-C, SIGTERM and SIGHUP into KeyboardInterrupt within the block."""

    def stop(number: int, frame: FrameType | None) -> None:
        raise KeyboardInterrupt

    before = [signal.signal(number, stop) for number in SIGNALS]
    try:
        yield
    finally:
        for number, handler in zip(SIGNALS, before, strict=True):
            signal.signal(number, handler)


@contextlib.contextmanager
def _deaf() -> Iterator[None]:
    """Ignores the signals while all is removed: a second Ctrl-C would leave a part."""
    before = [signal.signal(number, signal.SIG_IGN) for number in SIGNALS]
    try:
        yield
    finally:
        for number, handler in zip(SIGNALS, before, strict=True):
            signal.signal(number, handler)
