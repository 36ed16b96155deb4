"""A party of the demo: a folder that its user alone can open, and its processes, which are started by the commands."""

from __future__ import annotations

import contextlib
import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path

from fedcore.errors import InputError
from flows.services.leases import ProcessId
from studies.federation_demo.isolation import Isolation

ENTRY = ("-m", "flows.commands.entry")
HERITAGE = re.compile(r"PATH|LANG|LC_\w+|TZ|TERM|TMPDIR|(OPENBLAS|OMP|MKL|NPY)_\w+|FEDCORE_SERVER_IDLE")
"""Variables that a party has from the demo: no proxy, no place, and no secret of the person who runs it."""
FINGERPRINT = re.compile(r"[A-Z2-7]{5}(?:-[A-Z2-7]{5}){4}")
LONGEST = 900.0
GRACE = 15.0
"""Seconds that a process has to end after SIGTERM."""


@dataclass
class Processes:
    """The processes of all parties, with a file of them, by which the next demo ends those of a killed one."""

    file: Path
    started: list[subprocess.Popen[str]] = field(default_factory=list)

    def add(self, process: subprocess.Popen[str]) -> subprocess.Popen[str]:
        self.started.append(process)
        with open(self.file, "a") as file:
            file.write(json.dumps(asdict(ProcessId.of(process.pid))) + "\n")
        return process

    def end(self) -> None:
        """Ends the processes of this demo, by SIGTERM, then by SIGKILL. Safe to call again."""
        living = [process for process in self.started if process.poll() is None]
        for process in living:
            process.terminate()
        until = time.monotonic() + GRACE
        for process in living:
            try:
                process.wait(timeout=max(0.1, until - time.monotonic()))
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()

    def end_left(self) -> int:
        """Ends the processes that the file names, and that are the same ones still; returns their number."""
        ended = 0
        with contextlib.suppress(OSError):
            for line in self.file.read_text().splitlines():
                with contextlib.suppress(ValueError):
                    found = ProcessId.read(json.loads(line))
                    if found is not None and found.alive():
                        ended += kill([found.pid])
        return ended


def kill(numbers: Sequence[int]) -> int:
    """Kills processes, and returns the number of those that lived."""
    ended = 0
    for number in numbers:
        with contextlib.suppress(ProcessLookupError):
            os.kill(number, signal.SIGKILL)
            ended += 1
    return ended


@dataclass(frozen=True, eq=False)
class Party:
    """One party. `folder`: its home, its register, and its files, of mode 0700."""

    name: str
    folder: Path
    isolation: Isolation
    processes: Processes

    def make(self) -> None:
        """Makes the folder, which the party's user owns."""
        self.folder.mkdir(mode=0o700)
        self.isolation.give(self.folder, self.name)

    @property
    def places(self) -> dict[str, str]:
        """Variables by which fedcore finds this party's home and register, and no one else's."""
        return {"FEDCORE_HOME": str(self.folder / "home"), "FEDCORE_REGISTER": str(self.folder / "register")}

    @property
    def environment(self) -> dict[str, str]:
        inherited = {name: value for name, value in os.environ.items() if HERITAGE.fullmatch(name)}
        person = {"HOME": str(self.folder), "USER": self.name, "LOGNAME": self.name}
        return {**inherited, **person, **self.places, "COLUMNS": "120", "PYTHONDONTWRITEBYTECODE": "1"}

    def put(self, name: str, content: str | Path) -> Path:
        """Writes a file of the party: this text, or a copy of this file. Returns its path."""
        path = self.folder / name
        path.write_text(content if isinstance(content, str) else content.read_text())
        self.isolation.give(path, self.name)
        return path

    def start(self, program: Sequence[str], log: str) -> subprocess.Popen[str]:
        """Starts a program of the party; its output goes to the file `log` in the party's folder."""
        with open(self.folder / log, "a") as file:
            return self.processes.add(
                subprocess.Popen(
                    self.isolation.command(self.name, program),
                    cwd=self.folder,
                    env=self.environment,
                    stdin=subprocess.DEVNULL,
                    stdout=file,
                    stderr=file,
                    text=True,
                    start_new_session=True,  # Ctrl-C reaches the demo alone, which ends the parties in order
                )
            )

    def python(self, code: str, *arguments: str) -> str:
        """Output of a Python program as this party. Raises InputError with its last line if it fails."""
        return self._done([sys.executable, "-c", code, *arguments], "python")

    def fedcore(self, *arguments: str) -> str:
        """Output of a command of fedcore on both streams. Raises InputError with its last line if it fails."""
        return self._done([sys.executable, *ENTRY, *arguments], f"fedcore {' '.join(arguments[:2])}")

    def serve(self, *arguments: str) -> subprocess.Popen[str]:
        """Starts a command of fedcore that serves until it is ended; its output is `served`."""
        return self.start([sys.executable, *ENTRY, *arguments], "service.log")

    @property
    def served(self) -> str:
        path = self.folder / "service.log"
        return path.read_text() if path.exists() else ""

    def _done(self, program: Sequence[str], shown: str) -> str:
        log = f"command-{time.monotonic_ns()}.log"
        process = self.start(program, log)
        try:
            code = process.wait(timeout=LONGEST)
        except subprocess.TimeoutExpired:
            process.kill()
            raise InputError(f"{self.name}: `{shown}` has not ended after {LONGEST:g} s") from None
        printed = (self.folder / log).read_text()
        (self.folder / log).unlink()
        if code:
            complaint = (printed.strip().splitlines() or ["it printed nothing"])[-1]
            raise InputError(f"{self.name}: `{shown}` ended with code {code}: {complaint}")
        return printed


def fingerprint(printed: str) -> str:
    """The fingerprint that a command printed. Raises InputError without exactly one."""
    found = FINGERPRINT.findall(printed)
    if len(found) != 1:
        raise InputError(f"a command printed {len(found)} fingerprints, and not one: {printed[-200:]}")
    return str(found[0])
