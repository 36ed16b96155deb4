"""The lock of a run, a sweep or a release of statistics. Whoever changes what is said of one holds it.

A driver has it alone, from before its flow run is made, while it drives, and until MLflow has what was told of the run:
a status that is on its way is nobody else's to write. Who looks has a share of it: looks go side by side, a driver
waits until they end, and none is taken for a driver. The operating system drops a lock with its process.
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
"""Seconds that a driver waits for a lock before it asks whether another driver has it, or somebody who looks."""
LOOKED = 30.0
"""Seconds that a driver waits for those who look: they read a checkpoint, and write an end to MLflow or Prefect."""
ID = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,127}")
"""Of a run or a sweep: what databases and servers say of one becomes a path by this only."""


def store_path(home: Home, run: str) -> Path:
    return home.runs / run / "checkpoint.sqlite"


@dataclass
class RunLock:
    """A lock that this process has. `driven`: somebody here drives; `kept`: how many hold on to it beside."""

    path: Path
    lock: FileLock
    driven: bool = False
    kept: int = 0

    def keep(self) -> Callable[[], None]:
        """Holds on to it when its driver lets go, until what is returned is called, by any thread."""
        left = True
        with _GUARD:
            self.kept += 1

        def let_go() -> None:
            nonlocal left
            with _GUARD:
                if left:
                    left = False
                    self.kept -= 1
                    self.drop()

        return let_go

    def drop(self) -> None:
        """Lets go if nobody here needs it."""
        with _GUARD:
            if not self.driven and not self.kept:
                _mine.pop(self.path, None)
                self.lock.release()


_DRIVEN: tuple[Kind, ...] = ("run", "sweep")
_GUARD = threading.RLock()
_mine: dict[Path, RunLock] = {}


@contextmanager
def drive_lock(home: Home, name: str, kind: Kind = "run") -> Iterator[RunLock]:
    """Holds a run, a sweep or a release of statistics for this driver.

    Raises BusyError if another driver has it (for a run: with its process), InputError if the folder is not writable.
    """
    path = _path(home, name, kind)
    if (held := _taken_again(home, name, kind, path)) is None:
        lock = _acquired(home, name, kind, path)  # unguarded: others here let go of theirs meanwhile
        with _GUARD:
            held = _mine[path] = RunLock(path, lock, driven=True)
    try:
        yield held
    finally:
        with _GUARD:
            held.driven = False
            held.drop()


def _taken_again(home: Home, name: str, kind: Kind, path: Path) -> RunLock | None:
    """The lock that this process has kept since it drove last; None if it has none."""
    with _GUARD:
        if (held := _mine.get(path)) is not None:
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
                    f"{kind} {name}: nobody drives it, but another process has looked at it for {LOOKED:g} s to say "
                    "how it ended; start it again once that process has ended"
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
    """Keeps drivers from a run or a sweep for the block if none has it, and says whether; makes no folder and waits for
    nobody.

    A driver that begins meanwhile waits: what is done in the block is short. Of a folder that is gone nobody can have
    the lock. An id that is none of ours is not ours to hold.
    """
    path = _path(home, name, kind)
    if not ID.fullmatch(name) or path in _mine:
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
    """Whether a living process drives this run or sweep, or still tells MLflow of it. Looking keeps nobody else from
    looking."""
    return any(_is_locked(_path(home, run, kind)) for kind in _DRIVEN)


def refuse_if_driven(home: Home, run: str) -> None:
    """Raises BusyError naming the process that drives the run, if there is one."""
    if is_driven(home, run):
        raise _busy(home, run, "run")


@contextmanager
def held_undriven(home: Home, run: str) -> Iterator[None]:
    """Keeps drivers from a run for the block. Raises BusyError naming the process that drives it, if there is one."""
    with unless_driven(home, run) as held:
        if not held and ID.fullmatch(run):
            raise _busy(home, run, "run")
        yield


def _path(home: Home, name: str, kind: Kind) -> Path:
    return {"run": home.runs, "sweep": home.sweeps, "statistics": home.statistics}[kind].absolute() / name / "lock"


def _is_locked(path: Path) -> bool:
    if path in _mine:
        return True
    try:
        os.close(_share(path))
    except FileNotFoundError:
        return False
    except OSError:
        return True
    return False


def _share(path: Path, made: int = 0) -> int:
    """An open file with a share of its lock, which closing drops. Raises OSError where a driver has it, or it cannot be
    opened."""
    file = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_NOFOLLOW | made, 0o644)
    try:
        fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BaseException:
        os.close(file)
        raise
    return file
