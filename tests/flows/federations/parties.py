"""The parties of a federation as processes with a home and a register each: coordinator, relay, and hospitals."""

from __future__ import annotations

import csv
import os
import re
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from tests.patience import HANGS

SCHEMA = """features:
  age: {range: [20, 90]}
  pressure: {range: [80, 200]}
label: disease
classes: [0, 1]
"""
CONFIG = """name: heart
data:
  source: federation
  federation: heart
  features:
    age: {range: [20, 90]}
    pressure: {range: [80, 200]}
  label: disease
  classes: [0, 1]
privacy: {epsilon: 2.0, noise: guarded, ledger: sqlite}
algorithm: {name: mbsgd, rounds: %d}
"""
FINGERPRINT = re.compile(r"[A-Z2-7]{5}(?:-[A-Z2-7]{5}){4}")


@dataclass
class Party:
    """One party's folder, home and register. `added`: to the environment of its processes."""

    folder: Path
    added: dict[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.folder.mkdir(parents=True, exist_ok=True)

    @property
    def environment(self) -> dict[str, str]:
        left_out = ("FEDCORE_POLICIES", *(name for name in os.environ if name.lower().endswith("_proxy")))
        inherited = {name: value for name, value in os.environ.items() if name not in left_out}
        own = {"FEDCORE_HOME": str(self.folder / "home"), "FEDCORE_REGISTER": str(self.folder / "register")}
        return {**inherited, **own, **self.added, "COLUMNS": "200"}

    def start(self, *arguments: str, first: Callable[[], object] | None = None) -> subprocess.Popen[str]:
        """A command's process. `first`: what it does before it becomes that command."""
        with open(self.folder / f"{arguments[0]}.log", "a") as log:
            return subprocess.Popen(
                [sys.executable, "-m", "flows.commands.entry", *arguments],
                cwd=self.folder,
                env=self.environment,
                stdout=log,
                stderr=log,
                stdin=subprocess.DEVNULL,
                text=True,
                preexec_fn=first,
            )

    def run(self, *arguments: str, code: int = 0) -> str:
        """Output of a command on both streams; it has to end with this code."""
        done = subprocess.run(
            [sys.executable, "-m", "flows.commands.entry", *arguments],
            cwd=self.folder,
            env=self.environment,
            capture_output=True,
            text=True,
            stdin=subprocess.DEVNULL,
            timeout=HANGS,
        )
        said = done.stdout + done.stderr
        assert done.returncode == code, said
        return said

    def log(self, command: str) -> str:
        return (self.folder / f"{command}.log").read_text()


@dataclass
class Heart:
    """A federation of hospitals with 40 and more records each.

    `address`: of the relay, as parties call it; default: that of its process. `added`: to the environment of the
    coordinator's and the silos' processes. `host`, `port`: where the relay listens, by default at a free port.
    `carrying`: its further options. `relay_port`: at which it listens instead, if a forwarder is at `port`.
    """

    root: Path
    names: tuple[str, ...] = ("cleveland", "hungary")
    address: str | None = None
    added: dict[str, str] = field(default_factory=dict)
    host: str = "127.0.0.1"
    port: int = 0
    carrying: tuple[str, ...] = ()
    processes: dict[str, subprocess.Popen[str]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.port = self.port or free_port()
        self.relay_port = self.port
        self.address = self.address or f"http://{self.host}:{self.port}"
        self.coordinator, self.relay = Party(self.root / "coordinator", self.added), Party(self.root / "relay")
        self.silos = {name: Party(self.root / name, self.added) for name in self.names}
        said = self.coordinator.run("federation", "init", "heart", "--relay", self.address)
        self.fingerprint = fingerprint(said)
        self.invitation = str(self.coordinator.folder / "heart.invitation")

    def join(self, name: str) -> None:
        party = self.silos[name]
        rng = np.random.default_rng(len(name))
        with open(party.folder / "records.csv", "w", newline="") as file:
            writer = csv.writer(file)
            writer.writerow(["age", "pressure", "disease"])
            for _ in range(40 + len(name)):
                age = rng.uniform(25, 85)
                writer.writerow([round(age, 1), round(rng.normal(130, 15), 1), int(age + rng.normal(0, 10) > 55)])
        (party.folder / "schema.yaml").write_text(SCHEMA)
        files = ("--invitation", self.invitation, "--data", "records.csv", "--schema", "schema.yaml")
        party.run("silo", "init", name, *files, "--fingerprint", self.fingerprint)
        mine = fingerprint(party.run("silo", "card"))
        self.coordinator.run("federation", "add", str(party.folder / f"{name}.card"), "--fingerprint", mine)

    def serve(self, *names: str) -> None:
        for name in names or self.names:
            self.processes[name] = self.silos[name].start("silo", "serve")

    def carry(self, first: Callable[[], object] | None = None) -> None:
        """Starts the relay, in a home of its own, and waits until it listens. `first`: as for `Party.start`."""
        listens = ("--host", self.host, "--port", str(self.relay_port))
        options = ("--fingerprint", self.fingerprint, *listens, *self.carrying)
        self.processes["relay"] = self.relay.start("relay", self.invitation, *options, first=first)
        assert answers_at(self.host, self.relay_port), self.relay.log("relay")

    def kill(self, name: str) -> None:
        process = self.processes.pop(name)
        process.send_signal(signal.SIGKILL)
        process.wait(timeout=HANGS)

    def stop(self, name: str) -> None:
        if (process := self.processes.pop(name, None)) is not None:
            process.send_signal(signal.SIGTERM)
            assert process.wait(timeout=HANGS) == 0, self.silos[name].log("silo")

    def config(self, rounds: int) -> None:
        (self.coordinator.folder / "heart.yaml").write_text(CONFIG % rounds)

    def close(self) -> None:
        for process in self.processes.values():
            process.send_signal(signal.SIGTERM)
        for process in self.processes.values():
            process.wait(timeout=HANGS)
        self.coordinator.run("down")


def free_port() -> int:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return free.getsockname()[1]


def answers_at(host: str, port: int) -> bool:
    """Waits until there is a listener; False if none comes."""
    until = time.monotonic() + HANGS
    while time.monotonic() < until:
        with socket.socket() as attempt:
            if attempt.connect_ex((host, port)) == 0:
                return True
        time.sleep(0.1)
    return False


def fingerprint(said: str) -> str:
    found = FINGERPRINT.findall(said)
    assert len(found) == 1, said
    return found[0]
