"""Identities of processes (number and start), and leases of processes on services of a home.

The kernel reuses process numbers. Every file that names a process therefore also names its start, and counts only while
both match a living process.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import threading
import time
import uuid
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import cache
from pathlib import Path
from typing import Any

import psutil

from fedcore.bounded_file import read_within
from fedcore.process.private_files import OTHERS, make_private

_DEAD_STATES = {"Z", "X"}  # a zombie still has its number, but runs nothing and holds nothing


@cache
def _boot() -> str:
    """Short id of this boot of the machine, because start ticks begin again at every boot."""
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text().strip()[:8]
    except OSError:
        return "boot"


def _state_and_start(pid: int) -> tuple[str, str] | None:
    """State letter and start of process `pid`; None if there is none.

    On Linux the start is in clock ticks since boot, which corrections of the wall clock do not change. They change
    psutil's creation time, and a living driver would then look dead.
    """
    try:
        fields = Path(f"/proc/{pid}/stat").read_text(errors="replace").rpartition(")")[2].split()
        return fields[0], f"{fields[19]}@{_boot()}"
    except (OSError, IndexError):
        if os.path.exists("/proc/self/stat"):
            return None
    try:
        process = psutil.Process(pid)
        state = "Z" if process.status() == psutil.STATUS_ZOMBIE else "R"
        return state, f"{process.create_time():.2f}"
    except psutil.Error:
        return None


@dataclass(frozen=True)
class ProcessId:
    """Identity of one process, distinct from every earlier or later process with its number."""

    pid: int
    start: str

    @classmethod
    def of(cls, pid: int) -> ProcessId:
        """The process that has this number now; without one, an identity that is never alive."""
        found = _state_and_start(pid)
        return cls(pid, found[1] if found else "ended")

    @classmethod
    def read(cls, record: Mapping[str, Any]) -> ProcessId | None:
        """The process that a parsed file names; None if the file names none, or in another form."""
        pid, start = record.get("pid"), record.get("start")
        return cls(pid, start) if isinstance(pid, int) and isinstance(start, str) else None

    def alive(self) -> bool:
        found = _state_and_start(self.pid)
        return found is not None and found[1] == self.start and found[0] not in _DEAD_STATES


def read_json(path: Path) -> dict[str, Any] | None:
    """The object in a JSON file; None if the file is missing, incomplete or holds another value."""
    try:
        value = json.loads(read_within(path))
    except (OSError, ValueError):
        return None
    return value if isinstance(value, dict) else None


def write_json(path: Path, value: Mapping[str, Any]) -> None:
    """Writes a JSON file atomically, which only its owner can read."""
    make_private(path.parent)
    part = path.with_name(f".{path.name}.{uuid.uuid4().hex[:8]}")
    with open(os.open(part, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o600), "w") as file:
        file.write(json.dumps(value, indent=1))
    part.replace(path)


@dataclass(frozen=True)
class Lease:
    """A file that keeps a service alive while the process in it lives, or until it is released."""

    path: Path

    @classmethod
    def take(cls, folder: Path) -> Lease:
        """A new lease of the current process in `folder`."""
        me = ProcessId.of(os.getpid())
        lease = cls(folder / f"{me.pid}-{uuid.uuid4().hex[:8]}.json")
        write_json(lease.path, asdict(me))
        return lease

    def release(self) -> None:
        self.path.unlink(missing_ok=True)


def lease_holders(folder: Path) -> list[ProcessId]:
    """Living processes that hold a lease in `folder`. Removes the leases of dead ones."""
    holders = []
    for path in folder.glob("[0-9]*.json"):
        process = ProcessId.read(read_json(path) or {})
        if process is not None and process.alive():
            holders.append(process)
        else:
            path.unlink(missing_ok=True)
    return holders


def spawn(
    command: Sequence[str],
    *,
    log: Path,
    environment: Mapping[str, str],
    pass_fds: Sequence[int] = (),
    folder: str | None = "/",
) -> ProcessId:
    """Starts a detached process and returns its identity.

    The process has its own session, which Ctrl-C in the caller's terminal does not reach. It reads no input and writes
    to `log`; the former log becomes `*.1`. Only its owner can read its files. It inherits no descriptor beside
    `pass_fds`: a caller whose output is a pipe would otherwise never see its end.
    `folder`: working folder; None for the caller's. Servers put it on the import path, whatever Python's options, and
    read settings there.
    """
    make_private(log.parent)
    if log.exists() and log.stat().st_size:
        log.replace(log.with_name(log.name + ".1"))
    with open(log, "wb") as output:
        process = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            env=dict(environment),
            start_new_session=True,
            cwd=folder,
            umask=OTHERS,
            pass_fds=tuple(pass_fds),
        )
    identity = ProcessId.of(process.pid)
    # Collects the exit status, so that no zombie stays behind while the caller lives.
    threading.Thread(target=process.wait, name=f"reap-{process.pid}", daemon=True).start()
    return identity


def end(
    processes: Iterable[ProcessId], *, ask_all: bool = False, patience: float = 5.0, marker: str | None = None
) -> None:
    """Ends processes and all their descendants: SIGTERM, and SIGKILL after `patience` seconds.

    SIGTERM goes to the processes only, which then end their own children in order; with `ask_all` it goes to the
    descendants too. `marker`: a text `NAME=value`; processes with it in their environment are ended too, for
    descendants whose parent died before. Only processes that match number and start are ended, never the caller or its
    ancestors.
    """
    roots = [process for process in processes if process.alive()]
    family = {process for root in roots for process in _descendants(root)} | set(roots)
    for process in family if ask_all else roots:
        _signal(process, signal.SIGTERM)
    limit = time.monotonic() + patience
    while any(process.alive() for process in family) and time.monotonic() < limit:
        time.sleep(0.05)
    # Two passes: a process that was still starting children at SIGTERM starts none after the first pass.
    for _ in range(2):
        if marker is not None:
            family |= _marked(marker)
        family |= {below for process in family for below in _descendants(process)}
        for process in family:
            _signal(process, signal.SIGKILL)
        limit = time.monotonic() + 2
        while any(process.alive() for process in family) and time.monotonic() < limit:
            time.sleep(0.02)


def _signal(process: ProcessId, number: int) -> None:
    if process.alive() and process.pid not in _own_line():
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.kill(process.pid, number)


def _own_line() -> set[int]:
    """The current process and its ancestors."""
    return {os.getpid(), *(parent.pid for parent in psutil.Process().parents())}


def _descendants(process: ProcessId) -> set[ProcessId]:
    if not process.alive():
        return set()
    try:
        return {ProcessId.of(child.pid) for child in psutil.Process(process.pid).children(recursive=True)}
    except psutil.Error:
        return set()


def _marked(marker: str) -> set[ProcessId]:
    name, _, value = marker.partition("=")
    found = set()
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.Error, OSError):
            if process.environ().get(name) == value:
                found.add(ProcessId.of(process.pid))
    return found
