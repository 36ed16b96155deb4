"""Lock of a run, a sweep or a release of statistics, for every change of its recorded state.

A driver has the lock exclusively, from before its flow run is created until MLflow has all data of the run. Until then
no other process may write the run's status. Observers take shared locks: they run side by side, a driver waits until
they end, and none is mistaken for a driver. The operating system drops a lock with its process.
"""

from __future__ import annotations

import fcntl
import os
import re
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from filelock import FileLock, Timeout

from fedcore.errors import BusyError, InputError
from fedcore.home import Home
from tasks.run_file import read_meta

Kind = Literal["run", "sweep", "statistics"]

LOOK = 0.5
"""Seconds that a driver waits for a lock before it checks whether another driver has it."""
LOOKED = 30.0
"""Seconds that a driver waits for observers, which write an end to MLflow or Prefect."""
ID = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,127}")
"""Id of a run or a sweep. An id from a database or a server must match before it becomes part of a path."""


def store_path(home: Home, run: str) -> Path:
    return home.runs / run / "checkpoint.sqlite"


@dataclass
class RunLock:
    """A lock that this process has. `driven`: by a driver of this process; `holders`: number of further holders."""

    path: Path
    lock: FileLock
    driven: bool = False
    holders: int = 0

    def hold(self) -> Callable[[], None]:
        """Adds a holder, for whom the lock outlives its driver. Returns its release, which any thread can call."""
        held = True
        with _GUARD:
            self.holders += 1

        def release() -> None:
            nonlocal held
            with _GUARD:
                if held:
                    held = False
                    self.holders -= 1
                    self.drop()

        return release

    def drop(self) -> None:
        """Releases the lock once it has no driver and no holder in this process."""
        with _GUARD:
            if not self.driven and not self.holders:
                _held.pop(self.path, None)
                self.lock.release()


_DRIVEN: tuple[Kind, ...] = ("run", "sweep")
_GUARD = threading.RLock()
_held: dict[Path, RunLock] = {}


@contextmanager
def drive_lock(home: Home, name: str, kind: Kind = "run") -> Iterator[RunLock]:
    """Locks a run, a sweep or a release of statistics for this driver, within the block.

    Raises BusyError if another driver has it (naming a run's process), InputError if the folder is not writable.
    """
    path = _path(home, name, kind)
    if (held := _taken_again(home, name, kind, path)) is None:
        lock = _acquired(home, name, kind, path)  # unguarded: other threads release theirs meanwhile
        with _GUARD:
            held = _held[path] = RunLock(path, lock, driven=True)
    try:
        yield held
    finally:
        with _GUARD:
            held.driven = False
            held.drop()


def _taken_again(home: Home, name: str, kind: Kind, path: Path) -> RunLock | None:
    """The lock that a holder in this process has since the last driver; None without one. Raises BusyError."""
    with _GUARD:
        if (held := _held.get(path)) is not None:
            if held.driven:
                raise _busy(home, name, kind)
            held.driven = True
        return held


def _acquired(home: Home, name: str, kind: Kind, path: Path) -> FileLock:
    lock = FileLock(path, timeout=LOOK, poll_interval=0.01, thread_local=False)
    end = time.monotonic() + LOOKED
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        while True:
            with suppress(Timeout):
                lock.acquire()
                return lock
            if _is_locked(path):
                raise _busy(home, name, kind)
            if time.monotonic() > end:
                raise BusyError(
                    f"{kind} {name}: no driver has it, but another process has looked at it for {LOOKED:g} s to "
                    "record its end; start it again once that process has ended"
                )
    except OSError as error:
        raise InputError(
            f"{kind} folder {path.parent} cannot be written ({error.strerror}); free space or permissions"
        ) from None


def _busy(home: Home, name: str, kind: Kind) -> BusyError:
    if kind == "run":
        pid = read_meta(store_path(home, name)).get("pid", "unknown")
        return BusyError(f"run {name} is being driven by process {pid}; wait for it, or end it and resume")
    return BusyError(f"{kind} {name} is being driven by another process; wait for it, or end it")


@contextmanager
def unless_driven(home: Home, name: str, kind: Kind = "run") -> Iterator[bool]:
    """Yields true, with a shared lock, if no driver has the run or sweep; else yields false.

    Makes no folder and does not wait. A driver that starts meanwhile waits, so the block must be short. True without a
    lock if the folder is gone; false for an id that is not fedcore's.
    """
    path = _path(home, name, kind)
    if not ID.fullmatch(name) or path in _held:
        yield False
        return
    if not path.parent.is_dir():
        yield True
        return
    try:
        share = _share(path, os.O_CREAT)
    except OSError:
        yield False
        return
    try:
        yield True
    finally:
        os.close(share)


def is_driven(home: Home, run: str) -> bool:
    """True if a living process drives this run or sweep, or still writes it to MLflow."""
    return any(_is_locked(_path(home, run, kind)) for kind in _DRIVEN)


def refuse_if_driven(home: Home, run: str) -> None:
    """Raises BusyError that names the process, if one drives the run."""
    if is_driven(home, run):
        raise _busy(home, run, "run")


@contextmanager
def held_undriven(home: Home, run: str) -> Iterator[None]:
    """Excludes drivers of a run within the block. Raises BusyError that names the process, if one drives it."""
    with unless_driven(home, run) as held:
        if not held and ID.fullmatch(run):
            raise _busy(home, run, "run")
        yield


def _path(home: Home, name: str, kind: Kind) -> Path:
    return {"run": home.runs, "sweep": home.sweeps, "statistics": home.statistics}[kind].absolute() / name / "lock"


def _is_locked(path: Path) -> bool:
    if path in _held:
        return True
    try:
        os.close(_share(path))
    except FileNotFoundError:
        return False
    except OSError:
        return True
    return False


def _share(path: Path, made: int = 0) -> int:
    """Opens the lock's file with a shared lock, which closing drops. Raises OSError, also if a driver has the lock."""
    file = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_NOFOLLOW | made, 0o644)
    try:
        fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BaseException:
        os.close(file)
        raise
    return file
